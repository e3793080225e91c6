"""The tests a model repo would have: does compiling change the answers, and what does the compiler make of the models?"""

import jax
import jax.numpy as jnp
import models
import numpy as np
import pytest
from serve import Classifier
from weights import digits, load

import mlc

PARAMS = {name: load(name) for name in models.MODELS}


@mlc.check(inputs={"x": ("f32[B,64]", 0, 1)}, dims={"B": (1, 65)})
@pytest.mark.parametrize("name", models.MODELS)
def test_compiling_changes_no_answer(x, name):
    return models.MODELS[name](PARAMS[name], x)


@pytest.mark.parametrize("name", models.MODELS)
def test_every_digit_is_classified_as_jax_does_and_logits_lie_within_the_bound(name, mlc_check):
    images, _ = digits()
    for some in np.split(images, 3):  # as many at once as fit into the caches of most machines
        assert not mlc_check(models.MODELS[name], PARAMS[name], some).notes
    params = jax.tree.map(jnp.asarray, PARAMS[name])
    expected = np.asarray(jax.jit(models.MODELS[name])(params, images)).argmax(axis=1)
    np.testing.assert_array_equal(Classifier(name)(images), expected)


@pytest.mark.parametrize(("name", "least"), [("mlp", 0.90), ("vit", 0.87)])
def test_the_models_know_digits_they_were_not_trained_on(name, least):
    images, classes = digits()
    assert (Classifier(name)(images[1500:]) == classes[1500:]).mean() >= least


@pytest.mark.parametrize("name", models.MODELS)
def test_what_the_compiler_makes_of_it(name, mlc_snapshot):
    mlc_snapshot(mlc.jit(models.MODELS[name]).lower(PARAMS[name], mlc.spec("f32[64,64]")).compile(), stages=("optimized", "kernels", "memory"))
