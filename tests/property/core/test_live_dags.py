"""Live DAGs under every policy, whatever is lost, late, repeated or dies: each task is done once, after its
predecessors; what is paused starts nothing; what gave way runs again. `validate()` runs after each event.
"""

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import ALL, examples
from tests.unit.core.tasks.service import noise
from tests.unit.core.tasks.service.world import SETTINGS, SMALL, World, app
from yarn_accel.core.dags.live.policy import LiveDagPolicy
from yarn_accel.core.dags.live.queues import MOST_QUEUED
from yarn_accel.core.dags.model import DagTerms, PriorityClass
from yarn_accel.core.dags.policies.registry import DAG_POLICIES, make_dag_policy
from yarn_accel.core.tasks.learning import FigureStore
from yarn_accel.core.tasks.records import TaskState
from yarn_accel.core.tasks.service import events as ev
from yarn_accel.core.tasks.service.journal import decode_journal
from yarn_accel.core.tasks.values import AppId

DAG_SETTINGS = replace(
    SETTINGS,
    sizes=(replace(SMALL, max_workers=3),),
    takes_dags=True,
    policy="mps",
    listed_per_core=MOST_QUEUED,
)


class DagWorld(World):
    """Checks that nothing starts before its predecessors are done."""

    def __init__(self, policy="mps", seed=0, **more):
        self.truly_done = set()
        self.runs = Counter()
        figures = FigureStore()
        make = lambda: LiveDagPolicy(make_dag_policy(policy, 1e6), figures.durations)  # noqa: E731
        super().__init__(make, seed, DAG_SETTINGS, figures=figures, **more)

    def begun(self, order, worker):
        super().begun(order, worker)
        self.runs[order.task] += 1
        definition = self.definitions[order.app]
        task = next(each for each in definition.tasks if each.task == order.task)
        assert self.truly_done.issuperset(task.predecessors), f"{order.task} is early"

    def commit(self, order):
        self.truly_done.add(order.task)
        return super().commit(order)

    def pause(self, name, is_paused=True):
        self.apply(ev.PauseRequested(AppId(name), is_paused, self.now_s))

    def task_states(self, name):
        return {task.id: task.state for task in self.service.table.apps[AppId(name)].tasks}


def dag(rng, name, n_tasks, terms, **more):
    most = rng.choice((0, 3))
    chain = {i: sorted(rng.sample(range(i), rng.randint(0, min(i, most)))) for i in range(1, n_tasks)}
    made = app(name, n_tasks, chain=chain, output=f"hdfs:///out/{name}", **more)
    spec = replace(made.spec, name=name.rstrip("0123456789"))
    tasks = tuple(
        replace(
            each,
            runtime_s=rng.choice((None, 0.0, 0.02, 1.5, 20.0)),
            kind=rng.choice(("", "a", "b")),
            predecessor_bytes=tuple(rng.choice((0.0, 1e6)) for _ in each.predecessors),
        )
        for each in made.tasks
    )
    return replace(made, spec=spec, tasks=tasks, dag=terms)


def submit(world):
    n = len(world.definitions) + 1
    if n <= 6:
        rng = world.rng
        terms = DagTerms(rng.choice(list(PriorityClass)), rng.random() < 0.5, rng.random() < 0.1)
        n_tasks = rng.choice((rng.randint(1, 10), 40))
        world.submit(dag(rng, f"dag{n}", n_tasks, terms, max_attempts=rng.randint(1, 4)))


def pause(world):
    if world.definitions:
        world.pause(world.rng.choice(sorted(world.definitions)))


def resume(world):
    for name in world.definitions:
        world.pause(name, is_paused=False)


FAULTS = (*(submit if each is noise.submit else each for each in noise.FAULTS), pause, resume)


@settings(max_examples=examples(80), deadline=None)
@given(
    policy=st.sampled_from(sorted(DAG_POLICIES)),
    faults=st.lists(st.sampled_from(FAULTS), min_size=5, max_size=30),
    seed=st.integers(0, 2**32),
)
def test_all_ends_well(policy, faults, seed):
    world = DagWorld(policy, seed)
    world.behaviour = noise.behave(world)
    for happens in faults:
        happens(world)
    resume(world)
    world.calm(1500)
    world.assert_ended_well()


class ForgetfulWorld(DagWorld):
    """Drops before each event what rows of the plan say of tasks that have not changed."""

    def apply(self, event):
        policy, table = self.service.policy, self.service.table
        state = policy._inner.state
        for host in state.machines:
            if host.running is not None and host.running.task not in table.changed:
                host.running = None
        for dag in state.dags.values():
            app = table.apps.get(AppId(dag.dag_id))
            if app is not None and not app.is_over:
                dag.pool, dag.running, dag.n_left = [], [], -1
                for row in dag.tasks:
                    row.n_parents_left = -1
                    row.state = row.state if row.task in table.changed else None
        policy.follow(table)
        super().apply(event)


@settings(max_examples=examples(30), deadline=None)
@given(
    policy=st.sampled_from(sorted(DAG_POLICIES)),
    faults=st.lists(st.sampled_from(FAULTS), min_size=5, max_size=30),
    seed=st.integers(0, 2**32),
)
def test_a_policy_whose_rows_are_made_again_decides_the_same(policy, faults, seed):
    decided = []
    for kind in (DagWorld, ForgetfulWorld):
        world = kind(policy, seed)
        world.behaviour = noise.behave(world)
        for happens in faults:
            happens(world)
        resume(world)
        world.calm(1500)
        decided.append((world.history, world.disk))
    assert decided[0] == decided[1]


@pytest.mark.parametrize("seed", range(20 if ALL else 3))
def test_long_noise_ends_well(seed):
    world = DagWorld("mps", seed)
    world.behaviour = noise.behave(world)
    rng = random.Random(seed)
    for _ in range(120):
        rng.choice(FAULTS)(world)
    resume(world)
    world.calm(1500)
    world.assert_ended_well()


@pytest.mark.parametrize("policy", sorted(DAG_POLICIES))
def test_what_is_paused_starts_nothing_over_masters(policy):
    world = DagWorld(policy)
    rng = random.Random(1)
    world.submit(dag(rng, "a", 12, DagTerms()))
    world.submit(dag(rng, "b", 12, DagTerms()))
    world.run(8)
    world.pause("a")
    world.run(4)
    begun = world.runs.copy()
    assert any(task.startswith("a/") for task in begun)
    world.kill_master()
    world.run(80)
    assert "b" in world.ended
    assert {task: n for task, n in world.runs.items() if task.startswith("a/")} == {
        task: n for task, n in begun.items() if task.startswith("a/")
    }
    states = set(world.task_states("a").values())
    assert not states & {TaskState.RUNNING, TaskState.QUEUED}
    assert world.service.snapshot()["apps"]["a"]["dag"]["is_paused"]
    world.pause("a", is_paused=False)
    world.calm()
    world.assert_ended_well()


def test_a_dag_may_be_submitted_paused():
    world = DagWorld()
    world.submit(dag(random.Random(1), "a", 5, DagTerms(is_paused=True)))
    world.run(20)
    assert not world.runs
    world.pause("a", is_paused=False)
    world.calm()
    assert sum(world.runs.values()) == 5


def long_running(world):
    """What starts in the first five seconds runs for a minute."""
    uniform = world.rng.uniform
    world.rng.uniform = lambda low, high: 60.0 if world.now_s < 5 else uniform(low, high)
    return world


@pytest.mark.parametrize("expected_s", [60.0, 0.5])
@pytest.mark.parametrize("may_interrupt", [True, False])
def test_what_allows_it_gives_way_and_runs_again(may_interrupt, expected_s):
    """Tasks that run for a minute, also where they should have ended long ago."""
    world = long_running(DagWorld())
    low = dag(random.Random(1), "low", 6, DagTerms(PriorityClass.BASIC, may_interrupt))
    low = replace(
        low,
        tasks=tuple(
            replace(each, predecessors=(), predecessor_bytes=(), runtime_s=expected_s) for each in low.tasks
        ),
    )
    world.submit(low)
    world.run(11)
    n_running = sum(each is TaskState.RUNNING for each in world.task_states("low").values())
    assert n_running == 6
    high = dag(random.Random(2), "high", 2, DagTerms(PriorityClass.PREEMPTIVE))
    world.submit(replace(high, tasks=tuple(replace(each, runtime_s=1.0) for each in high.tasks)))
    world.run(20)
    assert ("high" in world.ended) is may_interrupt
    shown = world.service.snapshot()["apps"]["low"]["dag"]
    assert (shown["n_interrupted"] > 0) is may_interrupt
    world.kill_master()
    again = world.service.snapshot()["apps"]["low"]["dag"]
    assert (again["n_interrupted"], again["lost_s"]) == (shown["n_interrupted"], shown["lost_s"])
    assert world.service.snapshot()["apps"]["low"]["tasks"]["failed"] == 0
    world.calm()
    world.assert_ended_well()
    low_runs = {task: n for task, n in world.runs.items() if task.startswith("low/")}
    assert sum(low_runs.values()) - 6 == shown["n_interrupted"]


def layered(name, n_tasks, abreast, priority_class, runtime_s):
    """Chains side by side, all tasks of one length."""
    made = dag(random.Random(1), name, n_tasks, DagTerms(priority_class))
    before = [(each.task,) for each in made.tasks]
    tasks = tuple(
        replace(
            each,
            predecessors=before[number - abreast] if number >= abreast else (),
            predecessor_bytes=(0.0,) if number >= abreast else (),
            runtime_s=runtime_s,
            kind=name,
        )
        for number, each in enumerate(made.tasks)
    )
    return replace(made, tasks=tasks)


def test_changes_of_the_plan_are_no_moves():
    """A task that moved too often keeps its machine, though another one may be free."""
    world = DagWorld("mps", 2)
    rng = random.Random(2)
    world.rng.uniform = lambda low, high: 2.0 + 0.2 * rng.random()
    world.submit(layered("a", 24, 4, PriorityClass.BASIC, 2.0))
    world.submit(layered("b", 24, 4, PriorityClass.BASIC, 2.0))
    world.run(4)
    world.submit(layered("urgent", 5, 1, PriorityClass.PREEMPTIVE, 6.0))
    for _ in range(40):
        world.run(1)
        apps = world.service.snapshot()["apps"]
        for each in world.service.policy._inner.state.dags.values():
            assert sum(task.n_moves for task in each.tasks) <= apps[each.dag_id]["dag"]["n_moved"]


def test_a_master_can_begin_at_every_point_of_the_journal():
    story = DagWorld("mps", 5)
    story.behaviour = noise.behave(story)
    rng = random.Random(3)
    for number in range(2):
        story.submit(dag(rng, f"dag{number}", 6, DagTerms(PriorityClass.HIGH, may_interrupt=True)))
    story.run(6)
    story.pause("dag1")
    story.run(3)
    story.pause("dag1", is_paused=False)
    story.run(6)
    content, ends = story.disk, [at + 1 for at, byte in enumerate(story.disk) if byte == ord("\n")]
    assert len(ends) > 25
    for end in ends if ALL else ends[::5]:
        known = decode_journal(content[:end], "journal").records
        done = {each["task"] for each in known if each["r"] == "settled" and each["end"] == "done"}
        world = DagWorld("mps", disk=content[:end])
        world.definitions = story.definitions
        world.truly_done |= done
        apps = set(world.service.snapshot()["apps"])
        resume(world)
        world.calm()
        ended = world.service.snapshot()["ended"]
        assert apps <= ended.keys()
        assert not done & {each.task for each in world.history}, "what was done is done again"
        for name in apps:
            if ended[name]["state"] == "done":
                assert ended[name]["dag"]["own_makespan_s"] is not None


@pytest.mark.parametrize("is_shortened", [False, True])
def test_what_a_dag_takes_alone_is_known_to_the_master_after_its_last_task(is_shortened):
    story = DagWorld("mps", 5)
    story.submit(dag(random.Random(3), "a", 4, DagTerms()))
    story.calm()
    [known] = [story.service.snapshot()["ended"][name]["dag"] for name in ("a",)]
    lines = story.disk.splitlines(keepends=True)
    last = max(at for at, line in enumerate(lines) if b'"r":"settled"' in line.replace(b" ", b""))
    world = DagWorld("mps", disk=b"".join(lines[: last + 1]))
    world.definitions = story.definitions
    world.grows = False  # no worker is there before the application is closed
    if is_shortened:
        world.kill_master()
    world.run(5)
    later = world.service.snapshot()["ended"]["a"]["dag"]
    assert later == known
    assert later["own_makespan_s"] > 0
    assert later["core_s_after"] > later["core_s_before"] == 0.0


def test_the_slowdown_that_is_shown_of_a_dag_that_waits_is_what_it_turns_out_to_be(monkeypatch):
    """A deep DAG behind a wide one, first come, first served; by equation (3)."""
    world = DagWorld("fcfs", behaviour=lambda order, worker: "done")
    monkeypatch.setattr(world.rng, "uniform", lambda *_: 1.0)
    world.grows = False
    world.add_worker()
    world.run(4)
    started_s, begun = {}, world.begun

    def note(order, worker):
        started_s[order.task] = world.now_s
        begun(order, worker)

    monkeypatch.setattr(world, "begun", note)
    for name, n_tasks, parents in (("wide", 30, ()), ("deep", 8, range(7))):
        chain = {number + 1: (number,) for number in parents}
        made = app(name, n_tasks, chain=chain, output=f"hdfs:///out/{name}")
        tasks = tuple(replace(each, runtime_s=1.0) for each in made.tasks)
        world.submit(replace(made, tasks=tasks, dag=DagTerms()))
    arrived_s, shown = world.now_s, {}
    while "deep" in (status := world.service.snapshot())["apps"]:
        shown[world.now_s - arrived_s] = status["apps"]["deep"]["dag"]["sd"]
        world.step()
    for since_s, slowdown in shown.items():
        if 1 < since_s < 8 and since_s % 1:
            happens_s = started_s[f"deep/{int(since_s)}"] + since_s % 1 - arrived_s
            assert slowdown == pytest.approx(1 - (happens_s - since_s) / since_s)
            assert slowdown < 0, "it starves, and does not look undisturbed"
    assert status["ended"]["deep"]["dag"]["sd"] == pytest.approx(8 / (world.now_s - arrived_s), abs=0.05)
