"""Decisions in service: settings by the time of day, what was learned, the decision, expected starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from torque_sched.daemon.pending_orders import PendingOrders
from torque_sched.decide.admission import AdmissionCheck
from torque_sched.decide.context import Context, Prediction, Predictions, Remembered, Window, starting
from torque_sched.decide.decide import Decider
from torque_sched.decide.expected import EXPECTED_JOBS, expected_starts
from torque_sched.decide.settings import Settings
from torque_sched.decide.why import with_expected
from torque_sched.errors import ConfigError
from torque_sched.learn import History
from torque_sched.learn.promises import Change, Outcome
from torque_sched.learn.usage import ACCOUNT, GROUP, USER, pending_runs
from torque_sched.model.cluster import Job, JobId
from torque_sched.model.decisions import Decision, Hold, Start
from torque_sched.model.snapshot import Reservation, Snapshot


@dataclass(slots=True)
class RecordedPredictions:
    """Passes questions on and keeps the answers, so that the journal has just what a decision used."""

    source: Predictions
    answers: dict[JobId, Prediction] = field(default_factory=dict)

    def expect(self, job: Job) -> Prediction | None:
        """As the source has it."""
        answer = self.source.expect(job)
        if answer is not None:
            self.answers[job.id] = answer
        return answer


class DecisionEngine:
    """Decides by the policies.

    Args:
        settings: those in force at a time, seconds since the epoch.
        history: what was learned; it learns from each snapshot.
        reservations: gives the nodes that the settings keep for somebody; others stand in the history.
        dedicated: dedicated time.
    """

    def __init__(
        self,
        settings: Callable[[float], Settings],
        history: History,
        *,
        reservations: Callable[[Snapshot], tuple[Reservation, ...]] = lambda snapshot: (),
        dedicated: tuple[Window, ...] = (),
    ) -> None:
        self._decider = Decider()
        self._settings = settings
        self.history = history
        self._reservations = reservations
        self._dedicated = dedicated
        self._remembered = Remembered()
        self._expecting = Expecting()

    def use(
        self,
        settings: Callable[[float], Settings],
        reservations: Callable[[Snapshot], tuple[Reservation, ...]],
    ) -> None:
        """Decide by other settings from now on."""
        self._settings = settings
        self._reservations = reservations

    def context(self, snapshot: Snapshot, orders: PendingOrders) -> Context:
        """Everything beside the snapshot that this decision may look at; learns from the snapshot."""
        pending = (*orders.pending, *starting(snapshot, orders.pending))
        self.history.observe(snapshot)
        self._remembered.see(snapshot)
        usage = self.history.used.by_kind(snapshot.now_s, pending_runs(snapshot, pending))
        return Context(
            pending=pending,
            back_off=orders.back_off(snapshot.now_s),
            measured=self.history.measured(snapshot),
            placed=self.history.placed(snapshot, pending),
            predictions=RecordedPredictions(self.history.predictions()),
            usage=usage[USER],
            group_usage=usage[GROUP],
            account_usage=usage[ACCOUNT],
            gpu_weight=self.history.used.gpu_weight,
            reservations=(
                *self._reservations(snapshot),
                *self.history.reservations(snapshot.now_s),
                *snapshot.reservations,
            ),
            dedicated=self._dedicated,
            last_node=self._remembered.last_node,
            kept=self._remembered.kept,
            gpu_work_s=self._remembered.gpu_work_s,
            promises=self.history.promises.carried(snapshot),
        )

    @property
    def settled(self) -> tuple[Outcome, ...]:
        """Promises whose jobs the last snapshot showed running for the first time."""
        return self.history.settled

    def decide(self, snapshot: Snapshot, context: Context) -> tuple[Decision, ...]:
        """One decision for every queued job."""
        return self._decider.decide(snapshot, self._settings(snapshot.now_s), context)

    def decided(
        self, snapshot: Snapshot, decisions: tuple[Decision, ...], orders: PendingOrders
    ) -> list[tuple[JobId, Change]]:
        """Keep what is promised and what is left alone, before anything is said or done."""
        self._remembered.decided(decisions)
        return self.history.decided(snapshot, decisions, orders.pauses())

    def held(self, jobs: Iterable[Job], snapshot: Snapshot, context: Context) -> tuple[Hold, ...]:
        """What keeps jobs that the server holds, or that wait for a time, in the words of a decision."""
        settings = self._settings(snapshot.now_s)
        admission = AdmissionCheck(snapshot, context, settings.queues, settings.zone)
        return tuple(hold for job in jobs if (hold := admission.check(job)) is not None)

    def ended(self, orders: PendingOrders) -> None:
        """Keep what failed in this cycle."""
        self.history.remember(orders.pauses())

    def expecting(
        self,
        decisions: tuple[Decision, ...],
        snapshot: Snapshot,
        context: Context,
        *,
        may_renew: bool = True,
    ) -> tuple[Decision, ...]:
        """The same, with the expected start in the words to each job that has a guaranteed one.

        Args:
            decisions: about this snapshot.
            snapshot: now.
            context: of the same moment.
            may_renew: whether there is time to compute expected starts anew; else those of before are shown.
        """
        settings = self._settings(snapshot.now_s)
        # The journal needs only the predictions that decided something.
        aside = replace(context, predictions=self.history.predictions())
        expected = (
            self._expecting.starts(snapshot, settings, aside, decisions)
            if may_renew
            else self._expecting.known
        )
        waiting = {each.job for each in decisions if not isinstance(each, Start)}
        shown = {job: at_s for job, at_s in expected.items() if job in waiting}
        self.history.expectations.reported(snapshot, shown)
        return with_expected(decisions, expected, settings.zone)

    def started(self, start: Start, snapshot: Snapshot, context: Context) -> None:
        """The server accepted it; `round_robin` goes on after its node."""
        self._remembered.started(start)


_EVERY_S = 30.0
_CHANGED_S = 10.0
"""Where other jobs run than before: one that ends early moves the starts of all behind it."""
_SHARE = 0.05
"""Of the time at most so much goes into them."""
_BUSY_SHARE = 0.01
"""Where other jobs run than before: who is to start next waits meanwhile."""


class Expecting:
    """Expected starts of the jobs that are next.

    Args:
        clock: seconds that nobody sets.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.known: Mapping[JobId, float] = {}
        """As they were when they were last computed."""
        self._running: frozenset[JobId] = frozenset()
        self._renewed_s, self._took_s = float("-inf"), 0.0

    def starts(
        self, snapshot: Snapshot, settings: Settings, context: Context, decided: Iterable[Decision]
    ) -> Mapping[JobId, float]:
        """Expected starts; renewed every 30 s, every 10 s where other jobs run than before.

        It is renewed sooner where one of the first jobs has none.

        Args:
            snapshot: now.
            settings: in force.
            context: of the same moment.
            decided: about this snapshot.
        """
        began_s = self._clock()
        running = frozenset(job.id for job in snapshot.running)
        is_calm = running == self._running
        if began_s < self._renewed_s + self._took_s / (_SHARE if is_calm else _BUSY_SHARE):
            return self.known
        is_new = any(job.id not in self.known for job in snapshot.queued[:EXPECTED_JOBS])
        every_s = _EVERY_S if is_calm else _CHANGED_S
        if not is_new and began_s < self._renewed_s + every_s:
            return self.known
        self._running = running
        try:
            starts = (each for each in decided if isinstance(each, Start))
            self.known = expected_starts(snapshot, settings, context, starts)
        except ConfigError:
            self.known = {}
        self._renewed_s = self._clock()
        self._took_s = self._renewed_s - began_s
        return self.known
