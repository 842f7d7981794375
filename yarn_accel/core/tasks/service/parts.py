"""What the parts of a task service share: its state, its journal, its policy, and the time."""

from __future__ import annotations

import heapq
from dataclasses import replace

from yarn_accel.core.dags.model import DagFacts
from yarn_accel.core.dags.slowdown_series import LiveSlowdowns
from yarn_accel.core.tasks.commands import PlanningPolicy, TaskPolicy
from yarn_accel.core.tasks.events import ServerGpusChanged, TasksReady
from yarn_accel.core.tasks.learning import FigureStore
from yarn_accel.core.tasks.server_gpus import ServingServers, share_server_gpus
from yarn_accel.core.tasks.service.core_seconds import CoreSeconds
from yarn_accel.core.tasks.service.outbox import Outbox
from yarn_accel.core.tasks.service.records import ServiceRecord
from yarn_accel.core.tasks.service.replay import ServiceState
from yarn_accel.core.tasks.service.settings import ServiceSettings
from yarn_accel.core.tasks.service.state import ServedTask, TaskState, TaskWorker
from yarn_accel.core.tasks.service.use_samples import UseSamples
from yarn_accel.core.tasks.values import AppId, ResourceId, TaskId


class ServiceParts:
    """One per service; its parts have it in common.

    Attributes:
        dirty: workers that need a new order.
        seen: when each worker reported last, the longest silent first.
        servers: the pipeline servers that serve.
        is_sharing_due: these, or the workers, are not those of `share_server_gpus` any more.
        ending: applications whose tasks have all ended: tries to settle the output, and when to try again.
        figures: what is believed of applications, which the policy learns.
        use: what workers did over time.
        slowdowns: SD of DAGs over time.
        there: how long workers were there.
    """

    def __init__(self, settings: ServiceSettings, policy: TaskPolicy, figures: FigureStore) -> None:
        self.settings = settings
        self.policy = policy
        self.figures = figures
        self.use = UseSamples()
        self.slowdowns = LiveSlowdowns()
        self.there = CoreSeconds()
        self.state = ServiceState(settings.max_crashes, settings.n_ended, settings.n_ended_tasks)
        self.outbox = Outbox()
        self.now_s = 0.0
        self._unix_offset_s = 0.0
        self.dirty: dict[ResourceId, TaskWorker] = {}
        self.seen: dict[ResourceId, float] = {}
        self.servers = ServingServers()
        self.is_sharing_due = False
        self.ending: dict[AppId, tuple[int, float]] = {}
        self._later: list[tuple[float, TaskId]] = []

    def set_unix_time(self, now_s: float, at: float) -> None:
        """So much is the Unix time at this time."""
        self._unix_offset_s = at - now_s

    def unix_time(self, when_s: float) -> float:
        """The Unix time then, in seconds, to the millisecond."""
        return round(self._unix_offset_s + when_s, 3)

    def event_time(self, at: float) -> float:
        """The time of events at this Unix time, in seconds."""
        return at - self._unix_offset_s

    def facts(self, app: AppId) -> DagFacts | None:
        """What the policy knows of a DAG, where it plans any."""
        return self.policy.facts(app) if isinstance(self.policy, PlanningPolicy) else None

    def own_makespan_s(self, app: AppId) -> float | None:
        """M_own of a DAG whose last task has just ended, where the policy plans any."""
        return self.policy.own_makespan_s(app) if isinstance(self.policy, PlanningPolicy) else None

    def note_slowdowns(self) -> None:
        """Note the SD of all DAGs, where that is due."""
        if isinstance(self.policy, PlanningPolicy) and self.slowdowns.is_due(self.now_s):
            known = (*self.state.apps, *self.state.ended)
            self.slowdowns.note(self.now_s, self.policy.slowdowns(), known)

    def commit(self, record: ServiceRecord) -> None:
        """Change the state, and note it in the journal."""
        self.state.apply(record)
        self.outbox.log(record)

    def share_server_gpus(self) -> None:
        """Say to the policy which workers may use how many GPUs of pipeline servers, where that changed."""
        self.is_sharing_due = False
        specs = {name: each.spec for name, each in self.state.workers.items() if each.is_usable}
        nodes = {str(name): spec.node for name, spec in specs.items() if spec is not None}
        for name, n_gpus in share_server_gpus(self.servers, nodes).items():
            worker = self.state.workers[ResourceId(name)]
            if worker.spec is not None and worker.spec.server_gpus != n_gpus:
                worker.spec = replace(worker.spec, server_gpus=n_gpus)
                self.policy.apply(ServerGpusChanged(worker.id, n_gpus, self.now_s))

    def announce_later(self, task: ServedTask, when_s: float) -> None:
        """Offer a task to the policy again then."""
        heapq.heappush(self._later, (when_s, task.id))

    def announce_due(self) -> None:
        """Offer the tasks again whose time has come."""
        while self._later and self._later[0][0] <= self.now_s:
            task = self.state.tasks.get(heapq.heappop(self._later)[1])
            if task is not None and task.state is TaskState.READY:
                self.state.ready.setdefault(task.app.id, []).append(task.id)

    def announce_ready(self) -> None:
        """Tell the policy which tasks became ready."""
        ready, self.state.ready = self.state.ready, {}
        for app, tasks in ready.items():
            self.policy.apply(TasksReady(app, tuple(tasks), self.now_s))

    def see(self, worker: ResourceId, when_s: float) -> None:
        """A worker reported, or counts as if it had."""
        self.seen.pop(worker, None)
        self.seen[worker] = when_s
