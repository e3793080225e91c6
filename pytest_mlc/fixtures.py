"""What test suites use: the fixtures `mlc_check` and `mlc_snapshot`, the option `--mlc-golden`, and their part of the summary.

The plugin loads this file in every session, so it imports nothing of mlc until a fixture is asked for.
"""

from __future__ import annotations

import shlex
import sys

import pytest

_taken = pytest.StashKey[list]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("mlc", "mlc: compiled models against JAX")
    group.addoption("--mlc-golden", choices=("check", "update"), default="check",
                    help="compare IR snapshots with golden/ (check), or rewrite those that the selected tests take (update)")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Summary(config), "mlc-summary")


@pytest.fixture
def mlc_check():
    """`mlc_check(model, *args, **kwargs)`: run a function with mlc and with JAX, compare the answers under the derived bound."""
    from pytest_mlc.check import compare
    return compare


@pytest.fixture
def mlc_snapshot(request: pytest.FixtureRequest):
    """`mlc_snapshot(exe, stages=("optimized", "kernels", "memory"), name="")`: compare the stages' text with `golden/`.

    For the duration of the test, mlc compiles for the fixed target golden-v3, with one thread, without cache, and runs what
    it compiled in the interpreter.
    """
    from pytest_mlc import golden
    item, config = request.node, request.config
    parameters = item.callspec.id if hasattr(item, "callspec") else ""
    classes = [node.name for node in item.listchain() if isinstance(node, pytest.Class)]
    snapshots = golden.Snapshots(
        config.rootpath, item.path, golden.test_name(classes, getattr(item, "originalname", item.name), parameters),
        # Not the item's own id: xdist appends the name of its group to that.
        update=config.getoption("--mlc-golden") == "update", rerun=shlex.quote(f"{item.parent.nodeid}::{item.name}"))

    def snapshot(compiled: object, stages=golden.STAGES, name: str = "") -> None:
        __tracebackhide__ = True
        try:
            problems = snapshots.take(compiled, stages, name)
        except golden.GoldenError as error:
            pytest.fail(f"mlc-golden: {error}", pytrace=False)
        if problems:
            pytest.fail("\n".join(problems), pytrace=False)

    with golden.golden_options():
        yield snapshot
    item.stash[_taken] = [path.relative_to(config.rootpath).as_posix() for path in snapshots.taken]


# --------------------------------------------------------------------------- the summary
class Summary:
    """What the session's reports say: golden files looked at, notes of checks, and which test files ran in part only.

    Reports travel from xdist's workers to the controller, so what a test leaves is carried by its reports.
    """

    def __init__(self, config: pytest.Config):
        self.config = config
        self.golden: set[str] = set()
        self.folders: dict[str, str] = {}  # a module's golden folder -> its test file
        self.partial: set[str] = set()
        self.notes: list[tuple[str, str]] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo):
        report = yield
        check = sys.modules.get("pytest_mlc.check")
        if check and check.NOTES:
            report.mlc_notes = check.NOTES[:]
            check.NOTES.clear()
        if call.when == "teardown" and _taken in item.stash:
            report.mlc_golden = item.stash[_taken]
        return report

    def pytest_deselected(self, items) -> None:
        self.partial.update(item.nodeid.partition("::")[0] for item in items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        module = report.nodeid.partition("::")[0]
        self.notes += [(report.nodeid, note) for note in getattr(report, "mlc_notes", ())]
        for path in getattr(report, "mlc_golden", ()):
            self.golden.add(path)
            self.folders[path.rpartition("/")[0]] = module
        if not report.passed:
            self.partial.add(module)

    def pytest_terminal_summary(self, terminalreporter) -> None:
        if self.notes:
            terminalreporter.section("mlc notes", sep="-")
            for test, note in self.notes:
                terminalreporter.line(f"{test}: {note}")
        stray = self._stray()
        if stray:
            terminalreporter.section("mlc golden files that no test took", sep="-")
            for path in stray:
                terminalreporter.line(path)

    def _stray(self) -> list[str]:
        """Golden files of test files of which every test ran, took snapshots and passed. Workers see deselection, a controller doesn't."""
        whole = {folder for folder, module in self.folders.items() if module not in self.partial}
        if not whole or self.config.getoption("dist", "no") != "no" or any("::" in argument for argument in self.config.args):
            return []
        from pytest_mlc import golden
        return [path for path in golden.stray_files(self.config.rootpath, self.golden) if path.rpartition("/")[0] in whole]
