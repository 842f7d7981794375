"""Shares by weight, with numbers one can check by hand; brute force is in tests/property/core."""

import pytest

from yarn_accel.core.binding import (
    ANodeAdded,
    ANodeLost,
    NNodeAdded,
    NNodeLost,
    WeightChanged,
    WeightedBinding,
)
from yarn_accel.core.binding.stacks import Stack, StackQueue, thousandths

RACK = "/rack1"


def rack(*weights, n_nnodes=0):
    policy = WeightedBinding()
    for number, weight in enumerate(weights):
        policy.apply(ANodeAdded(f"a{number + 1}", RACK, weight))
    for number in range(n_nnodes):
        policy.apply(NNodeAdded(f"n{number}", RACK))
    policy.validate()
    return policy


def sizes(policy):
    bound = list(policy.bound().values())
    return [bound.count(anode) for anode in policy.loads()]


def test_three_anodes_of_speed_1_2_4_with_three_nnodes():
    """The experiment of the issue: unweighted the slowest has to serve two nodes, weighted only itself."""
    assert sizes(rack(1, 1, 1, n_nnodes=3)) == [1, 1, 1]
    assert sizes(rack(1, 2, 4, n_nnodes=3)) == [0, 1, 2]


def test_shares_follow_the_weights():
    assert sizes(rack(1, 2, 4, n_nnodes=7)) == [1, 2, 4]
    assert sizes(rack(1, 2, 4, n_nnodes=70)) == [10, 20, 40]


def test_between_equal_loads_the_stronger_anode_takes():
    """Loads (1, 0) are less than (1, 1/2), though the worst is the same."""
    assert sizes(rack(1, 2, n_nnodes=2)) == [0, 2]


def test_equal_loads_are_found_equal_whatever_their_floats_are():
    assert sizes(rack(0.1, 0.3, n_nnodes=4)) == [1, 3]
    assert sizes(rack(0.1, 0.3, n_nnodes=3)) == [0, 3]


def test_a_lost_nnode_leaves_a_hole_that_the_most_loaded_fills():
    policy = rack(1, 1, n_nnodes=4)
    policy.apply(NNodeLost("n0"))
    assert sizes(policy) == [1, 2]
    moves = policy.apply(NNodeLost("n2"))
    assert [(move.node, move.old, move.new) for move in moves] == [("n2", "a1", None), ("n3", "a2", "a1")]
    assert sizes(policy) == [1, 1]


def test_another_weight_moves_only_who_must():
    policy = rack(1, 1, n_nnodes=6)
    moves = policy.apply(WeightChanged("a2", 2.0))
    assert [(move.old, move.new) for move in moves] == [("a1", "a2")]
    assert moves[0].reason == "a2 has weight 2 now: a2 had the least load, now 2"


def test_a_node_whose_accelerator_is_found_becomes_an_anode():
    policy = rack(1, n_nnodes=2)
    moves = policy.apply(ANodeAdded("n0", RACK))
    assert [(move.node, move.old, move.new) for move in moves] == [("n0", "a1", None)]
    assert sizes(policy) == [1, 0]
    assert [move.new for move in policy.apply(NNodeAdded("n0", RACK))] == ["a1"]


def test_a_node_that_changes_racks_is_bound_in_the_new_one():
    policy = rack(1, n_nnodes=1)
    policy.apply(ANodeAdded("b", "/rack2"))
    moves = policy.apply(NNodeAdded("n0", "/rack2"))
    assert [(move.node, move.old, move.new) for move in moves] == [("n0", "a1", "b")]


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf"), 1e10])
def test_a_weight_that_is_none_changes_nothing(weight):
    policy = rack(1, n_nnodes=1)
    for event in (
        ANodeAdded("a2", RACK, weight),
        ANodeAdded("n0", RACK, weight),
        WeightChanged("a1", weight),
    ):
        with pytest.raises(ValueError, match="a weight must be above 0"):
            policy.apply(event)
        policy.validate()
    assert policy.bound() == {"n0": "a1"}


def test_the_bindings_cannot_be_changed_from_outside():
    with pytest.raises(TypeError):
        rack(1, n_nnodes=1).bound()["n0"] = "a9"


def test_explain_says_why_and_what_was_refused():
    policy = rack(1, 2, n_nnodes=3)
    assert policy.explain("n0") == (
        "n0 is bound to a2 with 2 nodes, load 1 (weight 2) (n0 joined). Refused: a1, whose load would be 2."
    )
    assert policy.explain("a2") == "a2 is an accelerator node of /rack1: a2 with 2 nodes, load 1 (weight 2)."
    policy.apply(NNodeAdded("lonely", "/rack2"))
    assert policy.explain("lonely") == (
        "lonely is not bound: /rack2 has no accelerator node, and weighted keeps racks apart; "
        "its tasks use its own CPU."
    )


def test_explain_names_three_refused_and_counts_the_rest():
    text = rack(1, 1, 1, 1, 1, 1, n_nnodes=1).explain("n0")
    assert text.endswith(
        "Refused: a2, whose load would be 1; a3, whose load would be 1; a4, whose load would be 1 and 2 more."
    )


def test_across_racks_a_guest_goes_home_when_its_rack_gets_an_anode():
    policy = WeightedBinding(cross_rack=True)
    policy.apply(ANodeAdded("a", RACK))
    assert [move.new for move in policy.apply(NNodeAdded("guest", "/rack2"))] == ["a"]
    assert "It is a guest there, as /rack2 has no accelerator node." in policy.explain("guest")
    moves = policy.apply(ANodeAdded("b", "/rack2"))
    assert [(move.node, move.old, move.new) for move in moves] == [("guest", "a", "b")]
    moves = policy.apply(ANodeLost("b"))
    assert [(move.node, move.old, move.new) for move in moves] == [("guest", "b", "a")]
    policy.validate()


def test_across_racks_a_guest_stays_when_its_anode_changes_the_rack():
    policy = WeightedBinding(cross_rack=True)
    for event in (ANodeAdded("a0", "/r1"), NNodeAdded("n", "/r2"), ANodeAdded("a3", "/r2")):
        policy.apply(event)
    assert policy.bound() == {"n": "a3"}
    assert policy.apply(ANodeAdded("a3", "/r1")) == []
    policy.validate()
    assert policy.bound() == {"n": "a3"}


def test_across_racks_an_own_nnode_drives_a_guest_away():
    policy = WeightedBinding(cross_rack=True)
    for event in (ANodeAdded("a", RACK), ANodeAdded("b", "/rack2"), NNodeAdded("guest", "/rack3")):
        policy.apply(event)
    assert policy.bound() == {"guest": "a"}
    moves = policy.apply(NNodeAdded("own", RACK))
    assert [(move.node, move.old, move.new) for move in moves] == [("own", None, "a"), ("guest", "a", "b")]


def test_validate_finds_what_is_broken():
    policy = rack(1, 1, n_nnodes=2)
    policy._bound["n0"] = "a2"
    with pytest.raises(AssertionError, match="in the stack of a1, but not bound to it"):
        policy.validate()


def test_validate_finds_a_rack_out_of_balance():
    policy = rack(1, 1, n_nnodes=4)
    queue = policy._racks[RACK].queue
    policy._shift(policy._racks[RACK], queue["a1"], queue["a2"])
    with pytest.raises(AssertionError, match="/rack1: not balanced, a2 should give to a1"):
        policy.validate()


def test_the_heaps_of_a_queue_do_not_grow_with_its_changes():
    queue = StackQueue()
    stacks = [Stack(f"a{number}", 1000, number) for number in range(3)]
    for stack in stacks:
        queue.add(stack)
    for number in range(1000):
        queue.push(stacks[number % 3], f"n{number}")
        queue.discard(stacks[number % 3], f"n{number}")
    assert len(queue._takers) + len(queue._givers) < 100
    queue.validate()


@pytest.mark.parametrize(("weight", "expected"), [(1.0, 1000), (0.3, 300), (1e-9, 1), (1e6, 10**9)])
def test_weights_are_kept_in_thousandths(weight, expected):
    assert thousandths(weight) == expected
