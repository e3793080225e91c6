"""Options: defaults, environment, blocks; refusals; what belongs to a cache key."""

import concurrent.futures

import pytest

import mlc
from mlc.core import options as opt
from mlc.core.errors import OptionError, OptionWarning


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name in opt.OPTIONS:
        monkeypatch.delenv("MLC_" + name.upper(), raising=False)


def test_defaults_environment_blocks_in_that_order(monkeypatch):
    assert opt.get("check") == 0
    monkeypatch.setenv("MLC_CHECK", "1")
    assert opt.get("check") == 1
    with opt.options(check=2, threads=3):
        assert (opt.get("check"), opt.get("threads")) == (2, 3)
        with opt.options(check=0):
            assert (opt.get("check"), opt.get("threads")) == (0, 3)
        assert opt.get("check") == 2
    assert (opt.get("check"), opt.get("threads")) == (1, 1)


def test_a_block_ends_when_it_raises():
    with pytest.raises(RuntimeError), opt.options(check=2):
        raise RuntimeError
    assert opt.get("check") == 0


def test_an_empty_variable_counts_as_unset(monkeypatch):
    monkeypatch.setenv("MLC_THREADS", "")
    assert opt.get("threads") == 1


@pytest.mark.parametrize("name, value", [("check", 3), ("check", -1), ("check", "x"), ("check", 1.5), ("threads", 0), ("threads", None),
                                         ("target", "avx9"), ("cache", "maybe"), ("pass_limit", 0), ("limit", -2), ("backend", "gpu")])
def test_values_out_of_range_are_refused(name, value, monkeypatch):
    with pytest.raises(OptionError, match=name), opt.options(**{name: value}):
        pass
    monkeypatch.setenv("MLC_" + name.upper(), str(value))
    with pytest.raises(OptionError, match="MLC_" + name.upper()):
        opt.get(name)


def test_unknown_names_are_refused_with_the_list():
    with pytest.raises(OptionError, match="unknown option 'chekc'; known: backend, bf16_pairs, cache"), opt.options(chekc=1):
        pass


@pytest.mark.parametrize("value, want", [(True, True), (False, False), (1, True), (0, False), ("on", True), ("OFF", False), ("true", True),
                                         ("0", False)], ids=repr)
def test_flags(value, want):
    with opt.options(cache=value):
        assert opt.get("cache") is want


def test_a_block_is_local_to_its_thread():
    with opt.options(check=2), concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert pool.submit(opt.get, "check").result() == 0


def test_what_changes_code_is_in_the_key():
    with opt.options(disable_passes="cse", limit=7, check=2, threads=2, cache=False, dump="/tmp/x"):
        key = opt.affecting_code()
    assert key["disable_passes"] == "cse" and key["limit"] == 7 and key["check"] == 2
    assert not {"threads", "cache", "cache_dir", "dump"} & key.keys(), "these never change the code"


def test_every_option_has_a_default_in_range_and_a_help_text():
    for name, option in opt.OPTIONS.items():
        assert option.convert(option.default) == option.default, name
        assert option.help and name == name.lower()


def test_an_unknown_variable_is_warned_of_once_with_the_nearest_known_one(monkeypatch):
    monkeypatch.setattr(opt, "_warned", set())
    monkeypatch.setenv("MLC_CHEK", "2")
    monkeypatch.setenv("MLC_WHATEVER_IT_WAS", "1")
    monkeypatch.setenv("MLC_THREADS", "1")
    monkeypatch.setenv("MLC_FUZZ_TIMEOUT", "5")
    first, second = opt.unknown_variables()
    assert first == "the environment variable MLC_CHEK is unknown to mlc and ignored; did you mean MLC_CHECK?"
    assert "MLC_WHATEVER_IT_WAS is unknown" in second and "known: MLC_CHECK, MLC_THREADS" in second
    assert list(opt.unknown_variables()) == []


def test_compiling_warns_of_unknown_variables(monkeypatch):
    monkeypatch.setattr(opt, "_warned", set())
    monkeypatch.setenv("MLC_TARGETT", "generic")
    with pytest.warns(OptionWarning, match="did you mean MLC_TARGET") as told:
        mlc.jit(lambda x: x + 1).lower(mlc.spec("f32[3]")).compile()
    assert told[0].filename == __file__, "the warning shows the user's line"
