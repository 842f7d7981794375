"""Why is my job behind others? What its user and group had of the cluster, their share, and its place."""

from __future__ import annotations

from collections.abc import Iterator

from torque_sched.core.model import Job
from torque_sched.core.states import JobState
from torque_sched.learning.usage import GROUP, USER, Account, pending_runs
from torque_sched.policies.order import FairShareOrder
from torque_sched.policies.registry import ORDERS
from torque_sched.report.picture import Picture
from torque_sched.report.words import percent, span

_HOUR_S = 3600.0


def share_lines(picture: Picture, job: Job) -> Iterator[str]:
    """Usage of the job's user and group, and what the order makes of it, a sentence each."""
    used = picture.history.used
    snapshot = picture.snapshot
    accounts = used.accounts(snapshot.now_s, pending_runs(snapshot, picture.context.pending))
    for kind, name in ((USER, job.user), (GROUP, job.group)):
        if name:
            everybody = sum(each.weighed(used.gpu_weight) for (k, _), each in accounts.items() if k == kind)
            own = accounts.get((kind, name), Account())
            yield (
                f"usage of {kind} {name}: {_words(own, used.gpu_weight)}, "
                f"{percent(own.weighed(used.gpu_weight) / everybody if everybody else 0.0)} of all {kind}s'; "
                f"half is forgotten in {span(used.half_life_s)}"
            )
    if job.state is JobState.QUEUED and not job.is_array_parent:
        yield from _order(picture, job)


def _words(account: Account, gpu_weight: float) -> str:
    told = f"{account.proc_s / _HOUR_S:.1f} processor hours"
    if account.gpu_s:
        hours = account.weighed(gpu_weight) / _HOUR_S
        told += f" and {account.gpu_s / _HOUR_S:.1f} GPU hours, each counted as {gpu_weight:g}: {hours:.1f}"
    return told


def _order(picture: Picture, job: Job) -> Iterator[str]:
    order = picture.settings.order
    name = next((name for name, kind in ORDERS.items() if kind is type(order)), type(order).__name__)
    place, n_jobs = place_in_order(picture, job)
    if not isinstance(order, FairShareOrder):
        yield f"order: {place} of {n_jobs} waiting jobs, by {name}, to which usage makes no difference"
        return
    ranks = order.ranks(_waiting(picture, job), picture.context)
    own = ranks[job.user]
    before = sum(each.rank < own.rank for each in ranks.values())
    yield (
        f"share of user {job.user}: {percent(own.part)} of the cluster; of {len(ranks)} users who wait "
        f"{before} had less for their shares and come first"
    )
    yield f"order: {place} of {n_jobs} waiting jobs, by {name}"


def place_in_order(picture: Picture, job: Job) -> tuple[int, int]:
    """Which of the waiting jobs it is, as if each started at its turn, and how many there are."""
    waiting = _waiting(picture, job)
    turns = picture.settings.order.turns(waiting, picture.snapshot, picture.context)
    for place, each in enumerate(turns, 1):
        if each.id == job.id:
            return place, len(waiting)
        turns.started(each)
    return len(waiting), len(waiting)


def _waiting(picture: Picture, job: Job) -> tuple[Job, ...]:
    waiting = picture.snapshot.queued
    return waiting if job.id in picture.snapshot.job_by_id else (*waiting, job)
