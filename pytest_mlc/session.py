"""The fuzz campaign as a part of a pytest session: options, the items that run it, and its place in the summary.

Loaded in every session, so it imports nothing of mlc until one of its options is used.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from pytest_mlc.owners import owners_of

TALLY = "mlc_fuzz_tally"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("mlc")
    add = group.addoption
    add("--mlc-fuzz", action="store_true", default=False, help="run mlc's fuzz campaign against JAX: the stored cases, then fresh graphs until the "
        "budget ends; other tests are deselected; with -x it ends at the first failing case")
    add("--mlc-fuzz-budget", metavar="TIME|N", default="60s", help="wall time (60s, 30m, 2h) or a number of graphs over all workers; default 60s")
    add("--mlc-fuzz-seed", metavar="N", type=int, default=None, help="seed of the campaign; drawn and printed when not given")
    add("--mlc-fuzz-shard", metavar="I/N", default="1/1", help="explore part I of N; shards explore different graphs")
    add("--mlc-fuzz-ops", metavar="A,B", default=None, help="only these ops")
    add("--mlc-fuzz-dtypes", metavar="A,B", default=None, help="only these dtypes")
    add("--mlc-fuzz-corpus", metavar="DIR", default=None, help="where failing graphs are kept and stored ones are read; default tests/mlc_corpus")
    add("--mlc-fuzz-replay", metavar="FILE", default=None, help="replay one stored failure and nothing else")
    add("--mlc-fuzz-report", metavar="DIR", default=None, help="write summary.json and one folder per failure here")


def pytest_configure(config: pytest.Config) -> None:
    owners = owners_of("mlc")
    if len(owners) > 1:
        raise pytest.UsageError(f"two installed distributions own the package `mlc`: {' and '.join(owners)}. What one installs, "
                                "the other overwrites; uninstall both and install the one you mean")
    if config.getoption("--mlc-fuzz") or config.getoption("--mlc-fuzz-replay") is not None:
        config.pluginmanager.register(FuzzSession(config, _settings(config)), "mlc-fuzz")
        # Other tests are deselected, so one that cannot be imported must not stop the campaign.
        config.option.continue_on_collection_errors = True


def _settings(config: pytest.Config):
    """The campaign's settings. UsageError for a value that cannot be used, or without JAX."""
    from pytest_mlc import settings as made
    from pytest_mlc.reference import available
    if not available():
        raise pytest.UsageError("--mlc-fuzz compares mlc with JAX, and JAX is not installed here: pip install 'mlc-compiler[test]' or 'jax'")
    worker = getattr(config, "workerinput", {})
    root = config.rootpath
    seed = config.getoption("--mlc-fuzz-seed")
    seed = worker.get("mlc_fuzz_seed", random.SystemRandom().randrange(2**32) if seed is None else seed)

    def folder(option: str, default: str | None) -> Path | None:
        given = config.getoption(option)
        return config.invocation_params.dir / given if given else (root / default if default else None)
    try:
        seconds, graphs = made.parse_budget(config.getoption("--mlc-fuzz-budget"))
        ops, dtypes = made.parse_ops(config.getoption("--mlc-fuzz-ops")), made.parse_dtypes(config.getoption("--mlc-fuzz-dtypes"))
        made.require_pairs(ops, dtypes)
        made.timeout()
        if config.getoption("--mlc-fuzz-replay") == "":
            raise made.SettingError("--mlc-fuzz-replay: give the file of a stored case")
        replay, report = folder("--mlc-fuzz-replay", None), folder("--mlc-fuzz-report", None)
        corpus = folder("--mlc-fuzz-corpus", made.DEFAULT_CORPUS)
        made.require_case(replay)
        made.require_folder("--mlc-fuzz-corpus", corpus)
        made.require_folder("--mlc-fuzz-report", report)
        return made.Settings(
            seed=seed, seconds=seconds, graphs=graphs, shard=made.parse_shard(config.getoption("--mlc-fuzz-shard")),
            stream=(int(worker.get("workerid", "gw0")[2:]), int(worker.get("workercount", 1))),
            ops=ops, dtypes=dtypes, root=root, corpus=corpus, report=report, replay=replay, stop=config.getoption("maxfail") == 1)
    except made.SettingError as error:
        raise pytest.UsageError(str(error)) from None


class FuzzFailure(Exception):
    """Carries the texts of the failures to the report."""


class FuzzItem(pytest.Item):
    """One part of the campaign: "stored" cases, "fresh" graphs, or one "replay"."""

    def __init__(self, *, part: str, fuzz: FuzzSession, **kwargs) -> None:
        super().__init__(**kwargs)
        self.part, self.fuzz = part, fuzz

    def runtest(self) -> None:
        campaign, settings = self.fuzz.campaign, self.fuzz.settings
        try:
            failures = campaign.run_fresh() if self.part == "fresh" else campaign.run_stored(self.fuzz.stored(), exact=settings.replay is not None)
        except KeyboardInterrupt:
            self.fuzz.count(self.nodeid, campaign.take_tally())  # an interrupted item makes no report
            raise
        finally:
            self.stash[_tally] = campaign.take_tally().dumps()
        if failures:
            raise FuzzFailure("\n\n".join(f.text for f in failures))

    def repr_failure(self, excinfo, style=None):
        if excinfo.errisinstance(FuzzFailure):
            return str(excinfo.value)
        from pytest_mlc.child import ChildError
        if excinfo.errisinstance(ChildError):  # a child that cannot even start
            return f"mlc-fuzz: {excinfo.value}\n{excinfo.value.log}"
        return super().repr_failure(excinfo, style)

    def reportinfo(self):
        return self.path, None, self.name


_tally = pytest.StashKey[str]()


_TEST = re.compile(r"^[ \t]*(?:async )?def (test\w*)", re.M)


class UnreadTest(pytest.Item):
    """A test function that is only there to be deselected."""

    def runtest(self) -> None:
        raise AssertionError("deselected")


class UnreadModule(pytest.File):
    """A file of tests that is not imported: its functions are what its text defines."""

    def collect(self) -> list[pytest.Item]:
        text = self.path.read_text(encoding="utf-8", errors="replace")
        return [UnreadTest.from_parent(self, name=name) for name in dict.fromkeys(_TEST.findall(text))]


class FuzzSession:
    """The plugin of a session that fuzzes. In xdist's controller it only adds up; in workers and alone it runs.

    Collecting the tests only to deselect them takes longer than starting the campaign: where the ini file's `testpaths` say what there is
    (nobody named a file), their functions are counted in the files' texts instead.
    """

    def __init__(self, config: pytest.Config, settings) -> None:
        self.config, self.settings = config, settings
        self.parts: dict = {}
        self._campaign = None
        self.uncollected = getattr(config, "workerinput", {}).get("mlc_fuzz_uncollected", config.args_source is pytest.Config.ArgsSource.TESTPATHS)

    @property
    def campaign(self):
        if self._campaign is None:
            from pytest_mlc.fuzz import Campaign
            self._campaign = Campaign(self.settings)
        return self._campaign

    def stored(self) -> list[Path]:
        """The stored cases of this process: those of the corpus whose turn it is, or the one to replay."""
        from pytest_mlc import corpus
        if self.settings.replay is not None:
            return [self.settings.replay]
        k, workers = self.settings.stream
        return [path for n, path in enumerate(corpus.entries(self.settings.corpus)) if n % workers == k]

    def count(self, part: str, tally) -> None:
        """Add what one process counted in one part."""
        if part in self.parts:
            self.parts[part].add(tally)
        else:
            self.parts[part] = tally

    def total(self):
        """All parts of all workers together: workers run side by side, parts one after the other."""
        from pytest_mlc.tally import Tally
        total = Tally(seed=self.settings.seed)
        for part in self.parts.values():
            total.add(part)
        total.seconds = sum(part.seconds for part in self.parts.values())
        return total

    # ----------------------------------------------------------------- hooks
    def pytest_report_header(self) -> str:
        s = self.settings
        if s.replay is not None:
            return f"mlc-fuzz: replaying {s.shown(s.replay)}"
        budget = f"{s.graphs} graphs" if s.graphs is not None else f"{s.seconds:g} s"
        return f"mlc-fuzz: seed {s.seed}, budget {budget}, shard {s.shard[0]}/{s.shard[1]}, corpus {s.shown(s.corpus)}"

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makemodule(self, module_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        return UnreadModule.from_parent(parent, path=module_path) if self.uncollected else None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
        if items:
            config.hook.pytest_deselected(items=items[:])
        parts = ["replay"] if self.settings.replay is not None else ["stored", "fresh"]
        items[:] = [FuzzItem.from_parent(session, name=f"mlc-fuzz {part}", nodeid=f"mlc-fuzz::{part}", part=part, fuzz=self) for part in parts]

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node) -> None:
        """xdist: all workers use the controller's seed, and collect what it would."""
        node.workerinput["mlc_fuzz_seed"] = self.settings.seed
        node.workerinput["mlc_fuzz_uncollected"] = self.uncollected

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log):
        """xdist: every worker runs every part; within a part it knows its share."""
        from xdist.scheduler import EachScheduling
        return EachScheduling(config, log)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo):
        report = yield
        if call.when == "call" and _tally in item.stash:
            setattr(report, TALLY, item.stash[_tally])
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if hasattr(report, TALLY):
            from pytest_mlc.tally import Tally
            self.count(report.nodeid, Tally.loads(getattr(report, TALLY)))

    def pytest_terminal_summary(self, terminalreporter) -> None:
        terminalreporter.section("mlc-fuzz", sep="=")
        for line in self.total().lines():
            terminalreporter.line(line)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._campaign is not None:
            self._campaign.close()
        if self.settings.report is not None and not hasattr(self.config, "workerinput"):
            import json

            from pytest_mlc.corpus import write_text
            write_text(self.settings.report / "summary.json", json.dumps(self.total().summary(), indent=1) + "\n")
