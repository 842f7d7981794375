"""How well jobs are predicted from those before them, on logs of real machines, against the paper's own rule.

Protocol: jobs in order of submission; a prediction may use only jobs that had ended when this one was
submitted; the first 2,000 jobs are learned from, not scored. CPU is the busy share of a job's processors
(0 to 1), memory log10 of KiB, run time log10 of seconds; jobs whose figure is unknown do not count.
"""

from __future__ import annotations

import gzip
import heapq
import math
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.result import Report, Row, not_measured, observed
from torque_sched.errors import ConfigError
from torque_sched.learn.ensemble import PREDICTORS
from torque_sched.learn.predictors import Estimate, Fingerprint, Predictor
from torque_sched.simulate.swf import SwfJob, SwfTrace, parse_swf

WARM_UP = 2000
LEAST = 100
"""Jobs that must be left to score."""
_GZIP = b"\x1f\x8b"
_NOTHING = 1e-9
#: By a word of the log's `Installation` and by target: what chain over seed must reach.
_GOALS = {
    ("CTC", "cpu"): "<= 0.75",
    ("LANL", "cpu"): "<= 0.80",
    ("LANL", "memory"): "<= 0.55",
}
_ANY_GOAL = "<= 1.02"


def _cpu(job: SwfJob) -> float | None:
    return min(1.0, job.cpu_s / job.run_s) if job.run_s > 0 and job.cpu_s >= 0 else None


def _memory(job: SwfJob) -> float | None:
    return math.log10(job.memory_kb) if job.memory_kb > 0 else None


def _runtime(job: SwfJob) -> float | None:
    return math.log10(job.run_s) if job.run_s > 0 else None


TARGETS: dict[str, Callable[[SwfJob], float | None]] = {"cpu": _cpu, "memory": _memory, "runtime": _runtime}


@dataclass
class Score:
    """How one predictor did: absolute errors, and whether each outcome stayed within the upper bound."""

    errors: list[float] = field(default_factory=list)
    covered: list[bool] = field(default_factory=list)

    @property
    def mean_error(self) -> float:
        """Mean absolute error, in the target's unit."""
        return math.fsum(self.errors) / len(self.errors)

    @property
    def coverage(self) -> float:
        """Share of outcomes within the upper bound."""
        return sum(self.covered) / len(self.covered)

    def tenths(self) -> Iterator[float]:
        """Coverage in each tenth of the jobs, in their order."""
        n = len(self.covered)
        for tenth in range(10):
            part = self.covered[n * tenth // 10 : n * (tenth + 1) // 10]
            yield sum(part) / len(part)


def fingerprint(job: SwfJob) -> Fingerprint:
    """What is known of a job when it is submitted."""

    def text(number: float) -> str:
        return f"{number:g}" if number >= 0 else ""

    return Fingerprint(text(job.user), text(job.executable), text(job.width), text(job.requested_s))


def replay(jobs: Iterable[SwfJob], target: str, predictor: Predictor, warm_up: int = WARM_UP) -> Score:
    """Predict each job by those that ended before it, in order of submission."""
    measure = TARGETS[target]
    running: list[tuple[float, int, Fingerprint, float, Estimate]] = []
    score = Score()
    known = ((job, value) for job in sorted(jobs, key=_submission) if (value := measure(job)) is not None)
    for place, (job, value) in enumerate(known):
        while running and running[0][0] <= job.submit_s:
            _, _, kind, outcome, said = heapq.heappop(running)
            predictor.observe(kind, outcome, said)
        kind = fingerprint(job)
        said = predictor.predict(kind)
        if place >= warm_up:
            score.errors.append(abs(said.value - value))
            if said.upper is not None:
                score.covered.append(value <= said.upper)
        heapq.heappush(running, (job.end_s, place, kind, value, said))
    return score


def _submission(job: SwfJob) -> tuple[float, int]:
    return job.submit_s, job.number


def read_log(path: Path) -> SwfTrace:
    """A log in the Standard Workload Format, compressed or not, whatever its name says.

    Raises:
        ConfigError: it cannot be read, or holds no job.
    """
    try:
        with path.open("rb") as file:
            is_compressed = file.read(2) == _GZIP
        opened = gzip.open if is_compressed else open
        with opened(path, "rt", encoding="utf-8", errors="replace") as lines:
            trace = parse_swf(lines)
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: {why}", cure="name a log of the Parallel Workloads Archive") from error
    if not trace.jobs:
        first = f", the first: {trace.problems[0].message}" if trace.problems else ""
        raise ConfigError(
            f"{path}: no job in {trace.n_lines} lines{first}", cure="is it in the Standard Workload Format?"
        )
    return trace


def rows(trace: SwfTrace, name: str, target: str) -> list[Row]:
    """All predictors on one log and target; none where the log knows this of too few jobs."""
    title = f"{name}, {target}"
    n = sum(TARGETS[target](job) is not None for job in trace.jobs)
    if n < WARM_UP + LEAST:
        of = f"the log knows it of {n} of its {len(trace.jobs)} jobs only"
        return [not_measured(title, f"{of}; {WARM_UP} are for learning and {LEAST} must be left to score")]
    scores = {each: replay(trace.jobs, target, make()) for each, make in sorted(PREDICTORS.items())}
    seed, chain = scores["seed"], scores["chain"]
    n = len(seed.errors)
    # Where nothing varies both are right, up to the last bit.
    share = (chain.mean_error + _NOTHING) / (seed.mean_error + _NOTHING)
    return [
        Row(f"{title}: mean absolute error of seed", seed.mean_error, "", n, None),
        Row(f"{title}: mean absolute error of chain", chain.mean_error, "", n, None),
        observed(f"{title}: chain over seed", share, "x", goal=_goal(trace, target)),
        observed(f"{title}: outcomes within the upper bound", chain.coverage, "share", goal=">= 0.88"),
        observed(f"{title}: the same, not too many", chain.coverage, "share", goal="<= 0.92"),
        observed(f"{title}: the same in its worst tenth", min(chain.tenths()), "share"),
    ]


def _goal(trace: SwfTrace, target: str) -> str:
    place = trace.header.get("Installation", "") + " " + trace.header.get("Computer", "")
    goals = (goal for (word, of), goal in _GOALS.items() if of == target and word in place)
    return next(goals, _ANY_GOAL)


def run(
    quick: bool, say: Callable[[str], None], report: Report, log: Path | None = None, target: str = ""
) -> None:
    """Replay a log; `Benchmark`. Quick: its first 20,000 jobs."""
    if log is None:
        report.add([not_measured("predictors", "needs a log of the Parallel Workloads Archive, --log FILE")])
        return
    trace = read_log(log)
    say(f"{len(trace.jobs)} jobs, {trace.n_problems} damaged lines")
    if quick:
        trace = replace(trace, jobs=tuple(sorted(trace.jobs, key=_submission))[:20_000])
    for each in [target] if target else TARGETS:
        say(f"{each} ...")
        report.add(rows(trace, log.name.split(".")[0] + (" (quick)" if quick else ""), each))
