"""NNodes whose bindings are read back after a restart: `NNodesReturned`."""

import pytest

from yarn_accel.core.binding import ANodeAdded, ANodeLost, NNodeAdded, NNodesReturned, make

ALL = ("paper", "weighted", "container")


def reported(name, *events, **options):
    policy = make(name, options if name == "paper" else {"cross_rack": "deny", **options})
    for event in events:
        moves = policy.apply(event)
        policy.validate()
    return policy, moves


def anodes(*names, rack="/r1"):
    return [ANodeAdded(name, rack) for name in names]


def returned(homes, rack="/r1"):
    return NNodesReturned(tuple((node, rack, home) for node, home in homes.items()))


@pytest.mark.parametrize("name", ALL)
def test_all_are_bound_as_before_whatever_a_newcomer_would_get(name):
    homes = {"n1": "a2", "n2": "a1", "n3": "a2", "n4": "a1"}
    policy, moves = reported(name, *anodes("a1", "a2"), returned(homes))
    assert policy.bound() == homes
    assert {move.reason for move in moves} == {"it was bound there before"}


@pytest.mark.parametrize("name", ALL)
def test_whose_anode_is_gone_joins_after_the_others(name):
    policy, _ = reported(
        name, *anodes("a1", "a2"), returned({"n1": "a9", "n2": "a1", "n3": None, "n4": "a1"})
    )
    assert policy.bound() == {"n1": "a2", "n2": "a1", "n3": "a2", "n4": "a1"}


@pytest.mark.parametrize("name", ALL)
def test_an_anode_of_another_rack_is_no_home(name):
    policy, _ = reported(name, *anodes("a1"), *anodes("b1", rack="/r2"), returned({"n1": "b1"}))
    assert policy.bound() == {"n1": "a1"}


@pytest.mark.parametrize("name", ALL)
def test_without_an_anode_in_the_rack_they_wait(name):
    policy, moves = reported(name, *anodes("b1", rack="/r2"), returned({"n1": "b1"}))
    assert moves == []
    assert [move.new for move in policy.apply(ANodeAdded("a1", "/r1"))] == ["a1"]


@pytest.mark.parametrize("name", ALL)
def test_who_is_known_is_passed_over(name):
    policy, _ = reported(name, *anodes("a1", "a2"), NNodeAdded("n1", "/r1"))
    home = policy.bound()["n1"]
    assert policy.apply(returned({"n1": "a2" if home == "a1" else "a1"})) == []
    assert policy.bound() == {"n1": home}


@pytest.mark.parametrize("name", ALL)
def test_who_is_known_otherwise_is_lost_there_first(name):
    policy, _ = reported(
        name, *anodes("a1", "a2"), *anodes("b1", rack="/r2"), NNodeAdded("n1", "/r2"), returned({"n1": "a2"})
    )
    assert policy.bound() == {"n1": "a2"}
    moves = policy.apply(returned({"a1": None}))
    assert [(move.node, move.new) for move in moves] == [("a1", "a2")]


def test_paper_leaves_uneven_stacks_as_they_are_and_goes_on_from_there():
    policy, _ = reported("paper", *anodes("a1", "a2"), returned(dict.fromkeys(("n1", "n2", "n3"), "a1")))
    assert policy.loads() == {"a1": 3, "a2": 0}
    assert [move.new for move in policy.apply(NNodeAdded("n4", "/r1"))] == ["a2"]
    (move, *_) = policy.apply(ANodeLost("a1"))
    assert move.node == "n3"


@pytest.mark.parametrize("name", ["weighted", "container"])
def test_a_balance_that_is_lost_is_restored_with_the_fewest_moves(name):
    homes = {"n1": "a1", "n2": "a1", "n3": "a1", "n4": "a2"}
    policy, _ = reported(name, *anodes("a1", "a2"), returned(homes))
    assert sorted(policy.loads().values()) == [2, 2]
    assert sum(policy.bound()[node] != home for node, home in homes.items()) == 1


@pytest.mark.parametrize("name", ["weighted", "container"])
def test_guests_of_other_racks_are_back_where_they_were(name):
    homes = {"n1": "b1", "n2": "a1", "n3": "b1"}
    policy, _ = reported(
        name,
        *anodes("a1", rack="/r2"),
        *anodes("b1", rack="/r3"),
        NNodesReturned((*returned(homes).nodes, ("m", "/r2", "a1"))),
        cross_rack="fallback",
    )
    assert policy.bound() == {**homes, "m": "a1"}
