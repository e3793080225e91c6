"""Train both models with JAX (seconds on a CPU) and write `mlp.npz` and `vit.npz`. Needs jax and scikit-learn.

    python train.py
"""

import jax
import jax.numpy as jnp
import models
import numpy as np
from weights import digits, save

STEPS, BATCH, RATE = 1500, 128, 2e-3


def init(rng, *shape):
    return jnp.asarray(rng.normal(size=shape) / np.sqrt(shape[0]), jnp.float32)


def norm():
    return {"scale": jnp.ones(models.WIDTH, jnp.float32), "bias": jnp.zeros(models.WIDTH, jnp.float32)}


def init_mlp(rng):
    layers = [{"w": init(rng, a, b), "b": jnp.zeros(b, jnp.float32)} for a, b in zip(models.MLP_SIZES, models.MLP_SIZES[1:])]
    return {"hidden": layers[:-1], "out": layers[-1]}


def init_vit(rng):
    width, hidden = models.WIDTH, models.HIDDEN

    def block():
        return {"attention": {name: init(rng, width, width) for name in ("q", "k", "v", "out")}, "norm1": norm(), "norm2": norm(),
                "w1": init(rng, width, hidden), "b1": jnp.zeros(hidden, jnp.float32),
                "w2": init(rng, hidden, width), "b2": jnp.zeros(width, jnp.float32)}
    return {"embed": init(rng, models.PATCH ** 2, width), "position": init(rng, models.PATCHES, width) * 0.1,
            "blocks": [block() for _ in range(models.BLOCKS)], "norm": norm(),
            "head": {"w": init(rng, width, 10), "b": jnp.zeros(10, jnp.float32)}}


def train(model, params, images, classes, seed=0):
    """Adam (Kingma and Ba, 2015) on the cross-entropy."""
    def loss(params, x, y):
        return -jnp.mean(jax.nn.log_softmax(model(params, x))[jnp.arange(len(y)), y])

    @jax.jit
    def step(t, params, first, second, x, y):
        gradient = jax.grad(loss)(params, x, y)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradient)
        rate = RATE * jnp.sqrt(1 - 0.999 ** t) / (1 - 0.9 ** t)
        params = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-8), params, first, second)
        return params, first, second

    zeros = jax.tree.map(jnp.zeros_like, params)
    first, second, rng = zeros, zeros, np.random.default_rng(seed)
    for t in range(1, STEPS + 1):
        pick = rng.integers(0, len(images), BATCH)
        params, first, second = step(jnp.float32(t), params, first, second, images[pick], classes[pick])
    return params


def main():
    images, classes = digits()
    for name, start in (("mlp", init_mlp), ("vit", init_vit)):
        params = train(models.MODELS[name], start(np.random.default_rng(1)), images[:1500], classes[:1500])
        params = jax.tree.map(np.asarray, params)
        save(name, params)
        predicted = np.asarray(models.MODELS[name](jax.tree.map(jnp.asarray, params), jnp.asarray(images[1500:]))).argmax(1)
        print(f"{name}: {(predicted == classes[1500:]).mean():.1%} of the 297 images that it was not trained on")


if __name__ == "__main__":
    main()
