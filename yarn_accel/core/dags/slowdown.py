"""Slowdown and unfairness: equations (1) to (3) of the MPS paper.

SD(a) = M_own / M_multi once a DAG has ended (2); 1 is undisturbed, less is delayed. While it runs,
SD(a) = 1 - DelayTime / ct (3), where ct is the time since its arrival. DelayTime compares the DAG's own HEFT
schedule at ct with the shared plan:

- Tasks run there: each is done to a share f, one that ends just now to 1; one that starts just now does not
  count. The delay is when the shared plan brings the same task to f, less now; of several tasks the largest.
  A task that is not planned yet could start now on its fastest machine.
- None runs there: the same for the tasks that ended last, from their ends in the own schedule.
- The own schedule is over, or the DAG has ended: M_multi is the last planned end, and the delay M_multi -
  M_own; so at the end (3) is (2).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from yarn_accel.core.dags.timeline import Row


def unfairness(slowdowns: Sequence[float]) -> float:
    """Equation (1): the sum of the distances from the mean; 0 without DAGs."""
    if not slowdowns:
        return 0.0
    mean = sum(slowdowns) / len(slowdowns)
    return sum(abs(each - mean) for each in slowdowns)


def slowdown_at_end(own_s: float, multi_s: float) -> float:
    """Equation (2); 1 for a DAG that takes no time."""
    return own_s / multi_s if multi_s > 0 else 1.0


class _Block:
    """The rows of one DAG."""

    __slots__ = ("arrival_s", "columns", "offset")

    def __init__(self, arrival_s: float, columns: tuple[Row, ...]) -> None:
        self.arrival_s = arrival_s
        self.columns = columns
        self.offset = 0

    def __len__(self) -> int:
        return len(self.columns[0])


class PlanTable:
    """What the slowdowns of all DAGs are computed from, in flat arrays over all their tasks.

    One pass over 100,000 tasks takes a millisecond or two.
    """

    def __init__(self) -> None:
        self._blocks: dict[str, _Block] = {}
        self._is_stale = True

    def add(self, dag: str, arrival_s: float, own_start_s: Row, own_end_s: Row, least_s: Row) -> None:
        """Take a DAG in: times of its own schedule, and the least seconds of each task on any machine."""
        self._store()
        unplanned = np.full(len(own_start_s), np.nan)
        columns = (own_start_s, own_end_s, least_s, unplanned, unplanned.copy())
        self._blocks[dag] = _Block(arrival_s, columns)
        self._is_stale = True

    def remove(self, dag: str) -> None:
        """Forget a DAG."""
        self._store()
        del self._blocks[dag]
        self._is_stale = True

    def set_least(self, dag: str, least_s: Row) -> None:
        """The least seconds of each task have changed: machines joined or left."""
        self._store()
        block = self._blocks[dag]
        block.columns = (*block.columns[:2], least_s, *block.columns[3:])
        self._is_stale = True

    def plan(self, dag: str, task: int, start_s: float, seconds: float) -> None:
        """A task is planned, runs or ran from `start_s`; NaN: it is not planned any more."""
        self._gather()
        at = self._blocks[dag].offset + task
        self._start_s[at], self._seconds[at] = start_s, seconds

    def dags(self) -> Iterable[str]:
        """All that were added and not removed, in that order."""
        return self._blocks

    def plan_many(
        self,
        n_tasks: Sequence[int],
        tasks: Sequence[int],
        start_s: Sequence[float],
        seconds: Sequence[float],
    ) -> None:
        """The same as `plan`, for so many tasks of each DAG, one DAG after the other as `dags` has them."""
        if not len(tasks):
            return
        self._gather()
        rows = np.repeat(self._offsets, n_tasks) + np.array(tasks, dtype=np.intp)
        self._start_s[rows] = start_s
        self._seconds[rows] = seconds

    def slowdowns(self, now_s: float) -> dict[str, float]:
        """Equation (3) for every DAG; 1 in the moment of its arrival."""
        if not self._blocks:
            return {}
        self._gather()
        local_s = now_s - self._arrival_s
        is_beyond = local_s >= self._makespan_s
        delay_s = self._delays_beyond(now_s) if is_beyond.any() else np.zeros(len(local_s))
        self._set_running_delays(now_s, local_s, is_beyond, delay_s)
        with np.errstate(divide="ignore", invalid="ignore"):
            values = np.where(local_s > 0, 1.0 - delay_s / local_s, 1.0)
        return dict(zip(self._blocks, values.tolist(), strict=True))

    def _delays_beyond(self, now_s: float) -> Row:
        """M_multi - M_own by the plan."""
        end_s = self._start_s + self._seconds
        unplanned = np.isnan(end_s)
        end_s[unplanned] = now_s + self._least_s[unplanned]
        last_s = np.maximum.reduceat(end_s, self._offsets)
        return np.asarray(last_s - (self._arrival_s + self._makespan_s))

    def _set_running_delays(
        self, now_s: float, local_s: Row, is_beyond: npt.NDArray[np.bool_], delay_s: Row
    ) -> None:
        """Delays of the DAGs whose own schedule is not over."""
        local_of_task = local_s[self._dag_of]
        running = np.flatnonzero((self._own_start_s < local_of_task) & (local_of_task <= self._own_end_s))
        own_start_s, own_end_s = self._own_start_s[running], self._own_end_s[running]
        share = (local_of_task[running] - own_start_s) / (own_end_s - own_start_s)
        at_s = self._start_s[running] + share * self._seconds[running]
        unplanned = np.isnan(at_s)
        at_s[unplanned] = now_s + share[unplanned] * self._least_s[running][unplanned]
        largest = np.full(len(delay_s), -np.inf)
        np.maximum.at(largest, self._dag_of[running], at_s - now_s)
        is_running = (largest > -np.inf) & ~is_beyond
        delay_s[is_running] = largest[is_running]
        for number in np.flatnonzero(~is_running & ~is_beyond).tolist():
            delay_s[number] = self._delay_between(number, now_s, float(local_s[number]))

    def _delay_between(self, number: int, now_s: float, local_s: float) -> float:
        """None of the DAG's tasks runs in its own schedule: the delay of those that ended last there."""
        first = int(self._offsets[number])
        rows = slice(first, first + int(self._lengths[number]))
        own_end_s = self._own_end_s[rows]
        ended = own_end_s <= local_s
        if not ended.any():
            return 0.0
        last_s = own_end_s[ended].max()
        those = own_end_s == last_s
        at_s = (self._start_s[rows] + self._seconds[rows])[those]
        unplanned = np.isnan(at_s)
        at_s[unplanned] = (now_s + self._least_s[rows][those])[unplanned]
        return float(at_s.max() - (self._arrival_s[number] + last_s))

    def _gather(self) -> None:
        """Join the blocks."""
        if not self._is_stale or not self._blocks:
            return
        blocks = list(self._blocks.values())
        columns = [np.concatenate(parts) for parts in zip(*(each.columns for each in blocks), strict=True)]
        self._own_start_s, self._own_end_s, self._least_s, self._start_s, self._seconds = columns
        self._lengths = np.array([len(each) for each in blocks], dtype=np.intp)
        self._offsets = np.concatenate(([0], np.cumsum(self._lengths)[:-1])).astype(np.intp)
        self._dag_of = np.repeat(np.arange(len(blocks)), self._lengths)
        self._arrival_s = np.array([each.arrival_s for each in blocks])
        self._makespan_s = np.maximum.reduceat(self._own_end_s, self._offsets)
        for block, offset in zip(blocks, self._offsets.tolist(), strict=True):
            block.offset = offset
        self._is_stale = False

    def _store(self) -> None:
        """Keep what was planned in the blocks, before they change."""
        if self._is_stale:
            return
        for block in self._blocks.values():
            rows = slice(block.offset, block.offset + len(block))
            block.columns = (*block.columns[:3], self._start_s[rows].copy(), self._seconds[rows].copy())
