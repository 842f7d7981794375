"""`hdas+` looks ahead: which of its rules it follows, and whether what it expects of them happens."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.papers.fair import processors
from tests.examples import examples
from tests.fixtures.task_world import TaskWorld, app_spec, resource_spec
from yarn_accel.core.tasks.commands import EnqueueTask
from yarn_accel.core.tasks.learning import FigureStore
from yarn_accel.core.tasks.policies import make
from yarn_accel.core.tasks.policies.baselines import FifoPolicy
from yarn_accel.core.tasks.policies.forecast import Sketch
from yarn_accel.core.tasks.policies.hdas import GuardedHdasPolicy, HdasPolicy
from yarn_accel.core.tasks.policy import TaskPolicy
from yarn_accel.core.tasks.values import Form
from yarn_accel.sim.simulator import Simulation, simulate
from yarn_accel.sim.world import world_of

#: Two long tasks for cores, and ten for GPUs, which take cores, too.
LONG, SHORT = app_spec("long", cpu=(0, 100), n_tasks=2), app_spec("short", gpu=(0, 10))


class Forecasting(TaskPolicy):
    """Decides by a rule, and forecasts before its first decision when that rule would have done all."""

    def __init__(self, rule):
        self.rule, self.expected_s = rule, None

    def follow(self, table):
        self.rule.follow(table)

    def plan(self, table, figures, now_s):
        if self.expected_s is None and table.levels:
            self.rule.candidates(table, figures, now_s, "n-1", Form.CPU)  # it looks at all figures
            self.expected_s = Sketch(table, now_s).last_end_s(type(self.rule)())
        yield from self.rule.plan(table, figures, now_s)


@st.composite
def worlds(draw):
    seconds = st.floats(0.1, 100.0)
    bandwidth_mb_s = draw(st.floats(50.0, 500.0))
    apps = []
    for number in range(draw(st.integers(1, 4))):
        split_mb = draw(st.floats(1.0, 1000.0))
        app = {"name": f"a{number}", "tasks": draw(st.integers(1, 7)), "split_mb": split_mb, "start_s": 0}
        app["priority"] = draw(st.integers(0, 1))
        forms = draw(st.sampled_from(["both", "both", "cpu", "gpu"]))
        if forms != "gpu":
            app["cpu"] = {
                "read_s": max(draw(seconds), 1.001 * split_mb / bandwidth_mb_s),
                "compute_s": draw(seconds),
            }
        if forms != "cpu":
            app["gpu"] = {
                "read_s": max(draw(seconds), 1.001 * split_mb / bandwidth_mb_s),
                "compute_s": draw(seconds),
            }
        apps.append(app)
    nodes = [
        {"name": "n", "count": draw(st.integers(1, 3)), "cores": draw(st.integers(2, 4)), "gpus": 2},
        {"name": "other", "cores": draw(st.integers(2, 4)), "gpus": draw(st.integers(0, 1))},
    ]
    return {"disks": {"disk": {"bandwidth_mb_s": bandwidth_mb_s}}, "nodes": nodes, "apps": apps}


@pytest.mark.parametrize("rule", [FifoPolicy, HdasPolicy, GuardedHdasPolicy])
@given(values=worlds())
@settings(max_examples=examples(40), deadline=None)
def test_what_is_expected_of_a_rule_happens(rule, values):
    """Where disks lose nothing with many readers, and no application has two tasks for each core."""
    policy = Forecasting(rule(None))
    simulation = Simulation(world_of(values, "test"), policy, figures=FigureStore())
    assert simulation.run().makespan_s == pytest.approx(policy.expected_s)


def decided(*specs, n_next=0, n_nodes=1):
    made = TaskWorld(make("hdas+", {"next_tasks_per_slot": n_next}), lambda task, form: 50.0)
    made.join(*(resource_spec(f"n{number}", cores=3, gpus=2) for number in range(n_nodes)))
    for spec in specs:
        made.submit(spec)
    return made, made.decide()


def forms(commands):
    return [(each.task.split("-")[0], each.form.value) for each in commands]


def test_another_rule_is_followed_where_it_ends_sooner_and_the_reason_says_so():
    """GPUs first, as under `hdas`, one of the long tasks would start after the short ones, at 50 s."""
    _, commands = decided(LONG, SHORT)
    assert forms(commands) == [("long", "cpu"), ("long", "cpu"), ("short", "gpu")]
    why = "as fifo would (all ends: guarded 150 s, hdas over 145.5 s, fifo 100 s)"
    assert commands[0].reason == f"first in order, a core is free, {why}; 100 s predicted, delay 1"


def test_a_rule_that_gains_little_is_not_followed():
    _, commands = decided(
        app_spec("long", cpu=(0, 1000), n_tasks=1), app_spec("short", gpu=(0, 10), n_tasks=3)
    )
    assert forms(commands) == [("short", "gpu"), ("short", "gpu"), ("long", "cpu")]
    assert not any("would" in each.reason for each in commands)


@pytest.mark.parametrize(
    "others",
    [
        pytest.param([app_spec("unknown", gpu=(0, 1), is_declared=False)], id="not all is known"),
        pytest.param([app_spec(f"a{n}", cpu=(0, 1), n_tasks=1) for n in range(7)], id="nine applications"),
    ],
)
def test_the_usual_rule_stands_where_no_forecast_is_made(others):
    _, commands = decided(LONG, SHORT, *others, n_nodes=2)
    assert forms(commands)[-3:-1] == [("short", "gpu")] * 2
    assert not any("would" in each.reason for each in commands)


def test_next_tasks_follow_the_rule():
    made, _ = decided(LONG, SHORT, app_spec("more", cpu=(0, 9), n_tasks=3), n_next=1)
    made.settle()
    reasons = {each.task: each.reason for _, each in made.log if isinstance(each, EnqueueTask)}
    assert reasons["more-0001"].startswith("next here: the only candidate, as fifo would (all ends: guarded")


def test_the_rule_is_chosen_anew_before_a_task_that_would_end_late():
    """Disks lose more with many readers than anybody knows, so `fifo` ends later than expected.

    It would then start one of the last tasks on a core for 160 s; on a GPU it takes 3 s.
    """
    outcomes = {name: simulate(world_of(processors(20730), "test"), make(name)) for name in ("fifo", "hdas+")}
    assert outcomes["fifo"].makespan_s > 190
    assert outcomes["hdas+"].makespan_s < 90


def test_a_forecast_ends_where_times_are_large():
    """Seconds since 1970 differ by some tenths of a microsecond at least."""
    made = TaskWorld(make("hdas+"))
    made.now_s = 1.7e9
    made.join(*(resource_spec(f"n{number}", bandwidth=1e6 / 7) for number in range(3)))
    for number in range(4):
        made.submit(
            app_spec(f"a{number}", cpu=(70, 0.1), gpu=(0.3 + number / 7, 0.7), split=1e5 / (number + 3))
        )
    made.decide()
    assert made.policy.table.chosen_rule.late_s < 1.7e9 + 1000


def test_it_is_not_slower_than_fifo_where_hdas_is():
    """Cores are as good as useless there; `hdas` gives them tasks that end last."""
    given = (("a0", 17, 4.0, 146.131, (0.013, 8.42), 0), ("a1", 35, 64.0, 92.553, (0.131, 3.117), 0))
    given += (("a2", 47, 1024.0, 682.401, (2.755, 20.601), 98.1),)
    document = {
        "disks": {"d": {"bandwidth_mb_s": 512.0, "gamma": 0}},
        "nodes": [{"name": "n", "count": 2, "cores": 2, "gpus": 1, "disk": "d"}],
        "apps": [
            {
                **{"name": name, "tasks": n_tasks, "split_mb": split_mb, "start_s": start_s},
                **{"cpu": {"read_s": cpu_s}, "gpu": {"read_s": gpu_s[0], "compute_s": gpu_s[1]}},
            }
            for name, n_tasks, split_mb, cpu_s, gpu_s, start_s in given
        ],
    }
    took_s = {
        name: simulate(world_of(document, "test"), make(name)).makespan_s
        for name in ("fifo", "hdas", "hdas+")
    }
    assert took_s["hdas"] > 1.3 * took_s["fifo"]
    assert took_s["hdas+"] < took_s["fifo"]
