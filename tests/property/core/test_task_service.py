"""Whatever is lost, late, repeated or dies: no task is lost, none counts twice, and all applications end.

`World` holds the truth and checks each command; `validate()` runs after each event.
"""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import ALL, examples
from tests.unit.core.tasks.service import noise
from tests.unit.core.tasks.service.policies import RestlessPolicy, first_come
from tests.unit.core.tasks.service.world import World, app
from yarn_accel.core.tasks.learning import FigureStore
from yarn_accel.core.tasks.policies import POLICIES, make
from yarn_accel.core.tasks.records import NO_BELIEFS
from yarn_accel.core.tasks.service.journal import decode_journal, encode_records
from yarn_accel.core.tasks.service.journaled_table import JournaledTable
from yarn_accel.core.tasks.service.records import decode_record, encode_record

MAKERS = {
    "restless": RestlessPolicy,
    "first come": first_come,
    **{name: (lambda name=name: make(name)) for name in ("fifo", "model", "hdas", "hdas+")},
}


def noisy_world(make_policy, seed):
    world = World(make_policy, seed)
    world.behaviour = noise.behave(world)
    return world


def records_of(content):
    return decode_journal(content, "journal").records


@settings(max_examples=examples(250), deadline=None)
@given(
    maker=st.sampled_from(sorted(MAKERS)),
    faults=st.lists(st.sampled_from(noise.FAULTS), min_size=5, max_size=30),
    seed=st.integers(0, 2**32),
)
def test_all_ends_well(maker, faults, seed):
    world = noisy_world(MAKERS[maker], seed)
    for happens in faults:
        happens(world)
    world.calm(1500)
    world.assert_ended_well()


class ForgetfulWorld(World):
    """Makes its policy anew before each event, and drops what was computed of applications."""

    def apply(self, event):
        self.policy = self.service.attempts.policy = self.make_policy()
        self.policy.follow(self.service.table)
        for each in self.service.table.apps.values():
            each.beliefs = NO_BELIEFS
        super().apply(event)


@settings(max_examples=examples(60), deadline=None)
@given(
    name=st.sampled_from(sorted(POLICIES)),
    n_next=st.integers(0, 1),
    faults=st.lists(st.sampled_from(noise.FAULTS), min_size=5, max_size=30),
    seed=st.integers(0, 2**32),
)
def test_a_policy_without_its_caches_decides_the_same(name, n_next, faults, seed):
    decided = []
    for kind in (World, ForgetfulWorld):
        figures = FigureStore()
        world = kind(lambda: make(name, {"next_tasks_per_slot": n_next}), seed, figures=figures)
        world.behaviour = noise.behave(world)
        for happens in faults:
            happens(world)
        decided.append((world.history, world.disk, figures.to_document()))
    assert decided[0] == decided[1]


@pytest.mark.parametrize("seed", range(20 if ALL else 3))
def test_long_noise_ends_well(seed):
    world = noisy_world(RestlessPolicy, seed)
    rng = random.Random(seed)
    for _ in range(120):
        rng.choice(noise.FAULTS)(world)
    world.calm(1500)
    world.assert_ended_well()


def test_a_master_can_begin_at_every_point_of_the_journal():
    """What was done by then is not done again, and all the rest is; as at a crash between any two bytes."""
    story = noisy_world(RestlessPolicy, 5)
    story.submit(app("a", 5, chain={3: [0, 1], 4: [3]}))
    story.submit(app("b", 4, output=""))
    story.run(12)
    story.cancel("b")
    story.run(3)
    content, ends = story.disk, [at + 1 for at, byte in enumerate(story.disk) if byte == ord("\n")]
    assert len(ends) > 30
    for end in ends if ALL else ends[::4]:
        disk = content[: min(end + story.rng.randint(0, 40), len(content))]
        known = records_of(content[:end])
        done = {each["task"] for each in known if each["r"] == "settled" and each["end"] == "done"}
        world = World(first_come, disk=disk)
        apps = set(world.service.snapshot()["apps"])
        world.calm()
        ended = world.service.snapshot()["ended"]
        assert apps <= ended.keys()
        for name in apps:
            counts = ended[name]["tasks"]
            assert sum(counts.values()) == counts["done"] + counts["cancelled"] + counts["failed"]
            is_over = any(each["r"] == "over" and each["app"] == name for each in known)
            assert is_over or ended[name]["state"] == "done"
        assert not done & {each.task for each in world.history}, "what was done is done again"


@settings(max_examples=examples(60), deadline=None)
@given(faults=st.lists(st.sampled_from(noise.FAULTS), min_size=5, max_size=25), seed=st.integers(0, 2**32))
def test_a_shortened_journal_makes_the_same_state(faults, seed):
    world = noisy_world(RestlessPolicy, seed)
    for happens in faults:
        happens(world)
    noise.let_journal_go(world)
    first = replayed(records_of(world.disk))
    shorter = tuple(encode_record(each) for each in first.records())
    second = replayed(records_of(encode_records(shorter)))
    assert tuple(encode_record(each) for each in second.records()) == shorter
    assert described(first) == described(second)


def replayed(records):
    table = JournaledTable(max_crashes=10, n_ended=1000, n_ended_tasks=1000)
    table.is_replaying = True
    for record in records:
        table.apply(decode_record(record))
    return table


def described(table):
    tasks = {
        task.id: (task.state, task.n_attempts, task.n_failures, task.n_crashes, task.n_missing, task.error)
        for task in table.tasks.values()
    }
    workers = {
        worker.id: (
            worker.incarnation,
            set(worker.starts),
            [each.attempt for each in worker.queue],
            {name: each.drop for name, each in worker.dropped.items()},
        )
        for worker in table.workers.values()
    }
    apps = {
        app.id: (app.number, app.counts, app.is_over, app.error, app.begun_at, app.history.tasks)
        for app in table.apps.values()
    }
    ended = {each.app: (replace(each, history=None), each.history.tasks) for each in table.ended.values()}
    return tasks, workers, apps, ended, table.started_ms, table.n_apps
