"""What each policy does with a place, key by key."""

import pytest

from tests.fixtures.driven_policy import DrivenPolicy
from tests.fixtures.task_events import AppSubmitted, TaskEnded, TasksReady
from tests.fixtures.task_world import MB, TaskWorld, app_spec, resource_spec, task_ids
from yarn_accel.core.dags.events import Decide, TaskStarted
from yarn_accel.core.tasks.commands import StartTask
from yarn_accel.core.tasks.events import EndReason, IoSampled
from yarn_accel.core.tasks.policies import POLICIES, SETTINGS, make
from yarn_accel.core.tasks.values import AppSpec, Form, FormDemand
from yarn_accel.errors import ConfigError

KNN = {"cpu": (101.2, 0.0), "gpu": (12.99, 2.7), "split": 1024 * MB}
BP = {"cpu": (940.9, 0.0), "gpu": (0.04, 23.6), "split": 4 * MB}
NB = {"cpu": (381.9, 0.0), "gpu": (12.65, 10.82), "split": 1024 * MB}


def world(name, *resources, **settings):
    made = TaskWorld(make(name, settings))
    made.join(*(resources or (resource_spec(),)))
    return made


def submit(made, *specs, gap_s=1.0):
    for spec in specs:
        made.submit(spec)
        made.now_s += gap_s


def apps(commands, form=None):
    return [c.task.split("-")[0] for c in commands if isinstance(c, StartTask) and form in (None, c.form)]


def test_the_least_delayed_application_gets_the_gpu():
    """Key (a): one reader of 78.8 MB/s leaves no other enough of 128 MB/s; BP hardly reads."""
    made = world("hdas", resource_spec(cores=2, gpus=2))
    submit(made, app_spec("knn", **KNN), app_spec("bp", **BP))
    commands = made.decide()
    assert apps(commands) == ["knn", "bp"]
    assert commands[1].reason.startswith("(a) least delay 1")


def test_no_rule_refuses_a_delayed_task():
    made = world("hdas")
    submit(made, app_spec("knn", **KNN, n_tasks=20))
    assert apps(made.decide(), Form.GPU) == ["knn"] * 4


def test_equal_delays_go_to_fewer_gpu_tasks():
    """Key (b), which counts GPU tasks alone, over the whole cluster."""
    made = world("hdas", resource_spec(cores=4))
    submit(made, app_spec("a", gpu=(0, 5), cpu=(0, 50)), app_spec("b", gpu=(0, 7), cpu=(0, 50)))
    commands = made.decide()
    assert apps(commands) == ["a", "b", "a", "b"]
    assert commands[1].reason.startswith("(b) fewest GPU tasks so far 0")


def test_gpu_only_goes_before_mixed():
    """Key (c): the later one, since it can go nowhere else."""
    made = world("hdas", resource_spec(cores=1, gpus=1))
    submit(made, app_spec("mixed", gpu=(0, 5), cpu=(0, 50)), app_spec("only", gpu=(0, 5)))
    assert apps(made.decide()) == ["only"]


def test_the_earlier_start_and_then_the_id_decide():
    """Keys (d) and (e)."""
    made = world("hdas", resource_spec(cores=1, gpus=1))
    submit(made, app_spec("z", gpu=(0, 5)), app_spec("b", gpu=(0, 5)))
    commands = made.decide()
    assert apps(commands) == ["z"]
    assert commands[0].reason.startswith("(d) earliest start 0")
    made = world("hdas", resource_spec(cores=1, gpus=1))
    submit(made, app_spec("z", gpu=(0, 5)), app_spec("b", gpu=(0, 5)), gap_s=0)
    assert apps(made.decide()) == ["b"]


def test_within_the_tolerance_delays_are_equal():
    """RS reads a little: 1.004 against 1 is a tie for a tolerance of 0.05, and none for the default."""
    for tolerance, first in ((1e-9, "still"), (0.05, "little")):
        made = world("hdas", resource_spec(cores=1, gpus=1), tie_tolerance=tolerance)
        submit(made, app_spec("little", gpu=(0.1, 40), split=9 * MB), app_spec("still", gpu=(0, 40)))
        made.apply([IoSampled("n1", 100 * MB, 1, made.now_s, made.now_s)])
        assert apps(made.decide()) == [first]


def test_cores_go_to_the_application_that_is_behind():
    """Key (a) of cores counts tasks of both forms: b has had GPUs, so a and its slower tasks come first."""
    made = world("hdas", resource_spec("g", cores=4, gpus=4))
    submit(made, app_spec("b", gpu=(0, 5), cpu=(0, 100)), gap_s=10)
    made.decide()
    made.join(resource_spec("c", cores=3, gpus=0))
    submit(made, app_spec("a", cpu=(0, 150)), gap_s=10)
    # RP at 20 s: b 4 * 100 / 20 = 20; a 0, then 150 / 10 = 15, then 30.
    commands = made.decide()
    assert apps(commands) == ["a", "a", "b"]
    assert commands[0].reason.startswith("(a) least relative progress 0")


def test_equal_progress_goes_to_the_larger_share_of_the_best_rate():
    """Key (b) of cores: of what it could do on a GPU, KNN loses less on a core than BP does."""
    made = world("hdas", resource_spec("n1", cores=1, gpus=0), resource_spec("n2", cores=1, gpus=1))
    submit(made, app_spec("bp", **BP), app_spec("knn", **KNN))
    commands = made.decide()
    assert (commands[0].resource, apps(commands)[0]) == ("n1", "knn")
    assert commands[0].reason.startswith("(b) largest share of its best rate 0.155")


def test_cpu_only_goes_before_mixed():
    """Key (c) of cores."""
    made = world("hdas", resource_spec(cores=1, gpus=0))
    submit(made, app_spec("mixed", gpu=(0, 50), cpu=(0, 50)), app_spec("only", cpu=(0, 50)))
    assert apps(made.decide()) == ["only"]


def test_virtual_time_is_another_form_of_progress():
    made = world("hdas", resource_spec(cores=2, gpus=0), progress="virtual-time")
    submit(made, app_spec("early", cpu=(0, 3)), app_spec("late", cpu=(0, 3)), gap_s=2)
    # early 0, then 3; late 2.
    assert apps(made.decide()) == ["early", "late"]


def test_higher_priority_is_served_first_in_both_forms():
    made = world("hdas", resource_spec(cores=2, gpus=1))
    submit(made, app_spec("low", gpu=(0, 5), cpu=(0, 9)), app_spec("high", cpu=(0, 9), priority=7))
    assert apps(made.decide()) == ["high", "high"]


def test_the_guard_keeps_long_tasks_from_cores_where_gpus_end_sooner():
    specs = app_spec("bp", **BP, n_tasks=40), app_spec("cpu", cpu=(0, 5000))
    made = world("hdas")
    submit(made, *specs)
    assert "bp" in apps(made.decide(), Form.CPU)
    made = world("hdas+")
    submit(made, *specs)
    # 40 tasks of 23.6 s on 4 GPUs: 236 s, less than 941 s; what has no other form is exempt.
    assert apps(made.decide(), Form.CPU) == ["cpu", "cpu"]
    excluded = {c.app: c.excluded for c in made.policy.candidates("n1", Form.CPU)}
    assert excluded["bp"].startswith("tail guard: 940.9 s on a core")


def test_the_model_gives_gpus_to_one_and_cores_to_the_others():
    """P: BP never runs on a core while others wait."""
    made = world("model")
    submit(made, app_spec("knn", **KNN), app_spec("nb", **NB), app_spec("bp", **BP))
    commands = made.decide()
    assert apps(commands, Form.GPU) == ["bp"] * 4
    assert sorted(apps(commands, Form.CPU)) == ["knn", "nb"]
    made = world("model")
    submit(made, app_spec("bp", **BP))
    assert apps(made.decide()) == ["bp"] * 6


def test_dominant_shares_are_of_what_is_demanded():
    """A cluster without GPUs and without memory limits: shares are of cores."""
    made = world("model", resource_spec(cores=6, gpus=0))
    submit(made, app_spec("a", cpu=(0, 5)), app_spec("b", cpu=(0, 5)))
    assert apps(made.decide()) == ["a", "b"] * 3


def test_fifo_takes_the_first_and_a_gpu_where_one_is_free():
    made = world("fifo")
    submit(made, app_spec("cpu", cpu=(0, 9), n_tasks=2), app_spec("knn", **KNN), app_spec("bp", **BP))
    commands = made.decide()
    assert [(c.task, c.form) for c in commands[:2]] == [("cpu-0000", Form.CPU), ("cpu-0001", Form.CPU)]
    assert apps(commands, Form.GPU) == ["knn"] * 4


def test_hadoop_uses_cores_alone():
    made = world("hadoop")
    submit(made, app_spec("knn", **KNN), app_spec("gpu", gpu=(0, 5)))
    assert apps(made.decide(), Form.GPU) == []
    assert made.policy.candidates("n1", Form.GPU)[0].excluded == "Hadoop alone uses no GPU"


def test_figures_differ_by_kind_of_accelerator():
    """The delay is relative to the figures of the node's own kind; the guard sums the kinds' rates."""
    spec = app_spec("a", gpu=(0, 40), cpu=(0, 90), n_tasks=4)
    spec.declared.accelerators["fast"] = type(spec.declared.forms[Form.GPU])(0, 10)
    made = world("hdas+", resource_spec("n1", gpus=1), resource_spec("n2", gpus=1, accelerator="fast"))
    submit(made, spec)
    [candidate] = made.policy.candidates("n1", Form.CPU)
    assert candidate.excluded == "tail guard: 90 s on a core, GPUs end all in 32 s"  # 4 / (1/40 + 1/10)
    commands = made.decide()
    assert [c.reason.rpartition("; ")[2] for c in commands] == [
        "40 s predicted, delay 1",
        "10 s predicted, delay 1",
    ]


@pytest.mark.parametrize("name", POLICIES)
def test_candidates_name_first_what_is_chosen_next(name):
    made = world(name, resource_spec(cores=6, gpus=4))
    submit(
        made, app_spec("knn", **KNN), app_spec("nb", **NB), app_spec("bp", **BP), app_spec("c", cpu=(0, 9))
    )
    for form in (Form.GPU, Form.CPU):
        named = {c.app for c in made.policy.candidates("n1", form)}
        assert named == {"knn", "nb", "bp", "c"}
    made.decide()
    for _ in range(20):
        task, _ = next(iter(made.workers["n1"].running.items()))
        made.end(task)
        forms = [form for form in (Form.GPU, Form.CPU) if made.is_free("n1", form)]
        best = {form: [c.app for c in made.policy.candidates("n1", form) if not c.excluded] for form in forms}
        for command in made.decide():
            assert best[command.form][0] == command.task.split("-")[0]


@pytest.mark.parametrize("name", POLICIES)
def test_every_task_is_done_once(name):
    made = world(name, resource_spec("n1"), resource_spec("n2", cores=3, gpus=1), resource_spec("n3", gpus=0))
    submit(
        made, app_spec("knn", **KNN), app_spec("nb", **NB), app_spec("bp", **BP), app_spec("c", cpu=(0, 9))
    )
    made.run()
    assert len(made.done) == 40
    assert made.policy.table.apps == {}


@pytest.mark.parametrize("name", POLICIES)
def test_unknown_ids_are_ignored_and_counted(name):
    policy = DrivenPolicy(make(name))
    policy.apply(TasksReady("nobody", ("t",), 0))
    policy.apply(TaskStarted("t", "n1", Form.CPU, 0))
    policy.apply(TaskEnded("t", "n1", EndReason.DONE, 0))
    policy.apply(IoSampled("n1", 0, 0, 0, 0))
    assert policy.apply(Decide(0)) == ()
    assert policy.candidates("n1", Form.CPU) == ()
    assert sum(policy.ignored.values()) == 4


def test_an_application_twice_is_misuse():
    policy = DrivenPolicy(make("fifo"))
    policy.apply(AppSubmitted(app_spec("a", cpu=(0, 5)), 0))
    policy.apply(AppSubmitted(app_spec("a", cpu=(0, 5)), 1))
    with pytest.raises(ConfigError, match="application a: submitted twice"):
        policy.apply(AppSubmitted(app_spec("a", cpu=(0, 6)), 2))


def test_names_and_settings_are_checked():
    assert POLICIES.keys() == SETTINGS.keys()
    with pytest.raises(ConfigError, match="known: fifo, model"):
        make("lifo")
    with pytest.raises(ConfigError, match="'fifo' has no setting 'progress'; it has: above_saturation"):
        make("fifo", {"progress": "rate"})
    for key, value in (
        ("above_saturation", "none"),
        ("progress", []),
        ("tasks_per_heartbeat", 1),
        ("tie_tolerance", float("nan")),
        ("next_tasks_per_slot", 2),
        ("learns", "no"),
    ):
        with pytest.raises(ConfigError, match=f"policy.{key}: expected"):
            make("hdas", {key: value})


def test_one_task_per_heartbeat_spreads_over_nodes():
    made = world("hdas", resource_spec("n1"), resource_spec("n2"), tasks_per_heartbeat="one")
    submit(made, app_spec("a", gpu=(0, 5)))
    assert [c.resource for c in made.decide()] == ["n1", "n2"]
    assert [c.resource for c in made.decide()] == ["n1", "n2"]


def test_a_burst_of_ready_tasks_is_served_in_order():
    made = world("hdas")
    made.submit(app_spec("a", gpu=(0, 5), cpu=(0, 5), n_tasks=100_000))
    assert [c.task for c in made.decide()] == list(task_ids("a", 6))


def test_what_never_began_does_not_count_as_dispatched():
    """A service that cannot start a task says that it was lost: that is no progress of its application."""
    made = TaskWorld(make("hdas"))
    policy = made.policy
    made.join(resource_spec(cores=1, gpus=1))
    policy.apply(AppSubmitted(app_spec("a", gpu=(0, 5)), 0))
    policy.apply(TasksReady("a", task_ids("a", 2), 0))
    for begins, counts in ((False, (0, 0)), (True, (1, 1))):
        (command,) = policy.apply(Decide(1))
        if begins:
            policy.apply(TaskStarted(command.task, "n1", Form.GPU, 1))
        policy.apply(TaskEnded(command.task, "n1", EndReason.LOST, 2))
        app = policy.table.apps["a"]
        assert (app.n_alloc, app.n_gpu) == counts


def test_a_task_that_nobody_ordered_is_adopted():
    """As after a restart of the service: it occupies its place, and reads there."""
    made = TaskWorld(make("hdas"))
    policy = made.policy
    made.join(resource_spec(cores=2, gpus=2))
    policy.apply(AppSubmitted(app_spec("knn", **KNN), 0))
    policy.apply(TasksReady("knn", task_ids("knn", 3), 0))
    policy.apply(TaskStarted("knn-0000", "n1", Form.GPU, 0))
    (command,) = policy.apply(Decide(1))
    assert (command.task, command.form) == ("knn-0001", Form.GPU)
    # 12.99 s * 78.8 MB/s * 2 / 128 MB/s + 2.7 s
    assert command.reason == "the only candidate; 18.7 s predicted, delay 1.19"
    policy.validate()


def test_samples_and_what_began_and_ended_since_are_added_up():
    made = TaskWorld(make("fifo"))
    policy = made.policy
    made.join(resource_spec())
    policy.apply(AppSubmitted(app_spec("knn", **KNN), 0))
    policy.apply(TasksReady("knn", task_ids("knn", 2), 0))
    policy.apply(IoSampled("n1", 10 * MB, 1, 0, 0))
    policy.apply(Decide(1))
    record = policy.table.resources["n1"]
    request = 1024 * MB / 12.99
    assert record.load(1) == pytest.approx((10 * MB + 2 * request, 3))
    for task in ("knn-0000", "knn-0001"):
        policy.apply(TaskStarted(task, "n1", Form.GPU, 1))
    policy.apply(IoSampled("n1", 128 * MB, 3, 3, 3))
    assert record.load(3) == (128 * MB, 3)
    # It ended since, though it read at the sample: what it requested is taken off.
    policy.apply(TaskEnded("knn-0000", "n1", EndReason.FAILED, 4))
    assert record.load(4) == pytest.approx((128 * MB - request, 2))
    policy.apply(IoSampled("n1", 60 * MB, 2, 5, 5))
    assert record.load(5) == (60 * MB, 2)
    # One that is older than the last is ignored.
    policy.apply(IoSampled("n1", 0, 0, 0.5, 6))
    assert policy.ignored["IoSampled"] == 1


def test_a_task_needs_what_its_form_demands():
    for demand, message in (
        ({}, "has no form"),
        ({Form.GPU: FormDemand(1, 0)}, "gpu: only tasks of the form gpu take GPUs"),
        ({Form.CPU: FormDemand(1, 1)}, "cpu: only tasks of the form gpu take GPUs"),
        ({Form.GPU: FormDemand(0, 1)}, "a task takes a core or more"),
    ):
        with pytest.raises(ConfigError, match=f"application a.*{message}"):
            AppSpec("a", "a", 0, 1, demand)
    with pytest.raises(ConfigError, match="resource n1: bandwidth_bytes_per_s"):
        resource_spec(bandwidth=0)


def test_an_application_that_no_node_can_serve_says_why():
    made = TaskWorld(make("hdas"))
    made.join(resource_spec("n1"))
    figures = app_spec("a", gpu=(0, 5)).declared
    made.submit(AppSpec("a", "a", 0, 1, {Form.GPU: FormDemand(1, 8)}, figures))
    assert made.decide() == []
    (candidate,) = made.policy.candidates("n1", Form.GPU)
    assert candidate.excluded == "needs 1 cores, 8 GPUs, 0 bytes; there are 6, 4, 0"
