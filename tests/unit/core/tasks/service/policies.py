"""Policies for tests of the service: one with queues and take-back that is as restless as it may be."""

import random

from yarn_accel.core.tasks.commands import EndTask, EnqueueTask, StartTask, TakeBackTask
from yarn_accel.core.tasks.events import (
    AppCancelled,
    AppSubmitted,
    Decide,
    EndReason,
    ResourceJoined,
    ResourceLeft,
    TaskEnded,
    TasksReady,
    TaskStarted,
)


class RestlessPolicy:
    """Starts and enqueues whatever waits anywhere, takes back and ends at random; checks what it hears."""

    def __init__(self, seed=0, n_queued=3, restlessness=0.2):
        self.rng = random.Random(seed)
        self.n_queued = n_queued
        self.restlessness = restlessness
        self.apps = {}
        self.resources = {}
        self.ready = {}
        self.places = {}
        self.running = {}
        self.asked_to_end = set()

    def apply(self, event):
        if isinstance(event, Decide):
            return tuple(self.decide())
        if isinstance(event, ResourceJoined):
            assert event.spec.resource not in self.resources
            self.resources[event.spec.resource] = event.spec
        elif isinstance(event, ResourceLeft):
            del self.resources[event.resource]
            assert event.resource not in self.places.values(), "a worker left before its tasks"
        elif isinstance(event, AppSubmitted):
            assert event.spec.app not in self.apps
            self.apps[event.spec.app] = event.spec
        elif isinstance(event, AppCancelled):
            del self.apps[event.app]
            self.ready = {task: app for task, app in self.ready.items() if app != event.app}
        elif isinstance(event, TasksReady):
            assert event.app in self.apps
            for task in event.tasks:
                assert task not in self.ready, f"{task} is ready twice"
                assert task not in self.places, f"{task} is ready and has a place"
                self.ready[task] = event.app
        elif isinstance(event, TaskStarted):
            self.ready.pop(event.task, None)  # it may run where nobody ordered it
            assert self.places.setdefault(event.task, event.resource) == event.resource
            self.running[event.task] = event.resource
        elif isinstance(event, TaskEnded):
            assert self.places.pop(event.task) == event.resource
            has_run = self.running.pop(event.task, None) is not None
            was_asked = event.task in self.asked_to_end or event.task.partition("/")[0] not in self.apps
            assert not (has_run and event.reason is EndReason.TAKEN_BACK), "a started task is never moved"
            assert was_asked or event.reason is not EndReason.CANCELLED, "ended, and nobody wanted it"
            self.asked_to_end.discard(event.task)
            assert event.measured is None or event.reason is EndReason.DONE
        return ()

    def decide(self):
        for task, resource in sorted(self.places.items()):
            if self.rng.random() < self.restlessness:
                kind = TakeBackTask if task not in self.running else EndTask
                if kind is TakeBackTask or self.rng.random() < self.restlessness:
                    if kind is EndTask:
                        self.asked_to_end.add(task)
                    yield kind(task, resource, "restless")
        for resource, spec in sorted(self.resources.items()):
            n_here = sum(place == resource for place in self.places.values())
            for task in list(self.ready):
                app = self.apps[self.ready[task]]
                forms = [form for form, need in app.demands.items() if need.gpus <= spec.gpus]
                if n_here >= spec.cores + self.n_queued or not forms:
                    break
                del self.ready[task]
                self.places[task] = resource
                form = self.rng.choice(forms)
                if n_here < spec.cores:
                    yield StartTask(task, resource, form, "there is a core")
                else:
                    yield EnqueueTask(task, resource, form, self.rng.randint(0, n_here), "next")
                n_here += 1

    def candidates(self, resource, form):
        return ()

    def validate(self):
        assert not self.ready.keys() & self.places.keys()


def first_come(**more):
    """Starts what is ready where there is a core, and nothing else."""
    return RestlessPolicy(n_queued=0, restlessness=0.0, **more)
