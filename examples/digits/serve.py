"""Serve a model: `python serve.py vit` classifies all 1,797 digits in batches and prints accuracy and time."""

import sys
import time

import models
import numpy as np
from weights import digits, load

import mlc


class Classifier:
    """A trained model compiled by mlc; the weights are arguments, so one compilation serves any weights of this shape."""

    def __init__(self, name):
        self.params = load(name)
        self.run = mlc.jit(models.MODELS[name])

    def logits(self, images):
        """f32[batch, 64] in [0, 1] -> f32[batch, 10]"""
        return self.run(self.params, images)

    def __call__(self, images):
        """The predicted classes."""
        return self.logits(images).argmax(axis=1)


def main(name):
    images, classes = digits()
    classify = Classifier(name)
    begun = time.perf_counter()
    predicted = np.concatenate([classify(images[k:k + 64]) for k in range(0, len(images), 64)])
    took = time.perf_counter() - begun
    print(f"{name}: {(predicted == classes).mean():.2%} correct, {len(images)} images in {took * 1e3:.0f} ms, compilation included")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "mlp")
