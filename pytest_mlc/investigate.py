"""From a failing case to what a person needs: guilty level, smallest graph, stored case, script, and the text that is printed."""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pytest_mlc import corpus, repro
from pytest_mlc.blame import Blame, blame
from pytest_mlc.child import ChildError
from pytest_mlc.corpus import Case
from pytest_mlc.executor import CARRIED, TIMEOUT, Compiler, Outcome, options_of
from pytest_mlc.oracle import Verdict, judge
from pytest_mlc.reduce import cut_sizes, reduce_case, threshold
from pytest_mlc.reference import Reference
from pytest_mlc.service import run_request
from pytest_mlc.settings import Settings
from pytest_mlc.tally import Failure
from pytest_mlc.variants import VARIANTS

CACHE = "cache"
# What a variant that gave other bits accuses, when no level is wrong by itself.
ACCUSED = {"kernels": "loops or machine code", "loops": "machine code", "cached": "compiling again"}


@dataclass
class Failing:
    """A case with what mlc did on it; `verdict` is None unless mlc ran."""

    case: Case
    outcome: Outcome
    verdict: Verdict | None = None

    @property
    def essence(self) -> str:
        """What must stay the same while the case shrinks."""
        return "wrong" if self.outcome.kind == "ran" else self.outcome.essence


def attempt(compiler: Compiler, case: Case, **options: object) -> Failing | None:
    """Run a case as its facts say; the failure, or None when it passes (or mlc doesn't support it). `options` come on top."""
    variant = case.facts.get("variant", "")
    request = {"variant": variant if variant in VARIANTS else "", "options": {**options_of(case.facts), **options}}
    done = compiler.run(case.graph, case.args, **request)
    if case.facts.get("guilty") == CACHE and not done.failed:
        done = compiler.run(case.graph, case.args, **request)  # what the cache now holds
    if done.failed:
        return Failing(case, done)
    if done.kind == "ran":
        verdict = judge(case.graph, case.args, done.outputs)
        if verdict.failed:
            return Failing(case, done, verdict)
    return None


def _plainer(case: Case, still: Callable[[Case], bool]) -> Case:
    """The case without the options and the variant that its failure does not need."""
    for name in (*CARRIED, "variant"):
        if case.facts.get(name):
            candidate = Case(case.graph, case.args, {key: value for key, value in case.facts.items() if key != name})
            case = candidate if still(candidate) else case
    return case


class Investigator:
    """Examines failing cases one after another, within a time limit for each, and remembers which kinds it has seen."""

    SEEN_LIMIT = 3

    def __init__(self, settings: Settings, compiler: Compiler, reference: Reference | None):
        self.settings, self.compiler, self.reference = settings, compiler, reference
        self.seen: dict[tuple[str, str], list[Failure]] = {}
        self.stored: dict[str, Failure] = {}

    def examine(self, failing: Failing, seconds: float = 20.0, path: Path | None = None) -> Failure:
        """The finished failure. A third look-alike (same kind, same guilty level) is not reduced again but counted with the first.

        The reduced case goes to the corpus, unless it came from the stored file `path`; a script goes beside it, or into the report's folder.
        """
        self.compiler.stop()  # a clean process: what came before must not matter
        again = attempt(self.compiler, failing.case)
        if again and again.outcome.kind != "hang":
            # Every level is run to find the guilty one, interpreters among them, so a large case is cut first, whoever is guilty.
            begun, same = time.monotonic(), again.essence
            small = cut_sizes(again.case, lambda c: (found := attempt(self.compiler, c)) is not None and found.essence == same, seconds / 2)
            again, seconds = (attempt(self.compiler, small) or again), max(seconds / 2, seconds - (time.monotonic() - begun))
        guilty = self._blame(again) if again else Blame("unknown", detail="it does not fail again in a fresh process")
        known = self.seen.setdefault((failing.essence, guilty.guilty), [])
        if len(known) >= self.SEEN_LIMIT:
            return replace(known[0], count=1)
        if again is None:
            known.append(self._finish(failing, guilty, failing.case, "", path))
            return known[-1]

        hangs = again.outcome.kind == "hang"  # waited for once a candidate, and once for its level

        def still(candidate: Case) -> bool:
            found = attempt(self.compiler, candidate)
            return found is not None and found.essence == again.essence and (hangs or self._blame(found).guilty == guilty.guilty)
        begun = time.monotonic()
        small = reduce_case(again.case if hangs else _plainer(again.case, still), still, seconds)
        self.compiler.stop()
        last = attempt(self.compiler, small) or again
        edge = threshold(small, still) if time.monotonic() - begun < seconds else ""
        failure = self._finish(last, guilty if hangs else self._blame(last), last.case, edge, path)
        known.append(failure)
        return failure

    def _blame(self, failing: Failing) -> Blame:
        """The guilty level; where all are right, the cache if all is well without it, else the stage or variant that failed."""
        case, outcome = failing.case, failing.outcome
        hangs = outcome.kind == "hang"
        found = blame(self.compiler, case.graph, case.args, options=options_of(case.facts), timeout=TIMEOUT if hangs else 2 * TIMEOUT)
        if found.guilty != "none":
            return found
        if hangs:
            return Blame("compiling or running", detail="it does not end")
        without = Case(case.graph, case.args, {**case.facts, "guilty": ""})
        if attempt(self.compiler, without, cache=False) is None and attempt(self.compiler, without) is not None:
            return Blame(CACHE, detail="right without the persistent cache")
        if outcome.kind == "unstable":
            return Blame(ACCUSED.get(outcome.detail.partition(":")[0], "runtime"), detail=outcome.detail)
        return replace(found, guilty=outcome.stage or ("runtime" if outcome.kind == "crash" else "none"))

    # ----------------------------------------------------------------- the result
    def _finish(self, failing: Failing, guilty: Blame, case: Case, edge: str, path: Path | None) -> Failure:
        signature = path.stem if path else self._signature(failing, guilty)
        if path is None and signature in self.stored:
            return replace(self.stored[signature], count=1)  # one printed text and one stored case a signature
        failing = self._with_jax(failing)
        headline = self._headline(failing)
        stored = path or self._keep(signature, Case(case.graph, case.args, {
            **case.facts, "kind": failing.essence, "guilty": guilty.guilty, "found": headline}))
        folder = self.settings.report / stored.stem if self.settings.report else stored.parent
        script = folder / f"repro_{stored.stem}.py"
        worst = failing.verdict.worst if failing.verdict else None
        bound, at = (worst.bound, (worst.output, worst.index)) if worst else (float("inf"), (0, ()))
        corpus.write_text(script, repro.script(case, f"mlc {failing.essence}: {signature}", f"{headline}\nGuilty: {guilty}", bound, at))
        body = "".join(f"    {line}\n" for line in str(case.graph).strip().splitlines())
        types = ", ".join(dict.fromkeys(map(str, case.graph.input_types()))) or "no parameters"
        count = sum(n.op.name not in ("parameter", "constant") for n in case.graph.nodes)
        size = f"{count} node{'s' * (count != 1)}, {types}{f'; {edge}' if edge else ''}"
        text = (f"mlc-fuzz: {headline}\n  guilty: {guilty}\n  smallest: {size}\n{body}"
                f"  run again:  pytest --mlc-fuzz --mlc-fuzz-replay {self.settings.shown(stored)}\n  script:     {self.settings.shown(script)}")
        if failing.outcome.log:
            text += "\n" + "".join(f"    | {line}\n" for line in failing.outcome.log.strip().splitlines()[-12:]).rstrip()
        if self.settings.report:
            corpus.write_text(folder / "failure.txt", text + "\n")
            corpus.write(folder / f"{stored.stem}.mlc", Case(case.graph, case.args, case.facts))
        failure = Failure(signature, headline, text, self.settings.shown(stored))
        if path is None:
            self.stored[signature] = failure
        return failure

    def _keep(self, signature: str, case: Case) -> Path:
        """Stored in the corpus; on a full disk or where the folder became unwritable, under the temporary folder: nothing found is lost."""
        try:
            return corpus.keep(self.settings.corpus, signature, case)
        except OSError:
            return corpus.keep(Path(tempfile.gettempdir()) / "mlc_corpus", signature, case)

    def _signature(self, failing: Failing, guilty: Blame) -> str:
        """Six digits of a hash of what makes failures alike: kind, guilty level, the reduced graph's ops and its dtypes."""
        graph = failing.case.graph
        ops = sorted({n.op.name for n in graph.nodes} - {"parameter", "constant"})
        dtypes = sorted({t.dtype.name for t in graph.output_types()})
        return hashlib.sha256(repr((failing.essence, guilty.guilty, ops, dtypes)).encode()).hexdigest()[:6]

    def _with_jax(self, failing: Failing) -> Failing:
        """The verdict once more, with JAX's answer in it where JAX gives one."""
        if self.reference is None or failing.verdict is None:
            return failing
        try:
            answer = self.reference.ask(run_request(failing.case.graph, failing.case.args), 60.0)
        except ChildError:
            return failing
        if "error" in answer:
            return failing
        worst = failing.verdict.worst
        if worst is None:
            return failing
        value = np.asarray(answer["outputs"][worst.output])[worst.index]
        return replace(failing, verdict=replace(failing.verdict, worst=replace(worst, jax=value)))

    def _headline(self, failing: Failing) -> str:
        outcome, verdict = failing.outcome, failing.verdict
        if verdict is None:
            return f"{outcome.kind.upper()}  {(outcome.detail.splitlines() or [''])[0][:300]}"
        worst = verdict.worst
        if worst is None:
            return f"WRONG  {verdict.reason}"
        place, _, _ = str(worst).partition(", bound")
        return f"WRONG  max error {worst.error:.2g} against a bound of {worst.bound:.2g}  ({place})"
