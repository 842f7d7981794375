"""Deciding every cycle of a journal again: the same facts must give the same answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torque_sched.batch.documents import hosts_text
from torque_sched.daemon.journal_form import JournalledCycle
from torque_sched.decide.decide import decide
from torque_sched.model.decisions import Decision, Hold, Reserve, Start
from torque_sched.report.words import moment


@dataclass(frozen=True, slots=True)
class Difference:
    """One job that is decided otherwise now; None: there was, or is, no decision for it."""

    job: str
    was: Decision | None
    now: Decision | None


@dataclass(frozen=True, slots=True)
class Replayed:
    """One cycle, decided again."""

    cycle: JournalledCycle
    differences: tuple[Difference, ...]

    @property
    def is_same(self) -> bool:
        """Whether every job got the same answer."""
        return not self.differences


def replayed(cycles: Iterable[JournalledCycle]) -> Iterator[Replayed]:
    """Each cycle with what is decided otherwise by this release."""
    for cycle in cycles:
        again = decide(cycle.snapshot, cycle.settings, cycle.context)
        yield Replayed(cycle, _differences(cycle.decisions, again))


def _differences(was: tuple[Decision, ...], now: tuple[Decision, ...]) -> tuple[Difference, ...]:
    before = {decision.job: decision for decision in was}
    after = {decision.job: decision for decision in now}
    return tuple(
        Difference(job, before.get(job), after.get(job))
        for job in {**before, **after}
        if not _is_same(before.get(job), after.get(job))
    )


def _is_same(was: Decision | None, now: Decision | None) -> bool:
    if isinstance(was, Start) and isinstance(now, Start):
        return was.allocation == now.allocation  # a score may be rounded otherwise
    if isinstance(was, Reserve) and isinstance(now, Reserve):
        is_promise = (was.promise is None) == (now.promise is None)
        return was.allocation == now.allocation and is_promise and abs(was.start_s - now.start_s) < 1e-3
    return was == now


def words(decision: Decision | None) -> str:
    """One decision in a line."""
    if isinstance(decision, Start):
        return f"start on {hosts_text(decision.allocation)}"
    if isinstance(decision, Reserve):
        nodes = "+".join(share.node for share in decision.allocation) or "nothing yet"
        sure = "guaranteed" if decision.promise is not None else "estimated"
        return f"reserve {nodes} from {moment(decision.start_s)} on ({sure})"
    return f"hold: {decision.comment}" if isinstance(decision, Hold) else "no decision"
