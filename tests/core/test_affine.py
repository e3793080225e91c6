"""Affine forms: one normal form, however they were made."""

import random

import pytest

from mlc.core.affine import ZERO, Affine, variable

NAMES = ("i", "j", "k")


def draw(r: random.Random) -> Affine:
    return Affine(r.randint(-3, 3), [(v, r.randint(-2, 2)) for v in r.sample(NAMES, r.randint(0, 3))])


@pytest.mark.parametrize("seed", range(50))
def test_every_operation_gives_the_normal_form_of_its_value(seed):
    r = random.Random(seed)
    a, b, values = draw(r), draw(r), {v: draw(r) for v in r.sample(NAMES, 2)}
    at = {v: r.randint(-50, 50) for v in NAMES}
    inner = {v: values[v].evaluate(at) if v in values else at[v] for v in NAMES}
    factor = r.randint(-2, 2)
    for form, want in ((a + b, a.evaluate(at) + b.evaluate(at)), (a + 5, a.evaluate(at) + 5), (a * factor, a.evaluate(at) * factor),
                       (a.without("i"), a.evaluate({**at, "i": 0})), (a.substitute(values), a.evaluate(inner))):
        assert form.evaluate(at) == want
        again = Affine(form.offset, reversed(form.terms))
        assert again == form and hash(again) == hash(form) and all(c for _, c in form.terms)


def test_forms_that_cancel_are_zero():
    i = variable("i")
    assert i + i * -1 == ZERO == i * 0 == Affine(0, {"i": 0}) and ZERO.terms == ()
