"""The guaranteed start of one job: now, first, each change with its reason, and what became of it."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from torque_sched.learn.promises import BETTER, MADE, Change, KeptPromise, Outcome
from torque_sched.learn.store import Store
from torque_sched.model.cluster import Job
from torque_sched.model.snapshot import Reservation
from torque_sched.report.picture import Picture
from torque_sched.report.tables import clock, table
from torque_sched.report.words import span

_WORDS = {MADE: "guaranteed", BETTER: "sooner"}


def outcome_of_job(picture: Picture, job: Job) -> Outcome | None:
    """What became of the reservation of a job that started; None: it had none, or the file was lost."""
    if picture.is_daemons:
        return picture.history.outcomes.get((job.id, job.ctime_s or 0.0))
    if not picture.has_history:
        return None
    with Store.looked_at(picture.history_path) as store:
        found = store.outcomes(job=job.id)
    return next((each for each in found if each.key[1] == (job.ctime_s or 0.0)), None)


def promise_changes(picture: Picture, job: Job) -> tuple[Change, ...]:
    """The history of the job's reservation, oldest first; the middle of a long one is left out."""
    row = picture.history.promises.about(job)
    if row is not None:
        return row.changes
    outcome = outcome_of_job(picture, job)
    return outcome.changes if outcome is not None else ()


def promises_line(picture: Picture) -> str:
    """How many jobs know when they start, in one line."""
    rows = list(picture.history.promises.rows.values())
    held = [row for row in rows if not row.is_withdrawn]
    line = f"guaranteed starts: {len(held)} jobs have one"
    if held:
        line += f", the first starts by {clock(min(row.promise.start_s for row in held))}"
    broken = sum(1 for row in rows if row.n_broken)
    return line + (f"; those of {broken} jobs were put off or withdrawn" if broken else "")


def reservation_line(kept: Reservation) -> str:
    """One reservation in a line."""
    whom = ", ".join(sorted(kept.users)) or "nobody (maintenance)"
    return (
        f"reserved: {kept.name}, {len(kept.nodes)} nodes, {clock(kept.start_s)} to {clock(kept.end_s)}, "
        f"for {whom}"
    )


def promise_lines(picture: Picture, job: Job) -> list[str]:
    """Sentences about the guaranteed start; none when the job never had one."""
    row = picture.history.promises.about(job)
    if row is not None:
        return promise_words(row)
    outcome = outcome_of_job(picture, job)
    return [outcome_words(outcome)] if outcome is not None else []


def promise_words(row: KeptPromise) -> list[str]:
    """The guaranteed start of a waiting job in two sentences."""
    was = row.promise
    if row.is_withdrawn:
        now = f"guaranteed start: withdrawn; it was {clock(was.start_s)}"
    else:
        nodes = "+".join(share.node for share in was.allocation)
        now = f"guaranteed start: by {clock(was.start_s)}" + (f" on {nodes}" if nodes else "")
    first = f"first guaranteed: {clock(was.first_s)}, made {clock(was.first_made_s)}"
    counts = f"; sooner {row.n_better} times since, put off or withdrawn {row.n_broken} times"
    return [now, first + counts]


def outcome_words(outcome: Outcome) -> str:
    """What became of a guaranteed start."""
    first, last = _against(outcome.first_error_s, "first"), _against(outcome.last_error_s, "last")
    return f"start: it started {clock(outcome.start_s)}, {first}, {last}"


def _against(error_s: float, which: str) -> str:
    if abs(error_s) < 1:
        return f"just at its {which} guaranteed start"
    return f"{span(abs(error_s))} {'after' if error_s > 0 else 'before'} its {which} guaranteed start"


def changes_table(changes: tuple[Change, ...]) -> Table:
    """Each change of a reservation."""
    made = table("when", "what", "start", "why", title="guaranteed starts")
    for each in changes:
        what = _WORDS.get(each.kind, f"broken ({each.kind})" if each.to_s is not None else "withdrawn")
        start = "-" if each.to_s is None else clock(each.to_s)
        made.add_row(clock(each.at_s), what, start, Text(each.why))
    return made
