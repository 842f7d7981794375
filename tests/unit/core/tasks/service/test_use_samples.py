"""What workers did over time: means in steps, gaps, and bounds."""

import pytest

from tests.unit.core.tasks.service.policies import first_come
from tests.unit.core.tasks.service.world import STARTED_AT, World, app
from yarn_accel.core.tasks.service import use_samples
from yarn_accel.core.tasks.service.use_samples import N_STEPS, STEP_S, UseSamples
from yarn_accel.core.tasks.values import ResourceSpec


def spec(name="w1", cores=4, gpus=2):
    return ResourceSpec(name, f"node-{name}", cores, gpus, 0, 1e8)


def worker_of(samples, name="w1", n_steps=N_STEPS):
    return samples.document(n_steps, 10)["workers"][name]


def test_a_step_has_the_mean_of_what_was_there_in_it():
    samples = UseSamples()
    samples.note(spec(), 100.0, 2, 1, None)
    samples.note(spec(), 104.0, 4, 0, 10e6)  # 4 s with 2 cores and a GPU
    samples.note(spec(), 107.0, 0, 0, 40e6)  # 1 s with 4 cores, then 2 s of the next step
    samples.note(spec(), 112.0, 0, 0, None)
    found = worker_of(samples)
    assert found["from_at"] == 100.0
    assert found["cores"] == pytest.approx([(4 * 2 + 4) / 5, 2 * 4 / 5])
    assert found["gpus"] == pytest.approx([4 / 5, 0])
    assert found["bytes_per_s"] == pytest.approx([(4 * 10e6 + 40e6) / 5, 40e6])
    assert (found["node"], found["n_cores"], found["n_gpus"]) == ("node-w1", 4, 2)


def test_all_workers_are_added_up():
    samples = UseSamples()
    for at in range(100, 112):
        samples.note(spec("w1"), at, 2, 1, 5e6)
        samples.note(spec("w2"), at, 1, 0, 7e6)
    found = samples.document(N_STEPS, 10)["all"]
    assert found["cores"] == pytest.approx([3, 3])
    assert found["gpus"] == pytest.approx([1, 1])
    assert found["bytes_per_s"] == pytest.approx([12e6, 12e6])


def test_a_worker_that_is_silent_for_long_leaves_a_gap():
    samples = UseSamples()
    for at in (100, 105, 200, 206):
        samples.note(spec(), at, 1, 0, 1e6)
    found = worker_of(samples)
    assert found["cores"] == [1.0, *[None] * 19, 1.0]
    assert found["bytes_per_s"][1] is None


def test_old_steps_go_and_few_may_be_asked_for():
    samples = UseSamples()
    for step in range(2 * N_STEPS):
        samples.note(spec(), step * STEP_S, step, 0, None)
    found = worker_of(samples)
    assert len(found["cores"]) == N_STEPS - 1
    assert found["cores"][-1] == 2 * N_STEPS - 3
    assert found["cores"] == list(range(N_STEPS - 1, 2 * N_STEPS - 2))
    assert worker_of(samples, n_steps=3)["cores"] == found["cores"][-3:]
    assert worker_of(samples, n_steps=3)["from_at"] == found["from_at"] + (N_STEPS - 4) * STEP_S


def test_a_clock_that_goes_back_breaks_nothing():
    samples = UseSamples()
    for at in (100.0, 110.0, 50.0, 53.0, 111.0, 117.0):
        samples.note(spec(), at, 1, 0, 1e6)
    assert worker_of(samples)["cores"][:2] == [1.0, 1.0]


def test_the_workers_that_reported_longest_ago_are_forgotten(monkeypatch):
    monkeypatch.setattr(use_samples, "MAX_WORKERS", 2)
    samples = UseSamples()
    for at, name in enumerate(("w1", "w2", "w1", "w3")):
        samples.note(spec(name), 100.0 + at, 1, 0, None)
    assert set(samples.document(N_STEPS, 10)["workers"]) == {"w1", "w3"}


def test_of_many_workers_those_that_use_most_are_shown():
    samples = UseSamples()
    for name, cores, gpus in (("w1", 1, 0), ("w2", 1, 2), ("w3", 4, 0)):
        samples.note(spec(name), 100.0, cores, gpus, None)
    found = samples.document(N_STEPS, 2)
    assert (list(found["workers"]), found["n_workers"]) == (["w2", "w3"], 3)


def test_workers_of_some_nodes_may_be_asked_for():
    samples = UseSamples()
    for name in ("w1", "w2", "w3"):
        samples.note(spec(name), 100.0, 1, 0, None)
    assert set(samples.document(N_STEPS, 2, {"node-w1", "node-w3", "nobody"})["workers"]) == {"w1", "w3"}
    assert samples.document(N_STEPS, 2, ())["workers"] == {}


def test_a_service_notes_what_its_workers_report():
    world = World(first_come)
    world.submit(app("a", 12))
    world.run(30)
    found = world.service.use(N_STEPS, 10)
    assert found["all"]["from_at"] == pytest.approx(STARTED_AT, abs=2 * STEP_S)
    assert max(found["all"]["cores"]) > 0
    assert all(0 <= n <= 2 for worker in found["workers"].values() for n in worker["cores"])
    assert {worker["node"] for worker in found["workers"].values()} >= {"node-w1"}


def test_applications_have_shares_and_delays_and_workers_what_they_use():
    world = World(first_come, behaviour=lambda order, worker: "hang")
    world.add_worker()
    world.grows = False
    world.submit(app("a", 9))
    world.run(6)
    found = world.service.snapshot()
    worker, served = found["workers"]["w1"], found["apps"]["a"]
    assert (worker["cores"], worker["n_cores"]) == (2, 2)
    assert (served["cores"], served["gpus"], served["share"]) == (2, 0, 1.0)
    assert served["begun_at"] == STARTED_AT
    assert served["delay"] is None
