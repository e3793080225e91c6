"""Two classifiers of 8x8 handwritten digits: an MLP and a small vision transformer.

They are written with `mlc.numpy` and `mlc.nn`, whose functions also take JAX arrays: one definition is trained by JAX
and served by mlc. Images are f32[batch, 64] in [0, 1]; the result is logits, f32[batch, 10].
"""

import math

import mlc.numpy as np
from mlc import nn

MLP_SIZES = (64, 128, 64, 10)
PATCH, WIDTH, HEADS, BLOCKS, HIDDEN = 2, 32, 2, 2, 64
PATCHES = (8 // PATCH) ** 2


def mlp(params, x):
    """Two hidden layers with GELU."""
    for layer in params["hidden"]:
        x = nn.gelu(x @ layer["w"] + layer["b"])
    return x @ params["out"]["w"] + params["out"]["b"]


def attention(params, x):
    """Multi-head self-attention over f32[batch, patches, WIDTH]."""
    batch, patches, width = x.shape
    heads = (batch, patches, HEADS, width // HEADS)
    q, k, v = (np.transpose(np.reshape(x @ params[name], heads), (0, 2, 1, 3)) for name in ("q", "k", "v"))
    scores = nn.softmax(q @ np.transpose(k, (0, 1, 3, 2)) * (1 / math.sqrt(width // HEADS)), axis=-1)
    mixed = np.reshape(np.transpose(scores @ v, (0, 2, 1, 3)), (batch, patches, width))
    return mixed @ params["out"]


def block(params, x):
    """Pre-norm transformer block."""
    x = x + attention(params["attention"], nn.layer_norm(x, params["norm1"]["scale"], params["norm1"]["bias"]))
    hidden = nn.gelu(nn.layer_norm(x, params["norm2"]["scale"], params["norm2"]["bias"]) @ params["w1"] + params["b1"])
    return x + hidden @ params["w2"] + params["b2"]


def vit(params, x):
    """2x2 patches, learned positions, BLOCKS transformer blocks, mean over patches."""
    batch, side = x.shape[0], 8 // PATCH
    patches = np.reshape(np.transpose(np.reshape(x, (batch, side, PATCH, side, PATCH)), (0, 1, 3, 2, 4)), (batch, PATCHES, PATCH * PATCH))
    h = patches @ params["embed"] + params["position"]
    for one in params["blocks"]:
        h = block(one, h)
    h = nn.layer_norm(h, params["norm"]["scale"], params["norm"]["bias"])
    return np.mean(h, axis=1) @ params["head"]["w"] + params["head"]["b"]


MODELS = {"mlp": mlp, "vit": vit}
