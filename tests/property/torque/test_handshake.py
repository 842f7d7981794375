"""Every interleaving of the confirm handshake, with bounded loss, copies, crashes and delays; and long walks.

Two coordinators want the same node of the same two sites. Reordering is unbounded: any message on its way
may be the next. A crash hits between two events or after any of the commands of one. A delay lets the
clocks go on while messages are on their way; without one, the clock moves only when nothing is.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.torque.grid.world import Faults, Rules, World, candidate

BOTH = (candidate("a", "b"),)
TWO = Rules(("a", "b"), {"a": BOTH, "b": BOTH})
"""Two coordinators x two sites."""
ALONE = Rules(("a", "b"), {"a": (candidate("a", "b"), candidate("b"))})
"""One coordinator with a second candidate."""


def placed(world: World) -> int:
    return sum(side.placed is not None and not side.gave_up for side in world.coordinators)


def explore(rules: Rules, faults: Faults) -> tuple[int, list[World]]:
    """Visit every world; return how many there are and those in which nothing can happen any more."""
    first = rules.first(faults)
    number, todo, last = {first: 0}, [first], []
    before: list[list[int]] = [[]]
    for world in todo:
        rules.check(world)
        here, dead = number[world], True
        for after in rules.after(world):
            dead = False
            if after not in number:
                number[after] = len(todo)
                todo.append(after)
                before.append([])
            before[number[after]].append(here)
        if dead:
            rules.check_last(world)
            last.append(world)
    # No deadlock and no trap: from everywhere there is a way to an end.
    reached = set(map(number.__getitem__, last))
    trace = list(reached)
    while trace:
        new = set(before[trace.pop()]) - reached
        reached |= new
        trace += new
    assert len(reached) == len(todo)
    return len(todo), last


@pytest.mark.parametrize(
    ("rules", "faults", "at_least"),
    [
        pytest.param(TWO, Faults(0, 0, 0, 0), 150, id="two"),
        pytest.param(TWO, Faults(1, 1, 0, 0), 5_700, id="two-lossy-copying"),
        pytest.param(TWO, Faults(1, 0, 1, 0), 29_000, id="two-lossy-crashing", marks=pytest.mark.slow),
        pytest.param(TWO, Faults(0, 0, 0, 1), 19_000, id="two-late", marks=pytest.mark.slow),
        pytest.param(ALONE, Faults(1, 1, 1, 0), 9_000, id="one-with-all"),
    ],
)
def test_every_interleaving(rules: Rules, faults: Faults, at_least: int) -> None:
    worlds, last = explore(rules, faults)
    print(f"{worlds} worlds, {len(last)} ends, {faults}")
    assert worlds >= at_least
    ends = [placed(world) for world in last]
    assert max(ends) == 1
    if faults == Faults(0, 0, 0, 0):
        assert min(ends) == 1, "nothing went wrong, yet nobody got the sites"


# Long random walks: more of everything than can be exhausted.


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
