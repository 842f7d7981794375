"""First tasks: how an application of which nothing is known is measured, and not stopped.

One task of each unknown form is placed where nobody reads, and the rest of that node is left alone meanwhile,
both for `measure_wait_s` at most; after that it goes to any place, and what was measured is corrected by the
load. Until it ended, other tasks of that form get only what nobody else can use.
"""

from __future__ import annotations

from collections.abc import Iterator

from yarn_accel.core.tasks.policies.values import FORMS, OpenPlace, TaskChoice
from yarn_accel.core.tasks.records import ServedApp, TaskWorker
from yarn_accel.core.tasks.table import TaskTable
from yarn_accel.core.tasks.values import Form, FormDemand


class FirstTasks:
    """Places tasks that are to be measured, before and after what the policy itself chooses; for one pass.

    Attributes:
        is_needed: something is being measured or waits for it; else none of this has to be asked.
    """

    def __init__(self, table: TaskTable, measure_wait_s: float) -> None:
        self.is_needed = False
        self._table = table
        self._wait_s = measure_wait_s
        #: By kind of accelerator, in the order in which they are served.
        self._unknown: dict[str, list[tuple[ServedApp, Form, FormDemand]]] = {}

    def open(self, now_s: float) -> None:
        """Open the workers that measuring, or time that passed, makes interesting."""
        table = self._table
        before = table.quiet_workers
        table.quiet_workers = {
            each.worker.id for each in table.probes.values() if now_s < each.since_s + self._wait_s
        }
        unmeasured = table.unmeasured()
        self.is_needed = bool(unmeasured or table.probes)
        for name in before - table.quiet_workers:
            if name in table.resources:
                table.open(table.resources[name])
        waiting = [each for each in unmeasured if not each[0].is_measured_now(*each[1:])]
        late = [each for each in waiting if now_s - each[0].ready_since_s >= self._wait_s]
        news = (frozenset(table.probes), frozenset((app.id, form, kind) for app, form, kind in late))
        if news != table.probe_news:
            table.probe_news = news
            table.open_free()
        elif waiting:
            for worker in table.resources.values():
                if worker.free_cores > 0 and self._is_quiet_for(waiting, worker, now_s):
                    table.open(worker)

    def _is_quiet_for(
        self, waiting: list[tuple[ServedApp, Form, str]], resource: TaskWorker, now_s: float
    ) -> bool:
        """Whether one of these could be measured there alone."""
        if resource.queued or resource.load(now_s)[1]:
            return False
        return any(
            (demand := app.demand(form)) is not None
            and resource.fits(demand)
            and (form is Form.CPU or resource.spec.accelerator == accelerator)
            for app, form, accelerator in waiting
        )

    def is_kept_quiet(self, resource: TaskWorker) -> bool:
        """Whether a task here is being measured and may still have the node for itself."""
        return resource.id in self._table.quiet_workers

    def choose(self, place: OpenPlace) -> TaskChoice | None:
        """A task to be measured: alone, or anywhere when that cannot be had in time."""
        for app, form in self._fitting(place):
            if app.is_measured_now(form, place.accelerator):
                continue
            if place.readers == 0 and not place.resource.queued:
                return TaskChoice(app, form, "measured first: nobody reads on this node", True)
            if place.now_s - app.ready_since_s >= self._wait_s:
                return TaskChoice(app, form, "measured first: no node was without readers in time", True)
        return None

    def fill(self, place: OpenPlace) -> TaskChoice | None:
        """Another task of a form that is being measured, for a place that nobody else can use.

        Not on a core where the cluster has GPUs for it: there it might run longer than all others together.
        """
        has_gpus = bool(self._table.totals["gpus"])
        for app, form in self._fitting(place):
            if form is Form.CPU and app.is_mixed and has_gpus:
                continue
            if app.is_measured_now(form, place.accelerator):
                return TaskChoice(app, form, "not measured yet; nobody else can use this place")
        return None

    def _fitting(self, place: OpenPlace) -> Iterator[tuple[ServedApp, Form]]:
        """What fits here and was never measured, in the order of priorities and starts."""
        accelerator = place.accelerator
        unknown = self._unknown.get(accelerator)
        if unknown is None:
            self._unknown[accelerator] = unknown = [
                (app, form, demand)
                for level in self._table.levels
                for app in level.in_order()
                for form in FORMS
                if (demand := app.demand(form)) is not None and app.profile(form, accelerator) is None
            ]
        for app, form, demand in unknown:
            if app.ready and place.resource.fits(demand):
                yield app, form
