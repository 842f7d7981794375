"""Every interleaving of the confirm handshake, with bounded loss, copies, crashes and delays: breadth first.

Two coordinators want the same node of the same two sites. Reordering is unbounded: any message on its way
may be the next. A crash hits between two events or after any of the commands of one. A delay lets the
clocks go on while messages are on their way; without one, the clock moves only when nothing is.
"""

from __future__ import annotations

import pytest

from tests.unit.torque.handshake.world import Faults, Rules, World, candidate

BOTH = (candidate("a", "b"),)
TWO = Rules(("a", "b"), {"a": BOTH, "b": BOTH})
"""Two coordinators x two sites."""
ALONE = Rules(("a", "b"), {"a": (candidate("a", "b"), candidate("b"))})
"""One coordinator with a second candidate."""


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
    placed = [
        sum(side.placed is not None and not side.gave_up for side in world.coordinators) for world in last
    ]
    assert max(placed) == 1
    if faults == Faults(0, 0, 0, 0):
        assert min(placed) == 1, "nothing went wrong, yet nobody got the sites"
