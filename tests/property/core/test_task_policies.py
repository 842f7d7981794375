"""What holds for every task policy, whatever the cluster, the applications and the order of facts."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.fixtures.driven_policy import DrivenPolicy
from tests.fixtures.task_events import AppSubmitted, ResourceJoined, TaskEnded, TasksReady
from tests.fixtures.task_world import MB, TaskWorld, app_spec, resource_spec, task_ids
from yarn_accel.core.dags.events import Decide, TaskStarted
from yarn_accel.core.tasks.commands import EnqueueTask, StartTask
from yarn_accel.core.tasks.events import EndReason, IoSampled, TaskMeasurement
from yarn_accel.core.tasks.policies import POLICIES, make
from yarn_accel.core.tasks.values import Form

seconds = st.integers(1, 60).map(float)
nodes = st.lists(
    st.tuples(st.integers(1, 5), st.integers(0, 3), st.sampled_from(["", "fast"])), min_size=1, max_size=4
)
form = st.tuples(seconds | st.just(0.0), seconds)
apps = st.lists(
    st.tuples(st.none() | form, form, st.integers(1, 12), st.integers(0, 1), st.booleans()),
    min_size=1,
    max_size=4,
)
names = st.sampled_from(sorted(POLICIES))
options = st.fixed_dictionaries(
    {"next_tasks_per_slot": st.integers(0, 1), "tasks_per_heartbeat": st.sampled_from(["all", "one"])}
)


def resources(drawn):
    return [
        resource_spec(f"n{number}", cores, gpus, 128 * MB, kind if gpus else "")
        for number, (cores, gpus, kind) in enumerate(drawn)
    ]


def specs(drawn, **more):
    return [
        app_spec(f"a{number}", cpu=cpu, gpu=gpu, split=500 * MB, n_tasks=n, priority=high, is_declared=known)
        for number, (gpu, cpu, n, high, known) in enumerate(drawn)
    ]


def times(drawn):
    """What tasks really take, declared or not."""
    known = {spec.app: spec for spec in specs([(*each[:4], True) for each in drawn])}
    return lambda task, form: known[task.split("-")[0]].declared.of(form).alone_s


@settings(max_examples=examples(150))
@given(names, options, nodes, apps, st.data())
def test_every_task_ends_once_within_the_limits(name, option, drawn_nodes, drawn_apps, data):
    """The world checks each node's limits after each order, and the state after each decision."""
    made = TaskWorld(make(name, option), times(drawn_apps))
    made.join(*resources(drawn_nodes))
    for spec in specs(drawn_apps):
        made.submit(spec)
        made.settle()
        running = [task for worker in made.workers.values() for task in worker.running]
        if running:
            reason = data.draw(st.sampled_from([EndReason.DONE, EndReason.FAILED]))
            made.now_s += 1
            made.end(data.draw(st.sampled_from(sorted(running))), reason)
    lost = data.draw(st.none() | st.sampled_from(sorted(made.workers)))
    if lost is not None and len(made.workers) > 1:
        made.leave(lost)
    while made.waiting or any(worker.running for worker in made.workers.values()):
        made.run()
        # The next heartbeat: a first task may wait for a node where nobody reads.
        made.now_s += 31
    assert len(made.done) == sum(n for _, _, n, _, _ in drawn_apps)
    assert made.policy.table.apps == {}


@settings(max_examples=examples(60))
@given(options, nodes, form, form, st.integers(1, 40))
def test_with_one_application_alone_hdas_is_fifo(option, drawn_nodes, cpu, gpu, n):
    runs = []
    for name in ("fifo", "hdas", "model"):
        made = TaskWorld(make(name, option))
        made.join(*resources(drawn_nodes))
        made.submit(app_spec("a", cpu=cpu, gpu=gpu, split=500 * MB, n_tasks=n))
        made.run()
        runs.append(made.started)
    assert runs[0] == runs[1] == runs[2]


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.none() | form, form), min_size=1, max_size=6), st.integers(1, 4))
def test_no_application_waits_for_more_cores_than_there_are_applications(drawn, cores):
    """HDAS: what has nothing is furthest behind, so the n-th free core is at the latest the one it gets."""
    made = TaskWorld(make("hdas"))
    made.join(resource_spec("n0", cores, 1))
    for number, (gpu, cpu) in enumerate(drawn):
        made.submit(app_spec(f"a{number}", cpu=cpu, gpu=gpu, n_tasks=30))
    on_cores = []
    while len({task[:2] for _, task, _, _ in made.started}) < len(drawn):
        on_cores += [c for c in made.decide() if isinstance(c, StartTask) and c.form is Form.CPU]
        assert len(on_cores) <= len(drawn) + cores
        made.now_s += 1
        made.end(next(reversed(made.workers["n0"].running)))


def history(policy, drawn_nodes, drawn_apps):
    """A cluster at work, and what runs there."""
    for spec in resources(drawn_nodes):
        policy.apply(ResourceJoined(spec, 0.0))
    for spec in specs(drawn_apps):
        policy.apply(AppSubmitted(spec, 0.0))
        policy.apply(TasksReady(spec.app, task_ids(spec.app, spec.n_tasks), 0.0))
    commands = policy.apply(Decide(1.0))
    for command in commands:
        if isinstance(command, StartTask):
            policy.apply(TaskStarted(command.task, command.resource, command.form, 1.0))
    return commands


@settings(max_examples=examples(150))
@given(names, options, nodes, apps, st.data())
def test_events_of_one_moment_may_come_in_any_order(name, option, drawn_nodes, drawn_apps, data):
    first, second = DrivenPolicy(make(name, option)), DrivenPolicy(make(name, option))
    commands = history(first, drawn_nodes, drawn_apps)
    assert commands == history(second, drawn_nodes, drawn_apps)
    facts = []
    for command in commands:
        reason = data.draw(st.sampled_from([None, EndReason.DONE, EndReason.FAILED, EndReason.TAKEN_BACK]))
        if isinstance(command, EnqueueTask):
            started = TaskStarted(command.task, command.resource, command.form, 9.0)
            taken_back = TaskEnded(command.task, command.resource, EndReason.TAKEN_BACK, 9.0)
            facts.append([data.draw(st.sampled_from([started, taken_back]))])
        elif reason in (EndReason.DONE, EndReason.FAILED):
            measured = TaskMeasurement(500 * MB, 3.0, 5.0, True) if reason is EndReason.DONE else None
            ended = [TaskEnded(command.task, command.resource, reason, 9.0, measured)]
            again = [TasksReady(command.task.split("-")[0], (command.task,), 9.0)]
            facts.append(ended + (again if reason is EndReason.FAILED else []))
    facts += [
        [IoSampled(f"n{number}", 40 * MB, 1, data.draw(st.sampled_from([8.0, 9.0])), 9.0)]
        for number in range(len(drawn_nodes))
    ]
    late = app_spec("late", cpu=(0, 9), gpu=(1, 2))
    facts.append([AppSubmitted(late, 9.0), TasksReady("late", task_ids("late", 9), 9.0)])
    facts.append([ResourceJoined(resource_spec("new", 2, 1), 9.0)])
    permuted = data.draw(st.permutations(facts))
    for policy, order in ((first, facts), (second, permuted)):
        for event in itertools.chain.from_iterable(order):
            policy.apply(event)
        policy.validate()
    assert first.apply(Decide(9.0)) == second.apply(Decide(9.0))


@pytest.mark.parametrize("name", POLICIES)
def test_a_delay_is_never_below_one(name):
    made = TaskWorld(make(name))
    made.join(resource_spec("n1", bandwidth=100 * MB))
    made.submit(app_spec("a", cpu=(30, 0), gpu=(5, 5), split=500 * MB))
    made.submit(app_spec("b", cpu=(10, 0), gpu=(0, 5), split=500 * MB))
    made.decide()
    for form in Form:
        assert all(each.predicted_delay >= 1 for each in made.policy.candidates("n1", form))
