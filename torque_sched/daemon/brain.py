"""The brain in service: settings by the time of day, what was learned, and the decision."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from torque_sched.core.decisions import Decision, Hold, Reserve, Start
from torque_sched.core.model import Job, JobId, NodeName
from torque_sched.core.snapshot import Snapshot
from torque_sched.daemon.c_policy import SettingsInForce
from torque_sched.daemon.expecting import Expecting
from torque_sched.daemon.standing import Standing
from torque_sched.learning import History
from torque_sched.learning.promises import Change, Outcome
from torque_sched.learning.usage import pending_runs
from torque_sched.policies.context import (
    Context,
    Prediction,
    Predictions,
    Reservation,
    Window,
    starting,
)
from torque_sched.policies.decide import decide
from torque_sched.policies.gate import Gate
from torque_sched.policies.start_words import with_expected


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


class PolicyBrain:
    """Decides by the policies.

    Args:
        settings: by the time of day.
        history: what was learned; it learns from each snapshot.
        reservations: nodes kept for somebody by the settings; others stand in the history.
        dedicated: dedicated time.
    """

    def __init__(
        self,
        settings: SettingsInForce,
        history: History,
        *,
        reservations: tuple[Reservation, ...] = (),
        dedicated: tuple[Window, ...] = (),
    ) -> None:
        self._settings = settings
        self.history = history
        self._reservations = reservations
        self._dedicated = dedicated
        self._last_node: NodeName | None = None
        self._kept: frozenset[JobId] = frozenset()
        self._gpu_work_s: float | None = None
        self._expecting = Expecting()

    def use(self, settings: SettingsInForce, reservations: tuple[Reservation, ...]) -> None:
        """Decide by other settings from now on."""
        self._settings = settings
        self._reservations = reservations

    def context(self, snapshot: Snapshot, standing: Standing) -> Context:
        """Everything beside the snapshot that this decision may look at; learns from the snapshot."""
        pending = (*standing.pending, *starting(snapshot, standing.pending))
        self.history.observe(snapshot)
        if snapshot.has_gpu_work:
            self._gpu_work_s = snapshot.now_s
        return Context(
            pending=pending,
            back_off=standing.back_off(snapshot.now_s),
            measured=self.history.measured(snapshot),
            placed=self.history.placed(snapshot, pending),
            predictions=RecordedPredictions(self.history.predictions()),
            usage=self.history.usage(snapshot.now_s, pending_runs(snapshot, pending)),
            gpu_weight=self.history.used.gpu_weight,
            reservations=(*self._reservations, *self.history.reservations(snapshot.now_s)),
            dedicated=self._dedicated,
            last_node=self._last_node,
            kept=self._kept,
            gpu_work_s=self._gpu_work_s,
            promises=self.history.promises.carried(snapshot),
        )

    @property
    def settled(self) -> tuple[Outcome, ...]:
        """Promises whose jobs the last snapshot showed running for the first time."""
        return self.history.settled

    def decide(self, snapshot: Snapshot, context: Context) -> tuple[Decision, ...]:
        """One decision for every queued job."""
        return decide(snapshot, self._settings.at(snapshot.now_s), context)

    def decided(
        self, snapshot: Snapshot, decisions: tuple[Decision, ...], standing: Standing
    ) -> list[tuple[JobId, Change]]:
        """Keep what is promised and what is left alone, before anything is said or done."""
        reserved = (each for each in decisions if isinstance(each, Reserve))
        self._kept = frozenset(each.job for each in reserved if each.promise is None)
        return self.history.decided(snapshot, decisions, standing.pauses())

    def held(self, jobs: Iterable[Job], snapshot: Snapshot, context: Context) -> tuple[Hold, ...]:
        """What keeps jobs that the server holds, or that wait for a time, in the words of a decision."""
        settings = self._settings.at(snapshot.now_s)
        gate = Gate(snapshot, context, settings.queues, settings.zone)
        return tuple(hold for job in jobs if (hold := gate.check(job)) is not None)

    def ended(self, standing: Standing) -> None:
        """Keep what failed in this cycle."""
        self.history.remember(standing.pauses())

    def expecting(
        self, decisions: tuple[Decision, ...], snapshot: Snapshot, context: Context
    ) -> tuple[Decision, ...]:
        """The same, with the expected start in the words to each job that has a guaranteed one."""
        settings = self._settings.at(snapshot.now_s)
        # The journal needs only the predictions that decided something.
        aside = replace(context, predictions=self.history.predictions())
        expected = self._expecting.starts(snapshot, settings, aside, decisions)
        waiting = {each.job for each in decisions if not isinstance(each, Start)}
        told = {job: at_s for job, at_s in expected.items() if job in waiting}
        self.history.expectations.told(snapshot, told)
        return with_expected(decisions, expected, settings.zone)

    def started(self, start: Start, snapshot: Snapshot, context: Context) -> None:
        """The server accepted it; `round_robin` goes on after its node."""
        self._last_node = start.allocation[-1].node
