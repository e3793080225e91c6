"""The function of the README's tour: a classifier's last layer.

    mlc explain examples/head.py:head "f32[64,48]" "f32[48,10]" "f32[10]"
"""

import mlc


def head(x, w, b):
    """softmax(relu(x @ w + b)) over the last axis."""
    return mlc.nn.softmax(mlc.nn.relu(x @ w + b), axis=-1)
