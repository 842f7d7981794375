"""`weighted` and `container` against brute force: all bound, within the rack, balanced, fewest moves."""

import itertools
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from yarn_accel.core.binding import (
    ANodeAdded,
    ANodeLost,
    NNodeAdded,
    NNodeLost,
    NNodesReturned,
    PaperBinding,
    WeightChanged,
    make,
)

BALANCED = ("weighted", "container")
ALL = ("paper", *BALANCED)
RACKS = st.sampled_from(["/r1", "/r2"])
NNODES = st.sampled_from([f"n{i}" for i in range(6)])
ANODES = st.sampled_from([f"a{i}" for i in range(4)])
EITHER = st.one_of(NNODES, ANODES)
#: Some of them with loads that are equal, and some whose quotients of floats are not what they seem.
WEIGHTS = st.sampled_from([1.0, 1.0, 1.0, 2.0, 4.0, 0.1, 0.3, 0.7, 1.4])
#: A home for every node most of the time: nodes that change racks or roles are there, but rare.
ADDITIONS = st.one_of(
    st.builds(NNodeAdded, NNODES, st.just("/r1")),
    st.builds(ANodeAdded, ANODES, st.just("/r1"), WEIGHTS),
    st.builds(NNodeAdded, EITHER, RACKS),
    st.builds(ANodeAdded, EITHER, RACKS, WEIGHTS),
)
EVENTS = st.one_of(
    ADDITIONS,
    ADDITIONS,
    st.builds(NNodeLost, EITHER),
    st.builds(ANodeLost, EITHER),
    st.builds(WeightChanged, EITHER, WEIGHTS),
)
HISTORIES = st.lists(EVENTS, max_size=30)


class World:
    """What is there, by its own books."""

    def __init__(self):
        self.nnodes = {}
        self.anodes = {}
        self.weights = {}

    def follow(self, event):
        node = event.node
        if isinstance(event, NNodeAdded):
            self.anodes.pop(node, None)
            self.nnodes[node] = event.rack
        elif isinstance(event, ANodeAdded):
            self.nnodes.pop(node, None)
            if self.anodes.get(node) != event.rack:
                self.weights[node] = event.weight
            self.anodes[node] = event.rack
        elif isinstance(event, NNodeLost):
            self.nnodes.pop(node, None)
        elif isinstance(event, ANodeLost):
            self.anodes.pop(node, None)
        elif node in self.anodes:
            self.weights[node] = event.weight

    def in_rack(self, rack):
        """Its NNodes, and its ANodes with their weights."""
        anodes = {anode: exact(self.weights[anode]) for anode, its in self.anodes.items() if its == rack}
        return sorted(node for node, its in self.nnodes.items() if its == rack), anodes


def exact(weight):
    return Fraction(str(weight))


def settings_of(name, options):
    """Racks are apart unless a test says otherwise."""
    return options if name == "paper" else {"cross_rack": "deny", **options}


def reported(name, history, **options):
    """Every step of a history: the world, the bindings before, the policy after, and the moves."""
    policy, world = make(name, settings_of(name, options)), World()
    for event in history:
        before = dict(policy.bound())
        moves = policy.apply(event)
        policy.validate()
        world.follow(event)
        yield world, before, policy, moves


def spread_of(anodes, counts):
    """The loads, worst first: what is to be lexicographically least."""
    return sorted((Fraction(counts[anode]) / weight for anode, weight in anodes.items()), reverse=True)


def best_spread(nodes, anodes, base):
    """The best loads there are on top of `base`: by trying all ways."""
    ways = itertools.product(sorted(anodes), repeat=len(nodes))
    return min(spread_of(anodes, base + Counter(way)) for way in ways)


def fewest_moves(nodes, anodes, base, before, wanted):
    """The fewest moves from `before` to loads like these."""
    ways = itertools.product(sorted(anodes), repeat=len(nodes))
    return min(
        sum(before.get(node) != anode for node, anode in zip(nodes, way, strict=True))
        for way in ways
        if spread_of(anodes, base + Counter(way)) == wanted
    )


@pytest.mark.parametrize("name", ALL)
@given(HISTORIES)
def test_every_nnode_with_an_anode_in_its_rack_is_bound(name, history):
    for world, _, policy, _ in reported(name, history):
        served = set(world.anodes.values())
        assert policy.bound().keys() == {node for node, rack in world.nnodes.items() if rack in served}


@pytest.mark.parametrize("name", ALL)
@given(HISTORIES)
def test_nobody_is_bound_across_racks(name, history):
    for world, _, policy, _ in reported(name, history):
        for node, anode in policy.bound().items():
            assert world.nnodes[node] == world.anodes[anode]


@pytest.mark.parametrize("name", BALANCED)
@settings(deadline=None)
@given(HISTORIES)
def test_loads_are_as_balanced_as_possible(name, history):
    for world, _, policy, _ in reported(name, history):
        for rack in ("/r1", "/r2"):
            nodes, anodes = world.in_rack(rack)
            if nodes and anodes:
                found = spread_of(anodes, Counter(policy.bound()[node] for node in nodes))
                assert found == best_spread(nodes, anodes, Counter())


@pytest.mark.parametrize("name", BALANCED)
@settings(deadline=None)
@given(HISTORIES)
def test_moves_are_the_fewest_for_that_balance(name, history):
    for world, before, policy, _ in reported(name, history):
        for rack in ("/r1", "/r2"):
            nodes, anodes = world.in_rack(rack)
            if nodes and anodes:
                now = policy.bound()
                wanted = spread_of(anodes, Counter(now[node] for node in nodes))
                n_moved = sum(before.get(node) != now[node] for node in nodes)
                assert n_moved == fewest_moves(nodes, anodes, Counter(), before, wanted)


@pytest.mark.parametrize("name", BALANCED)
@settings(deadline=None)
@given(HISTORIES)
def test_with_cross_rack_own_nnodes_are_bound_as_if_there_were_no_guests(name, history):
    steps = zip(reported(name, history), reported(name, history, cross_rack="fallback"), strict=True)
    for (_, _, apart, _), (world, _, policy, _) in steps:
        own = {
            node: anode for node, anode in policy.bound().items() if world.nnodes[node] == world.anodes[anode]
        }
        assert own == apart.bound()


@pytest.mark.parametrize("name", BALANCED)
@settings(deadline=None)
@given(HISTORIES)
def test_with_cross_rack_guests_are_bound_balanced_and_moved_least(name, history):
    for world, before, policy, _ in reported(name, history, cross_rack="fallback"):
        served = set(world.anodes.values())
        now = policy.bound()
        assert now.keys() == (world.nnodes.keys() if served else set())
        guests = sorted(node for node, rack in world.nnodes.items() if served and rack not in served)
        if not guests:
            continue
        anodes = {anode: exact(world.weights[anode]) for anode in world.anodes}
        base = Counter(now[node] for node in world.nnodes if node not in guests)
        found = spread_of(anodes, base + Counter(now[node] for node in guests))
        assert found == best_spread(guests, anodes, base)
        n_moved = sum(before.get(node) != now[node] for node in guests)
        assert n_moved == fewest_moves(guests, anodes, base, before, found)


def restarted(name, world, homes, **options):
    """Another policy that learns what there is, and where everybody was bound."""
    policy = make(name, settings_of(name, options))
    for anode, rack in sorted(world.anodes.items()):
        policy.apply(ANodeAdded(anode, rack, world.weights[anode]))
    nodes = tuple((node, rack, homes.get(node)) for node, rack in sorted(world.nnodes.items()))
    policy.apply(NNodesReturned(nodes))
    policy.validate()
    return policy


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("cross_rack", ["deny", "fallback"])
@settings(deadline=None)
@given(HISTORIES)
def test_a_restart_moves_nobody_when_nothing_else_changed(name, cross_rack, history):
    if (name, cross_rack) == ("paper", "fallback"):
        return
    options = {} if name == "paper" else {"cross_rack": cross_rack}
    for world, _, policy, _ in reported(name, history, **options):
        assert restarted(name, world, policy.bound(), **options).bound() == policy.bound()


@pytest.mark.parametrize("name", BALANCED)
@settings(deadline=None)
@given(HISTORIES, HISTORIES)
def test_a_restart_after_changes_is_balanced_with_the_fewest_moves(name, before, meanwhile):
    *_, (world, _, policy, _) = [(World(), None, make(name), None), *reported(name, before)]
    homes = dict(policy.bound())
    for event in meanwhile[:5]:
        world.follow(event)
    now = restarted(name, world, homes).bound()
    for rack in ("/r1", "/r2"):
        nodes, anodes = world.in_rack(rack)
        if nodes and anodes:
            found = spread_of(anodes, Counter(now[node] for node in nodes))
            assert found == best_spread(nodes, anodes, Counter())
            n_moved = sum(homes.get(node) != now[node] for node in nodes)
            assert n_moved == fewest_moves(nodes, anodes, Counter(), homes, found)


@given(HISTORIES, HISTORIES)
def test_a_restart_of_paper_moves_only_whose_anode_is_gone(before, meanwhile):
    *_, (world, _, policy, _) = [(World(), None, make("paper"), None), *reported("paper", before)]
    homes = dict(policy.bound())
    for event in meanwhile[:5]:
        world.follow(event)
    now = restarted("paper", world, homes).bound()
    for node, home in homes.items():
        if node in world.nnodes and world.anodes.get(home) == world.nnodes[node]:
            assert now[node] == home


@pytest.mark.parametrize("name", ALL)
@given(HISTORIES)
def test_equal_events_give_equal_bindings_and_moves(name, history):
    for (_, _, one, moves), (_, _, other, same) in zip(
        reported(name, history), reported(name, history), strict=True
    ):
        assert moves == same
        assert list(one.bound().items()) == list(other.bound().items())


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("cross_rack", ["deny", "fallback"])
@given(HISTORIES)
def test_an_event_reported_twice_counts_once(name, cross_rack, history):
    if (name, cross_rack) == ("paper", "fallback"):
        return
    options = {} if name == "paper" else {"cross_rack": cross_rack}
    once, twice = make(name, options), make(name, options)
    for event in history:
        assert once.apply(event) == twice.apply(event)
        assert twice.apply(event) == []
    assert once.bound() == twice.bound()
    assert once.loads() == twice.loads()


@pytest.mark.parametrize("name", ALL)
@given(HISTORIES, NNODES, ANODES)
def test_losses_of_what_is_not_there_change_nothing(name, history, nnode, anode):
    *_, (world, _, policy, _) = [(World(), None, make(name), None), *reported(name, history)]
    strangers = [NNodeLost("x"), ANodeLost("x"), WeightChanged("x", 2.0)]
    strangers += [ANodeLost(node) for node in world.nnodes] + [NNodeLost(node) for node in world.anodes]
    before = dict(policy.bound())
    for event in strangers:
        assert policy.apply(event) == []
    assert policy.bound() == before


@pytest.mark.parametrize("name", ALL)
@given(HISTORIES)
def test_the_moves_tell_the_whole_story(name, history):
    replayed = {}
    for _, before, policy, moves in reported(name, history):
        assert len({move.node for move in moves}) == len(moves)
        for move in moves:
            assert move.old == before.get(move.node) != move.new
            assert move.reason
            replayed[move.node] = move.new
            if move.new is None:
                del replayed[move.node]
        assert replayed == policy.bound()


@pytest.mark.parametrize("name", ALL)
@given(HISTORIES)
def test_everything_known_can_be_explained(name, history):
    for world, _, policy, _ in reported(name, history):
        for node, anode in policy.bound().items():
            assert policy.explain(node).startswith(f"{node} is bound to {anode} ")
        assert all(
            "not bound" in policy.explain(node) for node in world.nnodes.keys() - policy.bound().keys()
        )
        assert all("accelerator node of" in policy.explain(node) for node in world.anodes)
        assert policy.explain("x") == "x is not known."


@given(st.lists(ADDITIONS, max_size=30))
def test_with_equal_weights_and_additions_only_the_sizes_are_those_of_paper(history):
    once = {}
    for event in history:  # a node that changes its role or rack is a loss
        once.setdefault(event.node, event)
    paper, weighted = PaperBinding(), make("weighted", {"cross_rack": "deny"})
    for event in once.values():
        event = ANodeAdded(event.node, event.rack, 3.0) if isinstance(event, ANodeAdded) else event
        paper.apply(event)
        weighted.apply(event)
        for rack in ("/r1", "/r2"):
            sizes = [
                sorted(Counter(policy.bound().values())[a.node] for a in once.values() if in_rack(a, rack))
                for policy in (paper, weighted)
            ]
            assert sizes[0] == sizes[1]


def in_rack(event, rack):
    return isinstance(event, ANodeAdded) and event.rack == rack
