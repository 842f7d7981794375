"""The worlds of the benchmark `fair`: equal for equal seeds; each of its rows is judged or a plain figure."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.papers import fair
from benchmarks.result import Row
from yarn_accel.core.dags.model import PriorityClass
from yarn_accel.sim.world import world_of


def test_a_seed_is_a_world() -> None:
    assert fair.deep_and_wide(3) == fair.deep_and_wide(3) != fair.deep_and_wide(4)
    basic, high = (fair.mix(3, each) for each in (PriorityClass.BASIC, PriorityClass.HIGH))
    assert [each.dag for each in basic.dags] == [each.dag for each in high.dags]
    assert [each.priority_class for each in basic.dags[1:]] == [each.priority_class for each in high.dags[1:]]


def test_the_bag_takes_longer_than_the_chain() -> None:
    for seed in range(10):
        world = fair.deep_and_wide(seed)
        chain, bag = (sum(task.runtime_s or 0 for task in each.dag.tasks) for each in world.dags)
        assert bag / len(world.machines) > chain


def test_every_world_of_processors_can_be_simulated() -> None:
    for seed in range(60):
        world_of(fair.processors(seed), f"world {seed}")


@pytest.mark.parametrize(
    ("rows_of", "n_worlds", "n_rows"),
    [
        pytest.param(fair.deep_and_wide_rows, 2, 3, marks=pytest.mark.slow),
        (fair.equal_rows, 3, 5),
        (fair.class_rows, 2, 4),
        (fair.processor_rows, 3, 4),
        pytest.param(fair.baseline_rows, 1, 18, marks=pytest.mark.slow),
    ],
)
def test_rows(rows_of: Callable[[int], list[Row]], n_worlds: int, n_rows: int) -> None:
    rows = rows_of(n_worlds)
    assert len({row.what for row in rows}) == len(rows) == n_rows
    assert all((row.ok is None) is (row.goal == "") for row in rows)
