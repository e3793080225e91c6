"""What a campaign counted: plain data that travels from xdist's workers, adds up, and becomes `summary.json` and the last lines."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field


@dataclass
class Failure:
    """One distinct failure: its verdict line and full text, where it is stored, and how many cases ended in it."""

    signature: str
    headline: str
    text: str
    stored: str = ""
    count: int = 1


COUNTERS = ("ops", "pairs", "passes_fired", "paths", "reference", "options")


@dataclass
class Tally:
    """Counters of one process, or of all together. `seconds` is wall time, so of parallel processes the longest counts.
    `first_failure`: (seconds since fresh graphs began, case number) of the first one among these that failed."""

    seed: int = 0
    seconds: float = 0.0
    cases: int = 0
    generated: int = 0
    invalid: int = 0
    unsupported: int = 0
    vacuous: int = 0
    stored: int = 0
    skipped: list[str] = field(default_factory=list)
    ops: Counter = field(default_factory=Counter)
    pairs: Counter = field(default_factory=Counter)
    passes_fired: Counter = field(default_factory=Counter)
    paths: Counter = field(default_factory=Counter)
    findings: dict[str, Failure] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    reference: Counter = field(default_factory=Counter)
    options: Counter = field(default_factory=Counter)
    first_failure: tuple[float, int] | None = None
    notes: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Take over another process's counts."""
        for name in ("cases", "generated", "invalid", "unsupported", "vacuous", "stored"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.seconds = max(self.seconds, other.seconds)
        self.first_failure = min((f for f in (self.first_failure, other.first_failure) if f is not None), default=None)
        self.skipped += [s for s in other.skipped if s not in self.skipped]
        self.notes += [n for n in other.notes if n not in self.notes]
        for name in COUNTERS:
            getattr(self, name).update(getattr(other, name))
        for name in ("findings", "failures"):
            mine = getattr(self, name)
            for signature, failure in getattr(other, name).items():
                if signature in mine:
                    mine[signature].count += failure.count
                else:
                    mine[signature] = failure

    def record(self, kind: str, failure: Failure) -> None:
        """Enter a failure or a finding ("failures", "findings"); one of a known signature only counts."""
        known = getattr(self, kind)
        if failure.signature in known:
            known[failure.signature].count += failure.count
        else:
            known[failure.signature] = failure

    # ----------------------------------------------------------------- travel
    def dumps(self) -> str:
        data = dict(vars(self))
        for name in ("findings", "failures"):
            data[name] = {signature: asdict(f) for signature, f in data[name].items()}
        return json.dumps(data)

    @classmethod
    def loads(cls, text: str) -> Tally:
        data = json.loads(text)
        for name in COUNTERS:
            data[name] = Counter(data[name])
        for name in ("findings", "failures"):
            data[name] = {signature: Failure(**f) for signature, f in data[name].items()}
        data["first_failure"] = data["first_failure"] and tuple(data["first_failure"])
        return cls(**data)

    # ----------------------------------------------------------------- report
    def summary(self) -> dict:
        """The content of `summary.json`."""
        return {
            "cases": self.cases,
            "seconds": round(self.seconds, 3),
            "cases_per_second": round(self.cases / self.seconds, 3) if self.seconds else 0.0,
            "valid_fraction": round(1 - (self.invalid + self.unsupported) / self.generated, 6) if self.generated else 1.0,
            "vacuous": self.vacuous,
            "failures": len(self.failures),
            "findings_about_reference": len(self.findings),
            "ops": dict(sorted(self.ops.items())),
            "op_dtypes": dict(sorted(self.pairs.items())),
            "passes_fired": dict(sorted(self.passes_fired.items())),
            "paths": dict(sorted(self.paths.items())),
            "seed": self.seed,
            "generated": self.generated,
            "invalid": self.invalid,
            "unsupported": self.unsupported,
            "stored_cases": self.stored,
            "stored_cases_skipped": self.skipped,
            "reference": dict(sorted(self.reference.items())),
            "options": dict(sorted(self.options.items())),
            "first_failure": self.first_failure and dict(zip(("seconds", "case"), self.first_failure)),
            "failing": [asdict(f) for f in self.failures.values()],
            "findings": [asdict(f) for f in self.findings.values()],
            "notes": self.notes,
        }

    def lines(self) -> list[str]:
        """The campaign in a few lines, for the terminal."""
        rate = self.cases / self.seconds if self.seconds else 0.0
        found = [f"{self.cases} cases in {self.seconds:.0f} s ({rate:.1f} a second), {self.vacuous} vacuous, {self.stored} stored cases; "
                 f"{len(self.ops)} ops over {len(self.pairs)} (op, dtype) pairs; seed {self.seed}"]
        if self.paths:
            found.append(f"ways of computing: {', '.join(f'{name} {count}' for name, count in sorted(self.paths.items()))}")
        if self.invalid or self.unsupported:
            found.append(f"not compared: {self.unsupported} that mlc does not support, {self.invalid} that the verifier refused")
        found += [f"skipped stored case: {s}" for s in self.skipped]
        found += [f"about the reference: {f.headline}  ({f.count} cases)" for f in self.findings.values()]
        found += self.notes
        found.append(f"{len(self.failures)} distinct failures ({sum(f.count for f in self.failures.values())} cases), "
                     f"{len(self.findings)} findings about the reference")
        return found
