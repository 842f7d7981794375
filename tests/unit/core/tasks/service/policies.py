"""Policies for tests of the service: one with queues and take-back that is as restless as it may be."""

import random

from yarn_accel.core.tasks.commands import EndTask, EnqueueTask, StartTask, TakeBackTask
from yarn_accel.core.tasks.policy import TaskPolicy


class RestlessPolicy(TaskPolicy):
    """Starts and enqueues whatever waits anywhere, takes back and ends at random; checks what it sees."""

    def __init__(self, seed=0, n_queued=3, restlessness=0.2):
        self.rng = random.Random(seed)
        self.n_queued = n_queued
        self.restlessness = restlessness

    def plan(self, table, figures, now_s):
        for order in self.decide(table):
            yield order
            held = table.tasks[order.task].assignment
            assert held is not None, "what was ordered is in the table"
            assert held.worker.id == order.resource
            assert isinstance(order, StartTask | EnqueueTask) or held.drop is not None

    def decide(self, table):
        held = [each for app in table.apps.values() for each in app.placed.values()]
        for each in sorted(held, key=lambda each: each.task.id):
            if each.drop is None and self.rng.random() < self.restlessness:
                if each.started_s is None:
                    yield TakeBackTask(each.task.id, each.worker.id, "restless")
                elif self.rng.random() < self.restlessness:
                    yield EndTask(each.task.id, each.worker.id, "restless")
        for name, worker in sorted(table.resources.items()):
            for app in table.apps.values():
                for task in list(app.ready):
                    n_here = len(worker.running) + len(worker.queued)
                    forms = [form for form, need in app.spec.demands.items() if need.gpus <= worker.spec.gpus]
                    if n_here >= worker.spec.cores + self.n_queued or not forms:
                        break
                    form = self.rng.choice(forms)
                    if n_here < worker.spec.cores:
                        yield StartTask(task, name, form, "there is a core")
                    else:
                        yield EnqueueTask(task, name, form, self.rng.randint(0, n_here), "next")


def first_come(**more):
    """Starts what is ready where there is a core, and nothing else."""
    return RestlessPolicy(n_queued=0, restlessness=0.0, **more)
