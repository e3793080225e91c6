"""The persistent cache: right or empty, whatever happens to its folder; and quiet about it."""

import errno
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
import warnings

import pytest

from mlc.cache import store
from mlc.cache.store import Cache, CacheWarning, cache_key, default_cache, default_directory
from mlc.core import fingerprint
from mlc.core.errors import OptionError
from mlc.core.options import options

DATA = bytes(range(256)) * 9


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def cache(folder):
    return Cache(folder)


@pytest.fixture(autouse=True)
def fresh_process_state():
    """Each test as in a new process: nothing warned about yet."""
    store._cache.cache_clear()
    store._warn_homeless.cache_clear()


def entry(cache: Cache) -> str:
    name, = [name for name in os.listdir(cache.directory) if not name.startswith(".")]
    return os.path.join(cache.directory, name)


def run(code: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)], env={**os.environ, **environment},
                          capture_output=True, timeout=120)


# ------------------------------------------------------------------------------------------------ what it is for
def test_what_was_put_is_got_in_this_process_and_the_next(cache):
    assert cache.get("key") is None
    assert cache.put("key", DATA)
    assert cache.get("key") == DATA
    assert Cache(cache.directory).get("key") == DATA
    output = run("import sys\nfrom mlc.cache.store import Cache\nsys.stdout.buffer.write(Cache(sys.argv[1]).get('key'))", cache.directory)
    assert output.stdout == DATA


def test_keys_do_not_mix(cache):
    keys = ["", "a", "A", "a\n", "é", "\udce9", "x" * 100_000, "../../etc/passwd"]
    for key in keys:
        cache.put(key, repr(key).encode())
    assert [cache.get(key) for key in keys] == [repr(key).encode() for key in keys]
    assert all(len(name) == 69 for name in os.listdir(cache.directory))


def test_a_second_put_replaces_the_first(cache):
    cache.put("k", b"one")
    cache.put("k", b"two")
    assert cache.get("k") == b"two" and len(os.listdir(cache.directory)) == 1


def test_empty_data_is_data(cache):
    cache.put("k", b"")
    assert cache.get("k") == b""


def test_folder_and_entries_are_private(cache):
    cache.put("k", DATA)
    assert stat.S_IMODE(os.stat(cache.directory).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(entry(cache)).st_mode) == 0o600


def test_statistics_count_what_happened(cache):
    cache.get("k")
    cache.put("k", DATA)
    cache.get("k")
    cache.get("k")
    info = cache.info()
    assert (info["hits"], info["misses"], info["damaged"], info["writes"], info["entries"]) == (2, 1, 0, 1, 1)
    assert info["bytes"] == os.path.getsize(entry(cache)) and info["directory"] == cache.directory


def test_clear_removes_entries_and_nothing_else(cache, folder):
    cache.put("a", DATA)
    cache.put("b", DATA)
    (folder / "notes.txt").write_text("mine")
    (folder / ".tmp-1-0123456789abcdef").write_text("half")
    assert cache.clear() == 2
    assert os.listdir(folder) == ["notes.txt"] and cache.get("a") is None


def test_a_cache_without_a_folder_stores_nothing():
    nothing = Cache(None)
    assert not nothing.enabled and not nothing.put("k", DATA) and nothing.get("k") is None and nothing.clear() == 0
    assert nothing.info()["entries"] == 0


# ------------------------------------------------------------------------------------------------ damage
def test_truncation_at_any_length_is_a_miss(cache):
    cache.put("k", DATA)
    path = entry(cache)
    whole = open(path, "rb").read()
    with pytest.warns(CacheWarning, match="damaged"):
        for length in [*range(0, 70), *range(70, len(whole), 61), len(whole) - 1]:
            with open(path, "wb") as file:
                file.write(whole[:length])
            assert cache.get("k") is None
    assert cache.info()["damaged"] == cache.counters.damaged > 70
    cache.put("k", DATA)
    assert cache.get("k") == DATA


def test_any_flipped_byte_is_a_miss(cache):
    cache.put("k", DATA)
    path = entry(cache)
    whole = bytearray(open(path, "rb").read())
    with pytest.warns(CacheWarning):
        for at in [*range(0, 80), *range(80, len(whole), 53)]:
            if 12 <= at < 16:  # zeros kept for later formats
                continue
            whole[at] ^= 0x10
            with open(path, "wb") as file:
                file.write(whole)
            assert cache.get("k") is None, at
            whole[at] ^= 0x10


def test_bytes_after_the_end_are_damage(cache):
    cache.put("k", DATA)
    with open(entry(cache), "ab") as file:
        file.write(b"x")
    with pytest.warns(CacheWarning):
        assert cache.get("k") is None


def test_another_keys_entry_under_this_name_is_a_miss(cache, tmp_path):
    other = Cache(tmp_path / "other")
    cache.put("k", DATA)
    other.put("else", b"wrong")
    shutil.copy(entry(other), entry(cache))
    with pytest.warns(CacheWarning):
        assert cache.get("k") is None


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink("/etc/passwd", path), lambda path: os.symlink(path, path),
                                  lambda path: os.symlink("/dev/zero", path)], ids=["folder", "fifo", "link", "loop", "endless"])
def test_something_else_in_an_entrys_place_is_a_miss(cache, make):
    cache.put("k", DATA)
    path = entry(cache)
    os.unlink(path)
    make(path)
    with pytest.warns(CacheWarning):
        assert cache.get("k") is None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cache.put("k", DATA)


def test_an_entry_that_others_could_write_is_not_trusted(cache):
    cache.put("k", DATA)
    os.chmod(entry(cache), 0o666)
    with pytest.warns(CacheWarning, match="user"):
        assert cache.get("k") is None


def test_damage_is_warned_about_once_with_folder_and_setting(cache):
    for key in "abc":
        cache.put(key, DATA)
    for name in os.listdir(cache.directory):
        with open(os.path.join(cache.directory, name), "wb"):
            pass
    with pytest.warns(CacheWarning) as caught:
        assert [cache.get(key) for key in "abc"] == [None] * 3
    assert len(caught) == 1 and cache.counters.damaged == 3
    assert cache.directory in str(caught[0].message) and "MLC_CACHE_DIR" in str(caught[0].message)


def test_a_hit_that_turned_out_unusable_counts_as_damage(cache):
    cache.put("k", DATA)
    cache.get("k")
    with pytest.warns(CacheWarning, match="no such symbol"):
        cache.refuse("k", "no such symbol")
    assert (cache.counters.hits, cache.counters.damaged) == (0, 1)


# ------------------------------------------------------------------------------------------------ several at once
def test_a_writer_killed_half_way_leaves_no_entry_and_its_file_is_cleaned_later(cache):
    killed = run("""
        import os, signal, sys
        from mlc.cache.store import Cache
        os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        Cache(sys.argv[1]).put('k', b'x' * 5000)
    """, cache.directory)
    assert killed.returncode == -signal.SIGKILL
    left, = os.listdir(cache.directory)
    assert left.startswith(".tmp-") and cache.get("k") is None and cache.info()["entries"] == 0
    cache.put("other", DATA)
    assert os.path.exists(os.path.join(cache.directory, left))  # it might belong to a living writer
    os.utime(os.path.join(cache.directory, left), (0, 0))
    Cache(cache.directory).put("another", DATA)
    assert not os.path.exists(os.path.join(cache.directory, left))


WRITER = """
    import sys, warnings
    from mlc.cache.store import Cache
    warnings.simplefilter('error')
    cache, name, rounds = Cache(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    for i in range(rounds):
        key = f'key{i % 7}'
        cache.put(key, (key + name).encode() * (1 + i % 50) * 20)
        found = cache.get(key)
        assert found is None or found.startswith(key.encode()) and len(set(found[at:at + 6] for at in range(0, len(found), 6))) <= 1, found
    print(cache.counters.damaged)
"""


def start(code: str, *arguments: object) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_processes_that_write_the_same_keys_read_whole_entries(cache):
    writers = [start(WRITER, cache.directory, f"p{n}", 300) for n in range(3)]
    for writer in writers:
        output, errors = writer.communicate(timeout=100)
        assert output == b"0\n", errors
    assert cache.info()["entries"] == 7


def test_a_folder_wiped_while_it_is_used_costs_only_misses(cache):
    writers = [start(WRITER, cache.directory, f"p{n}", 400) for n in range(2)]
    while any(writer.poll() is None for writer in writers):
        shutil.rmtree(cache.directory, ignore_errors=True)
        time.sleep(0.001)
    for writer in writers:
        output, errors = writer.communicate(timeout=100)
        assert output == b"0\n", errors


def test_threads_share_a_cache(cache):
    wrong = []

    def work(name: str) -> None:
        for i in range(100):
            cache.put(f"{i % 5}", f"{i % 5}".encode() * 100)
            if cache.get(f"{i % 5}") not in (None, f"{i % 5}".encode() * 100):
                wrong.append(i)
    threads = [threading.Thread(target=work, args=(str(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and cache.counters.damaged == 0


# ------------------------------------------------------------------------------------------------ bounded size
def test_least_recently_used_entries_go_first(folder):
    cache = Cache(folder, max_bytes=10_000)
    for i in range(6):
        cache.put(f"k{i}", bytes(1500))
        path = cache._path(f"k{i}")
        os.utime(path, (1000 + i, 1000 + i))
    assert cache.get("k0") is not None  # used again: now the youngest
    cache.put("k6", bytes(1500))
    assert cache.info()["bytes"] <= 10_000 and cache.counters.evicted >= 1
    assert cache.get("k0") is not None and cache.get("k6") is not None and cache.get("k1") is None


def test_entries_of_other_processes_count_too(folder):
    first, second = Cache(folder, max_bytes=20_000), Cache(folder, max_bytes=20_000)
    for i in range(100):
        (first if i % 2 else second).put(f"k{i}", bytes(1000))
    first.put("last", b"")
    assert first.info()["bytes"] <= 40_000  # each notices the other at its next count
    for i in range(store._RESCAN_WRITES):
        first.put(f"again{i}", bytes(100))
    assert first.info()["bytes"] <= 20_000


def test_data_larger_than_the_bound_is_not_stored(folder):
    cache = Cache(folder, max_bytes=1000)
    assert not cache.put("k", bytes(2000)) and cache.info()["entries"] == 0


# ------------------------------------------------------------------------------------------------ folders that cannot be used
def _plain_file(path):
    path.write_text("not a folder")


def _open_to_all(path):
    path.mkdir()
    path.chmod(0o777)


def _readable_by_others(path):
    path.mkdir()
    path.chmod(0o755)


def _read_only(path):
    path.mkdir()
    path.chmod(0o500)


def _write_only(path):
    path.mkdir()
    path.chmod(0o222)


def _below_a_file(path):
    path.parent.joinpath("file").write_text("")
    path.symlink_to(path.parent / "file" / "cache")


def _dangling(path):
    path.symlink_to(path)


UNUSABLE = [_plain_file, _open_to_all, _readable_by_others, _read_only, _write_only, _below_a_file, _dangling]


@pytest.mark.parametrize("spoil", UNUSABLE)
def test_an_unusable_default_folder_means_one_warning_and_no_cache(tmp_path, monkeypatch, spoil):
    monkeypatch.delenv("MLC_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    spoil(tmp_path / "mlc")
    with pytest.warns(CacheWarning) as caught:
        for _ in range(3):
            cache = default_cache()
            assert not cache.put("k", DATA) and cache.get("k") is None
    assert len(caught) == 1
    assert str(tmp_path / "mlc") in str(caught[0].message) and "MLC_CACHE_DIR" in str(caught[0].message)


@pytest.mark.parametrize("spoil", UNUSABLE)
def test_an_unusable_folder_that_the_user_named_is_an_error(tmp_path, monkeypatch, spoil):
    spoil(tmp_path / "named")
    monkeypatch.setenv("MLC_CACHE_DIR", str(tmp_path / "named"))
    for _ in range(2):
        with pytest.raises(OptionError, match="MLC_CACHE_DIR") as error:
            default_cache()
    assert str(tmp_path / "named") in str(error.value)


def test_a_null_byte_in_the_path_is_an_error_or_a_warning():
    with pytest.raises(OptionError):
        Cache("a\0b", explicit=True)
    with pytest.warns(CacheWarning):
        assert not Cache("a\0b").enabled


def test_a_folder_of_another_user_is_refused(folder, monkeypatch):
    folder.mkdir(0o700)
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    with pytest.raises(OptionError, match="belongs to another user"):
        Cache(folder, explicit=True)


def test_a_folder_that_is_not_readable_is_refused(folder, monkeypatch):
    folder.mkdir(0o700)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may read everything
    with pytest.raises(OptionError, match="not readable"):
        Cache(folder, explicit=True)


def test_a_read_only_file_system_is_used_for_what_it_holds(folder, monkeypatch):
    Cache(folder, explicit=True).put("k", DATA)
    opened = os.open

    def read_only(path, flags, *mode, **more):
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, "Read-only file system")
        return opened(path, flags, *mode, **more)
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    monkeypatch.setattr(os, "open", read_only)
    cache = Cache(folder, explicit=True)
    assert cache.get("k") == DATA
    with pytest.warns(CacheWarning, match="not written: Read-only file system") as caught:
        assert not cache.put("new", DATA) and not cache.put("other", DATA)
    assert len(caught) == 1


def test_damage_stops_no_program_that_turns_warnings_into_errors(cache, capsys):
    cache.put("k", DATA)
    with open(cache._path("k"), "wb") as file:
        file.write(b"damaged")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.get("k") is None
    assert "CacheWarning: " in capsys.readouterr().err
    assert cache.put("k", DATA) and cache.get("k") == DATA


def test_missing_parents_are_made(tmp_path):
    cache = Cache(tmp_path / "a" / "b" / "c", explicit=True)
    assert cache.put("k", DATA) and cache.get("k") == DATA


def test_a_full_disk_means_one_warning_and_no_entry(cache, monkeypatch):
    def full(handle):
        raise OSError(28, "No space left on device")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(CacheWarning, match="No space left") as caught:
        assert not cache.put("a", DATA) and not cache.put("b", DATA)
    assert len(caught) == 1 and os.listdir(cache.directory) == [] and cache.counters.errors == 2


def test_a_write_that_stops_in_the_middle_leaves_no_entry(cache):
    output = run("""
        import os, resource, sys, warnings
        from mlc.cache.store import Cache
        warnings.simplefilter('ignore')
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))
        cache = Cache(sys.argv[1])
        print(cache.put('k', bytes(100_000)), cache.get('k'), os.listdir(sys.argv[1]))
    """, cache.directory)
    assert output.stdout == b"False None []\n", output.stderr
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 3000


# ------------------------------------------------------------------------------------------------ where it is
def test_the_default_folder_follows_xdg_then_home(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/xdg")
    assert default_directory() == "/var/xdg/mlc"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_directory() == "/home/someone/.cache/mlc"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_directory() == "/home/someone/.cache/mlc"


def test_without_a_home_there_is_one_warning_and_no_cache(monkeypatch):
    for name in ("HOME", "XDG_CACHE_HOME", "MLC_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.warns(CacheWarning, match="HOME") as caught:
        for _ in range(3):
            assert not default_cache().put("k", DATA)
    assert len(caught) == 1


def test_a_home_that_cannot_be_written_means_one_warning_and_no_cache(tmp_path, monkeypatch):
    (tmp_path / "home").write_text("a file")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("MLC_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with pytest.warns(CacheWarning) as caught:
        assert not default_cache().enabled and not default_cache().enabled
    assert len(caught) == 1


def test_options_choose_the_folder_and_switch_the_cache_off(tmp_path, monkeypatch):
    monkeypatch.setenv("MLC_CACHE_DIR", str(tmp_path / "env"))
    assert default_cache().directory == str(tmp_path / "env") and default_cache() is default_cache()
    with options(cache_dir=str(tmp_path / "option"), cache_max_mb=3):
        assert default_cache().directory == str(tmp_path / "option") and default_cache().max_bytes == 3 << 20
    with options(cache=False):
        assert not default_cache().enabled
    monkeypatch.setenv("MLC_CACHE", "0")
    assert not default_cache().enabled


@pytest.mark.parametrize("name", ["a b/é中", "{x}", "ORG\\user", "%s", "a'b\"c"])
@pytest.mark.parametrize("environment", [{}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}], ids=["utf8", "C"])
def test_unusual_paths_work_in_every_locale(tmp_path, name, environment):
    code = """
        from mlc.cache.store import default_cache
        cache = default_cache()
        assert cache.put('\\xe9', b'data') and cache.get('\\xe9') == b'data'
        print(ascii(cache.info()['entries']))
    """
    assert run(code, MLC_CACHE_DIR=str(tmp_path / name), **environment).stdout == b"1\n"
    assert len(os.listdir(tmp_path / name)) == 1


def test_damage_in_an_unusual_path_is_a_warning_in_every_locale(tmp_path):
    folder = tmp_path / "é中 {x} %s"
    cache = Cache(folder)
    cache.put("k", DATA)
    open(entry(cache), "wb").close()
    code = "from mlc.cache.store import default_cache\nprint(default_cache().get('k'))"
    for environment in ({}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}):
        output = run(code, MLC_CACHE_DIR=str(folder), **environment)
        assert output.stdout == b"None\n" and b"CacheWarning" in output.stderr


# ------------------------------------------------------------------------------------------------ keys
BASE = {"graph": "graph @f() {}", "pipeline": "simplify v1; fuse v3", "target": "triple=x;cpu=y", "tuning": "none", "extra": [1]}


def key(**changes: object) -> str:
    return cache_key(**{**BASE, **changes})


@pytest.mark.parametrize("changes", [{"graph": "graph @g() {}"}, {"pipeline": "simplify v2; fuse v3"}, {"target": "triple=x;cpu=z"},
                                     {"tuning": "tile 8x48"}, {"extra": [True]}, {"extra": [1.0]}])
def test_a_changed_part_changes_the_key(changes):
    assert key(**changes) != key()


@pytest.mark.parametrize("changes", [{"target": "generic"}, {"disable_passes": "fuse"}, {"pass_limit": 3}, {"backend": "interpreter"}, {"check": 1}])
def test_an_option_that_affects_code_changes_the_key(changes):
    with options(**changes):
        changed = key()
    assert changed != key()


def test_an_option_that_does_not_affect_code_leaves_the_key_alone():
    with options(dump="/tmp/x", threads=2, cache_max_mb=7):
        changed = key()
    assert changed == key()


def test_a_changed_source_or_version_changes_the_key(monkeypatch):
    before = key()
    monkeypatch.setattr(store, "sources_fingerprint", lambda: "other sources")
    other_sources = key()
    monkeypatch.undo()
    keys = [before, other_sources]
    for name in ("mlc", "llvmlite", "llvm"):
        monkeypatch.setattr(store, "versions", lambda name=name: {**fingerprint.versions(), name: "99"})
        keys.append(key())
    monkeypatch.undo()
    assert len(set(keys)) == 5 and key() == before


def test_keys_are_the_same_in_every_process(monkeypatch):
    monkeypatch.setattr(store, "sources_fingerprint", lambda: "sources")  # they may change while tests run in a developer's tree
    code = f"from mlc.cache import store\nstore.sources_fingerprint = lambda: 'sources'\nprint(store.cache_key(**{BASE!r}))"
    assert {run(code, PYTHONHASHSEED=seed).stdout.decode().strip() for seed in ("0", "5")} == {key()}


def test_a_key_of_another_option_misses(cache):
    cache.put(key(), b"code")
    with options(pass_limit=2):
        assert cache.get(key()) is None
    assert cache.get(key()) == b"code"
