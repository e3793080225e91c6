"""Weights as a flat .npz: the path of each leaf is its name (`hidden.0.w`)."""

from pathlib import Path

import numpy as np

HERE = Path(__file__).parent


def flatten(tree, prefix=""):
    """A nest of dicts and lists as {path: array}."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else None
    if items is None:
        return {prefix: np.asarray(tree)}
    return {path: leaf for key, value in items for path, leaf in flatten(value, f"{prefix}.{key}" if prefix else str(key)).items()}


def unflatten(flat):
    """The nest that `flatten` took apart; numeric keys make lists."""
    tree = {}
    for path, leaf in flat.items():
        *parents, last = path.split(".")
        node = tree
        for key in parents:
            node = node.setdefault(key, {})
        node[last] = leaf

    def lists(node):
        if not isinstance(node, dict):
            return node
        if all(key.isdigit() for key in node):
            return [lists(node[key]) for key in sorted(node, key=int)]
        return {key: lists(value) for key, value in node.items()}
    return lists(tree)


def save(name, params):
    np.savez_compressed(HERE / f"{name}.npz", **flatten(params))


def load(name):
    """The trained weights of the model `name`. Run `python train.py` to make them again."""
    with np.load(HERE / f"{name}.npz") as file:
        return unflatten({path: file[path] for path in file.files})


def digits():
    """scikit-learn's 1,797 handwritten digits: images f32[1797, 64] in [0, 1] and their classes."""
    from sklearn.datasets import load_digits
    images, classes = load_digits(return_X_y=True)
    return (images / 16).astype(np.float32), classes.astype(np.int32)
