"""Long random walks through the confirm handshake: more of everything than can be exhausted."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.torque.handshake.world import Faults, Rules, World, candidate

SITES = ("a", "b", "c")
wishes = st.lists(
    st.sets(st.sampled_from(SITES), min_size=1).map(lambda sites: candidate(*sites)), min_size=1, max_size=3
).map(tuple)


def walk(rules: Rules, world: World, chance: random.Random) -> World:
    """To an end, by steps chosen at random; judged at every one."""
    for _ in range(3000):
        rules.check(world)
        moves = list(rules.moves(world))
        if not moves:
            return world
        world = chance.choice(list(chance.choice(moves)()))
    raise AssertionError("3000 steps and no end")


def placed(world: World) -> int:
    return sum(side.placed is not None and not side.gave_up for side in world.coordinators)


@given(
    jobs=st.fixed_dictionaries({"a": wishes, "b": wishes, "c": wishes}),
    faults=st.builds(
        Faults, st.integers(0, 4), st.integers(0, 4), st.integers(0, 4), delays=st.integers(0, 6)
    ),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=examples(100))
def test_three_coordinators_on_three_sites(jobs: dict[str, tuple], faults: Faults, seed: int) -> None:  # type: ignore[type-arg]
    rules = Rules(SITES, jobs)
    end = walk(rules, rules.first(faults), random.Random(seed))
    rules.check_last(end)


@pytest.mark.parametrize("schedulers", [2, 5, 12])
def test_many_schedulers_and_one_idle_node_give_one_ready(schedulers: int) -> None:
    for seed in range(20):
        homes = {f"h{number}": (candidate("a"),) for number in range(schedulers)}
        rules = Rules(("a",), homes)
        end = walk(rules, rules.first(Faults(0, 0, 0, 0)), random.Random(seed))
        rules.check_last(end)
        assert placed(end) == 1


def test_of_two_that_want_the_same_sites_one_gets_them_whatever_the_order() -> None:
    both = (candidate("a", "b", "c"),)
    rules = Rules(SITES, {"a": both, "b": both})
    for seed in range(200):
        end = walk(rules, rules.first(Faults(0, 0, 0, 0)), random.Random(seed))
        assert placed(end) == 1
