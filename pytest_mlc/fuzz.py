"""The campaign: stored cases first, then fresh graphs until the budget ends; every case journalled before it runs.

mlc and JAX work in processes of their own, a few cases ahead of the judgement, so that all cores are busy: compiling takes more than all the
rest, so two processes take turns at it where there are cores for them. A crash or hang of any costs one case and a restart.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mlc.core.errors import MlcError
from mlc.graph.verify import verify
from pytest_mlc import corpus, findings
from pytest_mlc.child import ChildError
from pytest_mlc.corpus import Case, CaseError
from pytest_mlc.executor import TIMEOUT, Compiler, Outcome, outcome
from pytest_mlc.investigate import Failing, Investigator, attempt
from pytest_mlc.oracle import Referee, Verdict, judge
from pytest_mlc.reference import Reference
from pytest_mlc.service import Pipeline, Service, run_request
from pytest_mlc.settings import Settings
from pytest_mlc.stream import Fresh, Stream
from pytest_mlc.tally import Failure, Tally

# So many cases are on their way at most: enough for the other children while JAX starts and loads what it keeps.
AHEAD = 64
# No case takes less than so many seconds.
LEAST_PACE = 0.03
REFERENCE_TIMEOUT = 60.0
# A child with more bytes than this starts anew; how often that is looked at, in cases.
MOST_MEMORY, BLOAT_EVERY = 3 << 30, 64
# More failing cases than this say nothing new; the campaign stops and looks into them.
MOST_FAILING = 100
# Seconds for looking into all failing cases, into one of them, and into all findings about the reference.
EXAMINE_ALL, EXAMINE_ONE, EXAMINE_FINDINGS = 120.0, 20.0, 20.0
# A stored case is small already.
EXAMINE_STORED = 5.0


@dataclass
class Flying:
    """A case that has been sent and not yet judged."""

    case: Case
    fresh: Fresh
    slot: Path
    mlc: Pipeline
    referee: Referee

    @property
    def asks_jax(self) -> bool:
        """Whether JAX is asked: else nothing would be compared with what it says."""
        return not self.referee.touches_subnormals


class Campaign:
    """One process's part of a campaign. `tally` holds what has been counted so far."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.compilers, self.reference = [Compiler()], Reference()
        self.compilers += [Compiler(beside=self.compilers[0]) for _ in range(1, settings.compilers)]
        self.investigator = Investigator(settings, self.compilers[0], self.reference)
        self.tally = Tally(seed=settings.seed)
        self.failing: list[Failing] = []
        self.odd: list[tuple[Case, str, bool]] = []
        self.journal: Path | None = None
        self.begun = 0.0

    def close(self) -> None:
        """End the children, and remove the journal of a campaign that came to its end."""
        for service in (self.reference, *self.compilers):
            service.stop()
        self.compilers[0].remove_cache()
        if self.journal is not None:
            for path in self.journal.iterdir():
                path.unlink(missing_ok=True)
            self.journal.rmdir()
            self.journal = None

    def take_tally(self) -> Tally:
        """What was counted since the last time."""
        tally, self.tally = self.tally, Tally(seed=self.settings.seed)
        return tally

    def _new_journal(self) -> Path:
        """Where cases are written before they run; what is left there after a crash of this process was running then."""
        if self.settings.report is None:
            return Path(tempfile.mkdtemp(prefix="mlc-fuzz-journal-"))
        folder = self.settings.report / f"journal-{self.settings.stream[0]}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    # ----------------------------------------------------------------- stored cases
    def run_stored(self, paths: Iterable[Path], exact: bool = False) -> list[Failure]:
        """Run stored cases; one that cannot be used (damaged, of another format) is a failure of its own, or with `exact` raises CaseError."""
        begun = time.monotonic()
        for path in paths:
            try:
                case = corpus.read(path)
            except CaseError as error:
                if exact:
                    raise
                if path.exists():  # else it went away since the folder was listed
                    self.tally.record("failures", _unusable(path, str(error), self.settings.shown(path)))
                self.tally.skipped.append(str(error))
                continue
            self.tally.stored += 1
            _ready(self.compilers[0])  # what cannot start at all is no fault that a case could show
            found = attempt(self.compilers[0], case)
            if found is not None:
                self.tally.record("failures", self.investigator.examine(found, EXAMINE_STORED, path))
        self.tally.seconds += time.monotonic() - begun
        return list(self.tally.failures.values())

    # ----------------------------------------------------------------- fresh graphs
    def run_fresh(self) -> list[Failure]:
        """Generate and judge until the budget ends, then look into what failed."""
        begun = self.begun = time.monotonic()
        stream, flying = Stream(self.settings), deque()
        mlc, jax = [Pipeline(compiler, TIMEOUT) for compiler in self.compilers], Pipeline(self.reference, REFERENCE_TIMEOUT)
        for service in (self.reference, *self.compilers):
            service.launch()
        for compiler in self.compilers:
            _ready(compiler)  # JAX takes longer, see AHEAD
        self.journal = self._new_journal()
        number = 0
        try:
            while True:
                bloated = number % BLOAT_EVERY == 0 and self._bloated()
                while not bloated and len(flying) < AHEAD and self._wants_more(number, len(flying)):
                    sent = self._launch(stream.case(number), mlc[number % len(mlc)], jax)
                    number += 1
                    if sent is not None:
                        flying.append(sent)
                if not flying and not bloated:
                    break
                if flying:
                    landing = flying.popleft()
                    self._land(landing, landing.mlc.next(), jax.next() if landing.asks_jax else None)
                elif bloated:
                    bloated.stop()
        finally:
            self.tally.seconds += time.monotonic() - begun
        self._examine()
        return list(self.tally.failures.values())

    def _bloated(self) -> Service | None:
        """A child that holds too much memory (XLA keeps about 2 MB for each thing it compiled) and is to start anew."""
        return next((s for s in (self.reference, *self.compilers) if s.child.resident_bytes() > MOST_MEMORY), None)

    def _wants_more(self, number: int, flying: int) -> bool:
        if len(self.failing) >= (1 if self.settings.stop else MOST_FAILING):
            return False
        if self.settings.share is not None:
            return number < self.settings.share
        seconds = time.monotonic() - self.begun
        # Those on their way take their time, too, at the pace of the others so far.
        return seconds + flying * max(LEAST_PACE, seconds / max(number - flying, AHEAD)) < self.settings.seconds

    def _launch(self, fresh: Fresh, mlc: Pipeline, jax: Pipeline) -> Flying | None:
        """Verify, journal and send a fresh case; None when the verifier refuses it."""
        program = fresh.program
        self.tally.generated += 1
        try:
            verify(program.graph, "generation")
        except MlcError as error:
            self.tally.invalid += 1
            self.tally.notes.append(f"the verifier refused generated case {fresh.number}: {error}")
            return None
        facts = {"seed": f"{self.settings.seed} case {fresh.number}", "variant": fresh.variant, **fresh.options}
        case = Case(program.graph, program.args, facts)
        slot = self.journal / f"{fresh.number % (AHEAD * 4096)}.mlc"
        slot.write_text(corpus.dump(case, level=0), encoding="utf-8")  # in place: the case runs once it is whole
        request = run_request(program.graph, program.args)
        mlc.submit({**request, "variant": fresh.variant, "options": fresh.options})
        flying = Flying(case, fresh, slot, mlc, Referee(program.graph, program.args, program.values))
        if flying.asks_jax:
            jax.submit({**request, "frugal": True, "jit": fresh.jit})
        return flying

    def _land(self, flying: Flying, mlc: dict | ChildError, jax: dict | ChildError | None) -> None:
        """Judge a case whose answers are there; JAX's is None where it was not asked."""
        done = outcome(mlc)
        graph, args, referee = flying.case.graph, flying.case.args, flying.referee
        flying.slot.unlink(missing_ok=True)
        self.tally.passes_fired.update(done.passes)
        if done.kind == "unsupported":
            self.tally.unsupported += 1
            self.tally.notes += [n for n in [f"unsupported: {done.detail}"] if n not in self.tally.notes and len(self.tally.notes) < 10]
            return
        self.tally.cases += 1
        self.tally.options.update(f"{name}={value}" for name, value in flying.fresh.options.items())
        self.tally.options.update([f"variant {flying.fresh.variant}"] if flying.fresh.variant else [])
        theirs = self._reference_outputs(flying, jax)
        if done.failed:
            self._fails(flying, done)
            return
        verdict = judge(graph, args, done.outputs, theirs[0] if theirs else None, referee)
        self._count(flying, done, verdict)
        for jitted in theirs[1:] if verdict.kind == "ok" else ():
            self._finding(flying, judge(graph, args, done.outputs, jitted, referee), jitted=True)

    def _reference_outputs(self, flying: Flying, jax: dict | ChildError | None) -> list[list]:
        """JAX's outputs, eager and perhaps jitted; a crash, hang or exception of JAX is a finding."""
        if jax is None:
            self.tally.reference["cases of subnormals"] += 1
            return []
        if isinstance(jax, ChildError):
            self.tally.record("findings", findings.died(jax, flying.case.graph))
            self.tally.reference["died"] += 1
            return []
        if "error" in jax:
            self.tally.record("findings", findings.raised(jax, flying.case.graph))
            self.tally.reference["raised"] += 1
            return []
        self.tally.reference.update({"ops by jax": jax["by_jax"], "movement by numpy": jax["by_numpy"], "ops refused": jax["refused"],
                                     "cases eager": 1, "cases jitted": int("jit" in jax)})
        return [jax["outputs"], *([jax["jit"]] if "jit" in jax else [])]

    def _count(self, flying: Flying, done: Outcome, verdict: Verdict) -> None:
        if verdict.failed:
            self._fails(flying, done, verdict)
            return
        self._finding(flying, verdict, jitted=False)
        if verdict.kind == "vacuous":
            self.tally.vacuous += 1
            return
        self.tally.paths.update(done.paths)
        self.tally.pairs.update(f"{name} {dtype}" for name, dtype in verdict.coverage)
        self.tally.ops.update({name for name, _ in verdict.coverage})

    def _fails(self, flying: Flying, done: Outcome, verdict: Verdict | None = None) -> None:
        if self.tally.first_failure is None:
            self.tally.first_failure = (round(time.monotonic() - self.begun, 3), flying.fresh.number)
        self.failing.append(Failing(flying.case, done, verdict))

    def _finding(self, flying: Flying, verdict: Verdict, jitted: bool) -> None:
        # Looked into at the end: until then the reference has other requests in its queue.
        if verdict.kind == "finding":
            self.odd.append((flying.case, str(verdict.worst), jitted))

    # ----------------------------------------------------------------- afterwards
    def _examine(self) -> None:
        """Blame and reduce the failing cases, and name the ops on which JAX is wrong, within the time allowed."""
        deadline = time.monotonic() + EXAMINE_FINDINGS
        for k, (case, detail, jitted) in enumerate(self.odd):
            if time.monotonic() > deadline:
                self.tally.notes.append(f"{len(self.odd) - k} findings about the reference were not looked into: out of time")
                break
            self.tally.record("findings", findings.wrong(self.reference, case.graph, case.args, detail, jitted))
        self.odd.clear()
        if self.settings.stop:
            del self.failing[1:]  # others were under way when the first one failed
        deadline = time.monotonic() + EXAMINE_ALL
        for k, failing in enumerate(self.failing):
            left = deadline - time.monotonic()
            if left <= 0:
                self.tally.notes.append(f"{len(self.failing) - k} failing cases were not looked into: out of time")
                break
            self.tally.record("failures", self.investigator.examine(failing, min(EXAMINE_ONE, left)))
        self.failing.clear()


def _ready(service: Service) -> None:
    """Start a child and wait for it; once more if something ended it meanwhile. Raises ChildError when it cannot start."""
    try:
        service.start()
    except ChildError:
        service.start()


def _unusable(path: Path, why: str, shown: str) -> Failure:
    """A stored case that cannot be run: what it once found is not looked for any more."""
    headline = f"mlc-fuzz: UNUSABLE  stored case {why}"
    text = f"{headline}\n  {shown} is not tested any more; restore it from version control, or delete it"
    return Failure(hashlib.sha256(str(path).encode()).hexdigest()[:6], headline, text, shown)
