"""What every policy is: it reads a `TaskTable`, and gives orders with reasons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from yarn_accel.core.dags.model import DagFacts
from yarn_accel.core.tasks.commands import Candidate, TaskCommand
from yarn_accel.core.tasks.events import TaskMeasurement
from yarn_accel.core.tasks.learning import FigureStore
from yarn_accel.core.tasks.records import Assignment
from yarn_accel.core.tasks.table import TaskTable
from yarn_accel.core.tasks.values import AppId, Form, ResourceId, TaskId


class TaskPolicy:
    """Decides which task runs where and in which form.

    Services, simulations and agents drive the same object. A policy defines `plan`, and what else it can say.
    """

    def follow(self, table: TaskTable) -> None:
        """Decide for this table from now on."""

    def plan(self, table: TaskTable, figures: FigureStore, now_s: float) -> Iterator[TaskCommand]:
        """The orders that follow from the table now, in the order to carry them out.

        Each is in the table, or was refused, before the next is asked for; all are asked for.
        """
        raise NotImplementedError

    def learn(
        self,
        table: TaskTable,
        figures: FigureStore,
        assignment: Assignment,
        measured: TaskMeasurement,
        ran_s: float,
    ) -> None:
        """An attempt was done and measured, and is about to be settled; it ran so long on its worker."""

    def candidates(
        self, table: TaskTable, figures: FigureStore, now_s: float, worker: ResourceId, form: Form
    ) -> tuple[Candidate, ...]:
        """What would be considered for a place in this form now, best first, each with its keys."""
        return ()

    def facts(self, app: AppId) -> DagFacts | None:
        """What it knows of a DAG that has not ended; None: there was no machine yet to plan it for."""
        return None

    def own_makespan_s(self, app: AppId) -> float | None:
        """M_own of a DAG whose last task has just ended, with what is known by now; None: nobody knows."""
        return None

    def slowdowns(self) -> Mapping[str, float]:
        """SD of each DAG that is planned, now."""
        return {}

    def explain(self, task: TaskId) -> str:
        """Where a task that waits is planned, and why there; empty: nowhere."""
        return ""

    def validate(self) -> None:
        """Raise AssertionError where what it keeps contradicts itself; for tests."""
