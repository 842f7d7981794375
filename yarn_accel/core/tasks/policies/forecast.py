"""When all that is known would have ended, if one rule gave all places from now on.

The rule is a policy object as it decides live: it fills a *sketch*, a table of numbers without tasks, until
nothing waits. Tasks take what is believed of them. Those that read from one disk share it equally: a rule
under which readers meet is slower, as it is on nodes. What the disk itself loses with many readers is unknown
to policies, and left out.

A forecast looks at the table and the beliefs alone, so the same table gives the same forecast. It costs about
as much for 100,000 tasks as for 1,000: several tasks that follow each other in a place are one *run*, the
fewer the less is left, and of a large cluster every n-th node stands for n.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from operator import attrgetter

from yarn_accel.core.tasks.policies.base import FillingPolicy
from yarn_accel.core.tasks.policies.values import OpenPlace, TaskChoice
from yarn_accel.core.tasks.records import Assignment, PriorityLevel, ServedApp, TaskWorker, by_order
from yarn_accel.core.tasks.table import TaskTable
from yarn_accel.core.tasks.values import Form, FormDemand

#: Of the nodes that are taken into a sketch, unless one node has more.
_MOST_CORES = 24
#: A run takes no more than this part of the time that the places need for all that waits.
_LONGEST_RUN = 1 / 4
_SAME_MOMENT_S = 1e-9
#: A float of some size has no digits below this part of it that one could count on.
_RESOLUTION = 1e-12
_by_request = attrgetter("request_bytes_per_s")
_by_id = attrgetter("id")
_by_spec = attrgetter("spec.accelerator", "spec.all_gpus", "spec.cores", "id")


class _SketchedApp(ServedApp):
    """An application in a sketch.

    Attributes:
        share: the sketch's nodes are this part of the cluster, 1 or less.
        n_left: its tasks that these nodes have to do.
    """

    __slots__ = ("n_left", "share")

    def __init__(self, app: ServedApp, share: float) -> None:
        super().__init__(app.definition)
        self.start_s, self.order, self.beliefs = app.start_s, app.order, app.beliefs
        self.n_alloc, self.n_gpu = app.n_alloc, app.n_gpu
        self.share = share
        self.n_left = math.ceil(app.n_waiting * share)

    @property
    def n_waiting(self) -> int:
        """Of the whole cluster."""
        return math.ceil(self.n_left / self.share)


class _Run:
    """Tasks of one application that follow each other in a place: bytes to read, then seconds to compute."""

    __slots__ = ("compute_s", "demand", "left_bytes", "rate_bytes_per_s", "request_bytes_per_s")

    def __init__(self, demand: FormDemand, left_bytes: float, request: float, compute_s: float) -> None:
        self.demand = demand
        self.left_bytes = left_bytes
        self.request_bytes_per_s = request
        self.compute_s = compute_s
        self.rate_bytes_per_s = 0.0


class _Node(OpenPlace):
    """A node of a sketch, with what reads from its disk."""

    __slots__ = ("n_divisions", "reading")

    def __init__(self, worker: TaskWorker, now_s: float) -> None:
        super().__init__(worker, now_s, 0.0, 0)
        self.reading: list[_Run] = []
        self.n_divisions = 0

    def go_on(self, now_s: float) -> None:
        """Let what reads do so until now."""
        passed_s = now_s - self.now_s
        if passed_s > 0:
            for run in self.reading:
                run.left_bytes -= run.rate_bytes_per_s * passed_s
        self.now_s = now_s

    def divide(self) -> float:
        """Divide the disk anew; seconds until the first run will have read all, as things stand."""
        reading, left = self.reading, self.resource.spec.bandwidth_bytes_per_s
        self.n_divisions += 1
        self.readers = n_left = len(reading)
        self.io = sum([run.request_bytes_per_s for run in reading])
        if self.io <= left:
            for run in reading:
                run.rate_bytes_per_s = run.request_bytes_per_s
        else:
            for run in sorted(reading, key=_by_request):
                run.rate_bytes_per_s = min(run.request_bytes_per_s, left / n_left)
                left -= run.rate_bytes_per_s
                n_left -= 1
        return min([run.left_bytes / run.rate_bytes_per_s for run in reading], default=math.inf)

    def occupy(self, demand: FormDemand, sign: int) -> None:
        """Take places of the node, or give them back."""
        worker = self.resource
        worker.free_cores -= sign * demand.cores
        worker.free_memory_bytes -= sign * demand.memory_bytes
        if demand.is_served:
            worker.free_server_gpus -= sign * demand.gpus
        else:
            worker.free_gpus -= sign * demand.gpus


class Sketch:
    """What waits, what runs and where there is place, in numbers; `last_end_s` uses it up.

    Args:
        table: all that waits in it is known in all its forms, and it has a worker with cores.
    """

    def __init__(self, table: TaskTable, now_s: float) -> None:
        workers = sorted(table.resources.values(), key=_by_spec)
        n_cores = sum(each.spec.cores for each in workers)
        n_for_one = 1 if n_cores <= _MOST_CORES else math.ceil(2 * n_cores / _MOST_CORES)
        taken = sorted(workers[::n_for_one], key=_by_id)
        self._n_cores = sum(each.spec.cores for each in taken) or 1
        self._last_s = self._now_s = now_s
        self._limit_s = math.inf
        #: Times of ends: of a run, or of the first read of a node since its disk was divided last.
        self._ends: list[tuple[float, int, _Node, _Run | int]] = []
        self._n_ends = 0
        self._nodes = [self._node(each) for each in taken]
        self._table = TaskTable()
        self._table.node_kinds, self._table.totals = table.node_kinds, table.totals
        self._n_left = 0
        levels: dict[int, PriorityLevel] = {}
        for app in sorted(table.apps.values(), key=by_order):
            if app.n_waiting:
                sketched = self._table.apps[app.id] = _SketchedApp(app, self._n_cores / n_cores)
                self._n_left += sketched.n_left
                priority = app.spec.priority
                levels.setdefault(priority, PriorityLevel(priority)).queue_of(app).append(sketched)
        self._table.levels = [levels[priority] for priority in sorted(levels, reverse=True)]
        self._longest_s = self._work_s() * _LONGEST_RUN

    def last_end_s(self, rule: FillingPolicy, limit_s: float = math.inf) -> float:
        """When the last task that is known now ends under a rule.

        Args:
            limit_s: infinite is the answer where it is later, or where the rule leaves tasks for ever.
        """
        rule.table, self._limit_s = self._table, limit_s
        self._fill(self._nodes, rule)
        ends = self._ends
        while ends and self._last_s <= self._limit_s:
            self._last_s = now_s = ends[0][0]
            freed: dict[str, _Node] = {}
            while ends and ends[0][0] <= now_s + _SAME_MOMENT_S:
                _, _, node, ended = heapq.heappop(ends)
                if isinstance(ended, _Run):
                    node.go_on(now_s)
                    node.occupy(ended.demand, -1)
                    freed[node.resource.id] = node
                elif ended == node.n_divisions:
                    self._end_reads(node, now_s)
            if freed and self._n_left:
                self._fill([freed[name] for name in sorted(freed)], rule)
        return math.inf if self._n_left or self._last_s > self._limit_s else self._last_s

    def _node(self, worker: TaskWorker) -> _Node:
        """A worker with what runs there."""
        copy = TaskWorker(worker.id, spec=worker.spec)
        copy.free_cores, copy.free_gpus = worker.free_cores, worker.free_gpus
        copy.free_memory_bytes, copy.free_server_gpus = worker.free_memory_bytes, worker.free_server_gpus
        node = _Node(copy, self._now_s)
        for each in worker.running.values():
            self._add(node, self._rest_of(each))
        self._divide(node)
        return node

    def _rest_of(self, running: Assignment) -> _Run:
        """What is left of a task, by what was predicted when it began."""
        profile = running.app.profile(running.form, running.worker.spec.accelerator)
        predicted_s = running.predicted_s or (profile.alone_s if profile else 0.0)
        left_s = max(0.0, running.since_s + predicted_s - self._now_s)
        read_s = min(left_s, running.reads_until_s - self._now_s)
        request = running.request_bytes_per_s if read_s > 0 else 0.0
        return _Run(running.demand, read_s * request, request, left_s - read_s if request else left_s)

    def _add(self, node: _Node, run: _Run) -> None:
        if run.request_bytes_per_s:
            node.reading.append(run)
            node.io += run.request_bytes_per_s
            node.readers += 1
        else:
            self._end_at(node.now_s + run.compute_s, node, run)

    def _end_reads(self, node: _Node, now_s: float) -> None:
        """What has read all computes from now on."""
        node.go_on(now_s)
        same_moment_s = max(_SAME_MOMENT_S, abs(now_s) * _RESOLUTION)
        reading, node.reading = node.reading, []
        for run in reading:
            if run.left_bytes > run.rate_bytes_per_s * same_moment_s:
                node.reading.append(run)
            else:
                self._end_at(now_s + run.compute_s, node, run)
        self._divide(node)

    def _divide(self, node: _Node) -> None:
        next_s = node.divide()
        if next_s < math.inf:
            self._end_at(node.now_s + max(0.0, next_s), node, node.n_divisions)

    def _end_at(self, at_s: float, node: _Node, what: _Run | int) -> None:
        self._n_ends += 1
        heapq.heappush(self._ends, (at_s, self._n_ends, node, what))

    def _work_s(self) -> float:
        """Seconds in which the places would do all, each application in the form that does it sooner."""
        total_s = 0.0
        for app in self._table.apps.values():
            assert isinstance(app, _SketchedApp)
            rate = 0.0
            if app.cpu_demand is not None and app.beliefs.cpu is not None:
                rate = self._n_cores / app.cpu_demand.cores / app.beliefs.cpu.alone_s
            if app.gpu_demand is not None:
                specs = [node.resource.spec for node in self._nodes]
                on_gpus = [
                    spec.all_gpus / app.gpu_demand.gpus / gpu.alone_s
                    for spec in specs
                    if (gpu := app.beliefs.gpu.get(spec.accelerator)) is not None
                ]
                rate = max(rate, sum(on_gpus))
            total_s += app.n_left / rate if rate else 0.0
        return total_s

    def _fill(self, nodes: Iterable[_Node], rule: FillingPolicy) -> None:
        for node in nodes:
            n_readers = node.readers
            while node.resource.free_cores > 0 and self._n_left and (choice := rule.choose(node)) is not None:
                run = self._start(choice, node)
                if run is None:
                    return
                node.occupy(run.demand, 1)
                self._add(node, run)
            if node.readers > n_readers:
                self._divide(node)

    def _start(self, choice: TaskChoice, node: _Node) -> _Run | None:
        """Take as many tasks as begin a run; None if even one would end after the limit."""
        app, form = choice.app, choice.form
        profile, demand = app.profile(form, node.accelerator), app.demand(form)
        assert isinstance(app, _SketchedApp)
        assert profile is not None
        assert demand is not None
        n = app.n_left // self._n_cores
        n = max(1, min(int(self._longest_s / profile.alone_s), 2 * n if n >= 4 else n))
        if n == 1 and node.now_s + profile.alone_s > self._limit_s:
            self._limit_s = -math.inf
            return None
        app.n_left -= n
        app.n_alloc += n
        self._n_left -= n
        if form is Form.GPU:
            app.n_gpu += n
        if not app.n_left:
            level = next(each for each in self._table.levels if each.priority == app.spec.priority)
            level.queue_of(app).remove(app)
        request = profile.request_bytes_per_s
        n_bytes = n * profile.read_s * request
        if n == 1 or not request:
            return _Run(demand, n_bytes, request, n * profile.compute_s)
        # Now one of them reads and now one computes: together they read all along, and slower.
        return _Run(demand, n_bytes, n_bytes / (n * profile.alone_s), 0.0)
