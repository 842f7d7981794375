"""What became of the tasks of applications that run, and of those that ended last; for reports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

#: Characters of one application's results.
_MAX_RESULTS = 16 * 1024 * 1024


class EndedTask(NamedTuple):
    """A task that ended well. Times are Unix times in seconds; None is what nobody knows.

    Attributes:
        name: without its application's.
        form: the value of a `Form`.
        overhead_s: seconds in which the attempt neither read nor computed: start, commit.
        compute_s: seconds after its read phase.
        alone_s: what it reads and computes alone in this form, as was believed when it had ended.
        predicted_s: what it was expected to read and compute when it was placed.
        reason: why it came there, as the policy said.
    """

    name: str
    node: str
    form: str
    started_at: float
    ended_at: float
    overhead_s: float | None
    compute_s: float | None
    alone_s: float | None
    predicted_s: float | None
    reason: str

    @property
    def delay(self) -> float | None:
        """How many times longer it took than alone; its own overhead is in both."""
        if self.overhead_s is None or self.alone_s is None:
            return None
        return (self.ended_at - self.started_at) / (self.overhead_s + self.alone_s)

    @property
    def predicted_delay(self) -> float | None:
        """The same as it was expected."""
        if self.predicted_s is None or self.alone_s is None:
            return None
        return self.predicted_s / self.alone_s


class EndedDag(NamedTuple):
    """What is kept of an application that was a DAG, beside its tasks.

    Attributes:
        priority_class: as users write it.
        own_makespan_s: alone, see `DagFacts`; None: it was never planned.
        n_moved: how often its tasks went from one machine's queue to another's.
        n_interrupted: attempts that were ended for other tasks.
        lost_s: so long they had run.
        core_s_before: core-seconds of all workers of the service until its submission, without those while no
            master was there; None: nobody knows.
        core_s_after: the same until its last task ended.
    """

    priority_class: str
    own_makespan_s: float | None
    n_moved: int
    n_interrupted: int
    lost_s: float
    core_s_before: float | None = None
    core_s_after: float | None = None


class AppHistory:
    """The tasks of one application that ended well, in that order.

    Attributes:
        results: what functions returned, by task without its application; as JSON.
    """

    def __init__(self, tasks: Iterable[EndedTask] = ()) -> None:
        self.tasks: list[EndedTask] = []
        self.results: dict[str, str] = {}
        self._n_result_characters = 0
        self._delays = _Mean()
        self._predicted = _Mean()
        for task in tasks:
            self.add(task)

    def add(self, task: EndedTask) -> None:
        """One more ended."""
        self.tasks.append(task)
        self._delays.add(task.delay)
        self._predicted.add(task.predicted_delay)

    def keep_result(self, task: str, result: str) -> None:
        """What a function returned; nothing where all of an application's are too long together."""
        if self._n_result_characters + len(result) <= _MAX_RESULTS:
            self._n_result_characters += len(result)
            self.results[task] = result

    @property
    def delay(self) -> float | None:
        """Mean delay of the tasks whose delay is known."""
        return self._delays.value

    @property
    def predicted_delay(self) -> float | None:
        """Mean of what was predicted, where it was."""
        return self._predicted.value


class _Mean:
    def __init__(self) -> None:
        self._n = 0
        self._sum = 0.0

    def add(self, value: float | None) -> None:
        if value is not None:
            self._n += 1
            self._sum += value

    @property
    def value(self) -> float | None:
        return self._sum / self._n if self._n else None
