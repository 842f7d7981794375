"""What readers of the HDAS paper expect of each policy in simulated time, in whatever cluster and mix."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from yarn_accel.core.tasks.outcome import RunOutcome
from yarn_accel.core.tasks.policies import POLICIES, make
from yarn_accel.core.tasks.values import Form
from yarn_accel.sim.simulator import simulate
from yarn_accel.sim.world import World, world_of

WORLDS = Path(__file__).parents[3] / "benchmarks/papers/hdas_paper/worlds"
CORES, GPUS = 3, 2
TINY = 1e-6

seconds = st.integers(1, 40).map(float)
forms = st.fixed_dictionaries({"read_s": st.integers(1, 20).map(float), "compute_s": seconds})
mixes = st.lists(
    st.fixed_dictionaries(
        {"tasks": st.integers(1, 8), "split_mb": st.integers(1, 2000), "cpu": forms, "gpu": forms}
    ),
    min_size=1,
    max_size=4,
)


def world(mix: list[dict[str, Any]], bandwidth_mb_s: float, n_nodes: int = 2) -> World:
    return world_of(
        {
            "disks": {"disk": {"bandwidth_mb_s": bandwidth_mb_s, "gamma": 0.1}},
            "nodes": [{"count": n_nodes, "cores": CORES, "gpus": GPUS}],
            "apps": [{"name": f"a{number}", **app} for number, app in enumerate(mix)],
        },
        "drawn",
    )


def rate_mb_s(mix: list[dict[str, Any]]) -> float:
    """What the fastest reader of a mix requests."""
    return max(app["split_mb"] / app[form]["read_s"] for app in mix for form in ("cpu", "gpu"))


def most_at_once(outcome: RunOutcome, node: str, form: Form | None = None) -> int:
    """Tasks that a node ran at once, of one form or of both."""
    tasks = [task for task in outcome.tasks if task.node == node and form in (None, task.form)]
    # What ends at the moment at which another one starts has left its place to it.
    steps = [(task.start_s, 1) for task in tasks] + [(task.end_s, -1) for task in tasks]
    return max(itertools.accumulate(step for _, step in sorted(steps)), default=0)


@settings(max_examples=examples(100), deadline=None)
@given(st.sampled_from(sorted(POLICIES)), mixes, st.integers(1, 300))
def test_every_task_is_done_once_within_the_limits_and_no_faster_than_alone(
    name: str, mix: list[dict[str, Any]], bandwidth_mb_s: int
) -> None:
    # A single reader gets what it requests, or T_base is not what it takes alone.
    outcome = simulate(world(mix, max(bandwidth_mb_s, rate_mb_s(mix))), make(name))
    assert sorted(task.task for task in outcome.tasks) == sorted({task.task for task in outcome.tasks})
    assert len(outcome.tasks) == sum(app["tasks"] for app in mix)
    for node in {task.node for task in outcome.tasks}:
        assert most_at_once(outcome, node) <= CORES
        assert most_at_once(outcome, node, Form.GPU) <= GPUS
    assert all(task.delay >= 1 - TINY for task in outcome.tasks)


@settings(max_examples=examples(60), deadline=None)
@given(st.sampled_from(sorted(POLICIES)), mixes)
def test_nobody_is_delayed_where_no_disk_is_asked_for_more_than_it_gives(
    name: str, mix: list[dict[str, Any]]
) -> None:
    # A task on a GPU takes a core, too, so a node has no more readers than cores.
    enough_mb_s = CORES * rate_mb_s(mix) * (1 + 0.1 * (CORES - 1))
    outcome = simulate(world(mix, enough_mb_s), make(name))
    assert all(math.isclose(task.delay, 1, abs_tol=TINY) for task in outcome.tasks)


def makespan_s(letter: str, name: str, declared_mb_s: float | None = None) -> float:
    """Of a mix of the paper, with what the policy believes that a disk gives."""
    values = yaml.safe_load((WORLDS / f"{letter}.yaml").read_text())
    if declared_mb_s is not None:
        values["disks"]["sata"]["declared_mb_s"] = declared_mb_s
    found = world_of(values, letter)
    return simulate(found, make(name, found.settings)).makespan_s


@pytest.mark.parametrize("name", ["model", "hdas"])
def test_where_nobody_reads_much_the_policies_take_the_same_time(name: str) -> None:
    assert makespan_s("I", name) == pytest.approx(makespan_s("I", "fifo"), rel=0.01)


@pytest.mark.parametrize("name", ["fifo", "model", "hdas"])
def test_where_all_read_much_gpus_help_no_policy_much(name: str) -> None:
    assert 2 < makespan_s("C", "hadoop") / makespan_s("C", name) < 2.95


def test_hdas_loses_its_lead_over_the_model_where_disks_are_believed_to_give_nearly_nothing() -> None:
    model_s = makespan_s("K", "model")
    assert makespan_s("K", "hdas") < 0.9 * model_s
    assert makespan_s("K", "hdas", declared_mb_s=1.0) > 0.95 * model_s
