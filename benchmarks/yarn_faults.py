"""Faults on a real cluster of four nodes in a rack, two of them accelerators: what each costs, and how long.

Each happens while a streaming job runs over matrices in HDFS and a mapper on every node without accelerator
calls its server without end. The job's output is compared, record by record and bit by bit, with an
undisturbed run's: nothing may be lost or doubled. Those with goals happen to an idle site, too (``server,
idle``): on few cores a job's JVMs delay whatever has to start. ``--rounds N`` repeats all, ``--only NAME``
takes some.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.result import Report, Row, measured, not_measured, observed
from tests.fixtures.yarn_site import Site, SiteOptions, site_up
from tests.fixtures.yarn_site.faults import ANSWER, DETECTED, FAULTS, PUBLISHED, REPLACED
from tests.fixtures.yarn_site.job import Batch, Compared, Result, compare
from tests.fixtures.yarn_site.performing import Performed, Struck, perform, why_not

SECTIONS = tuple(FAULTS)
Say = Callable[[str], None]
#: Masters are killed more often here than a site allows, but not so quickly.
_PATIENT = {"app": {"attempt_failures_validity_interval_s": 2.0}}
#: Each kill of a server counts as its first failure, and not as one of a series that back-off slows down.
_FIRST = {"timing": {"healthy_s": 1.0}}
_QUICK = ("server", "master", "cut")
_ROUNDS = 2


@dataclass
class _Account:
    """What was seen of one fault in all rounds, and in those without a job: seconds by consequence.

    Attributes:
        n_by_joined: records by the server that joined, of each round.
    """

    rounds: list[tuple[Struck, Result, Compared]] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    idle: dict[str, list[float]] = field(default_factory=dict)
    n_by_joined: list[float] = field(default_factory=list)

    def add_idle(self, performed: Performed) -> None:
        """Take one round without a job."""
        for what, value in performed.struck[0].seconds.items():
            self.idle.setdefault(what, []).append(value)

    def add(self, performed: Performed, compared: Compared) -> None:
        """Take one round."""
        (struck,), (result,) = performed.struck, performed.results
        for what, value in struck.seconds.items():
            self.seconds.setdefault(what, []).append(value)
        self.rounds.append((struck, result, compared))

    @property
    def compared(self) -> list[Compared]:
        """Of each round."""
        return [compared for _, _, compared in self.rounds]


def run(quick: bool, say: Say, report: Report, only: Sequence[str] = (), rounds: int = 0) -> None:
    """Have every fault happen ``rounds`` times.

    Args:
        only: some of `SECTIONS`; none: all (quick: three).
        rounds: 0: two (quick: one).
    """
    names = [name for name in FAULTS if name in (only or (_QUICK if quick else FAULTS))]
    n_rounds = rounds or (1 if quick else _ROUNDS)
    n_late = n_rounds if "join" in names else 0
    options = SiteOptions("bench-faults", late=n_late, sections=_PATIENT, master=_FIRST)
    accounts = {name: _Account() for name in names}
    undisturbed: list[Result] = []
    reasons: dict[str, str] = {}
    try:
        with (
            tempfile.TemporaryDirectory(prefix="yarn-faults-") as folder,
            site_up(options, Path(folder), say) as site,
        ):
            say(f"application is whole after {site.start():.1f} s")
            reasons.update((name, why_not(site, name)) for name in names)
            wanted = [name for name in names if not reasons[name]]
            _rounds(site, wanted, n_rounds, accounts, undisturbed, say)
    finally:
        report.add(_rows(accounts, undisturbed, reasons))
        Console(width=None if os.isatty(1) else 160).print(_table(accounts, undisturbed))


def _rounds(
    site: Site,
    names: Iterable[str],
    n_rounds: int,
    accounts: Mapping[str, _Account],
    undisturbed: list[Result],
    say: Say,
) -> None:
    batch = Batch(site)
    batch.run("first")  # brings what is needed to the nodes, and is not counted
    for number in range(n_rounds):
        undisturbed.append(batch.run("undisturbed"))
        say(f"round {number + 1} of {n_rounds}: undisturbed, the job takes {undisturbed[-1].wall_s:.1f} s")
        for name in names:
            if FAULTS[name].goals:
                accounts[name].add_idle(perform(site, [name], None, say))
            performed = perform(site, [name], batch, say)
            (result,) = performed.results
            compared = compare(undisturbed[0], result)
            accounts[name].add(performed, compared)
            if name == "join":
                accounts[name].n_by_joined.append(result.n_by_server.get(site.servers[-1], 0))
            say(f"the job took {result.wall_s:.1f} s: {compared.words()}; {result.way}")


def _rows(
    accounts: Mapping[str, _Account], undisturbed: Sequence[Result], reasons: Mapping[str, str]
) -> list[Row]:
    rows = []
    if undisturbed:
        n_records = len(undisturbed[0].outcome.results)
        walls_s = [result.wall_s for result in undisturbed]
        rows.append(measured("undisturbed job", walls_s, "s", note=f"{n_records} records, 4 mappers"))
    for name, account in accounts.items():
        if account.rounds:
            rows += _fault_rows(name, account, undisturbed)
        else:
            rows.append(not_measured(name, reasons.get(name) or "the run ended before"))
    return rows


def _fault_rows(name: str, account: _Account, undisturbed: Sequence[Result]) -> list[Row]:
    fault = FAULTS[name]
    base_s = sum(result.wall_s for result in undisturbed) / len(undisturbed)
    rows = [
        measured(
            f"{label}: {what}", values, "s", goal=f"<= {fault.goals[what]:g}" if what in fault.goals else ""
        )
        for label, seconds in ((f"{name}, idle", account.idle), (name, account.seconds))
        for what, values in seconds.items()
    ]
    joined = [
        measured(f"{name}: records of the job by the server that joined", some, "", goal=">= 1")
        for some in [account.n_by_joined]
        if some
    ]
    struck = [each for each, _, _ in account.rounds]
    results = [each for _, each, _ in account.rounds]
    resubmitted = [result.counters.get("resubmitted", 0) for result in results]
    over = [result.wall_s / base_s for result in results]
    still = "its mappers stand still meanwhile, then the old server is drained" if name == "join" else ""
    return [
        *rows,
        *joined,
        measured(
            f"{name}: until the site is whole", [each.whole_s for each in struck], "s",
            note="after it was made good",
        ),
        measured(
            f"{name}: longest gap between answers", [each.gap_s for each in struck], "s",
            note="of a mapper that calls",
        ),
        measured(f"{name}: calls of watching mappers that failed", [each.n_failed for each in struck], ""),
        measured(f"{name}: requests of the job resubmitted", resubmitted, ""),
        measured(f"{name}: job time over undisturbed", over, "x", note=still),
        *(
            observed(f"{name}: records {what}", sum(map(count, account.compared)), "", goal="<= 0")
            for what, count in (
                ("lost", lambda each: len(each.lost)),
                ("doubled", lambda each: len(each.doubled)),
                ("changed or strange", lambda each: len(each.changed) + len(each.strange)),
            )
        ),
    ]  # fmt: skip


def _table(accounts: Mapping[str, _Account], undisturbed: Sequence[Result]) -> Table:
    """One line a fault: medians are in the rows, here are the worst."""
    base_s = sum(result.wall_s for result in undisturbed) / max(len(undisturbed), 1)
    table = Table(title=f"the worst of each, seconds; undisturbed, the job takes {base_s:.1f} s")
    table.add_column("fault")
    for heading in ("n", "detected", "next answer", "published", "replaced", "resubmitted", "job"):
        table.add_column(heading, justify="right")
    table.add_column("records")
    for name, account in accounts.items():
        if account.rounds:
            times = [_worst(name, account, what) for what in (DETECTED, ANSWER, PUBLISHED, REPLACED)]
            results = [result for _, result, _ in account.rounds]
            n_resubmitted = max(result.counters.get("resubmitted", 0) for result in results)
            job_s = max(result.wall_s for result in results)
            words = max((each.words() for each in account.compared), key=len)
            n = str(len(results))
            table.add_row(FAULTS[name].title, n, *times, str(n_resubmitted), f"{job_s:.1f}", words)
    return table


def _worst(name: str, account: _Account, what: str) -> str:
    values = account.seconds.get(what)
    if not values:
        return ""
    goal = FAULTS[name].goals.get(what)
    verdict = "" if goal is None else (f" (<= {goal:g})" if max(values) <= goal else f" (GOAL {goal:g})")
    return f"{max(values):.2f}{verdict}"
