"""Section 2.3 of the YARN paper, rule by rule, each with stacks one can check by hand."""

import itertools

import pytest

from yarn_accel.core import binding
from yarn_accel.errors import ConfigError

RACK = "/rack1"


def stacks(policy):
    """The NNodes of every ANode in the order in which they were bound, which the policy's own stacks have."""
    return {stack.anode: list(stack.nodes) for rack in policy._racks.values() for stack in rack.queue}


def sizes(policy):
    return [round(load) for load in policy.loads().values()]


def rack_of(*heights):
    """A rack whose i-th ANode has heights[i] NNodes, called after it: a1 has a1.1, a1.2, ..."""
    policy = binding.PaperBinding()
    for number in range(len(heights)):
        policy.apply(binding.ANodeAdded(f"a{number + 1}", RACK))
    names = itertools.count()
    filler = []
    while any(size < height for size, height in zip(sizes(policy), heights, strict=True)):
        node = f"n{next(names)}"
        (move,) = policy.apply(binding.NNodeAdded(node, RACK))
        at = int(move.new[1:]) - 1
        if sizes(policy)[at] > heights[at]:
            filler.append(node)
    for node in filler:
        policy.apply(binding.NNodeLost(node))
    policy.validate()
    assert sizes(policy) == list(heights)
    return policy


def add_anode(policy):
    """One more ANode; returns the sizes afterwards and the moves."""
    moves = policy.apply(binding.ANodeAdded("new", RACK))
    policy.validate()
    return sizes(policy), moves


def test_rule_1_1_an_nnode_goes_onto_the_smallest_stack():
    policy = rack_of(2, 1, 2)
    assert moved(policy.apply(binding.NNodeAdded("x", RACK))) == [("x", None, "a2")]
    assert sizes(policy) == [2, 2, 2]


def applied(*events):
    policy = binding.PaperBinding()
    for event in events:
        policy.apply(event)
    return policy


def n_nodes(n):
    return [binding.NNodeAdded(f"n{i}", RACK) for i in range(n)]


def moved(moves):
    return [(move.node, move.old, move.new) for move in moves]


def test_rule_1_1_of_equal_stacks_the_first_anode_takes():
    policy = applied(binding.ANodeAdded("b", RACK), binding.ANodeAdded("a", RACK), *n_nodes(4))
    assert stacks(policy) == {"b": ["n0", "n2"], "a": ["n1", "n3"]}


def test_rule_1_2_a_balanced_rack_takes_the_new_stack_as_it_is():
    for heights in ((0,), (1, 0), (0, 0)):
        assert add_anode(rack_of(*heights)) == ([*heights, 0], [])


def test_rule_1_2_figure_3_the_tops_of_the_largest_stacks_go_onto_the_new_one():
    policy = applied(binding.ANodeAdded("a1", RACK), binding.ANodeAdded("a2", RACK), *n_nodes(6))
    assert stacks(policy) == {"a1": ["n0", "n2", "n4"], "a2": ["n1", "n3", "n5"]}
    moves = policy.apply(binding.ANodeAdded("a3", RACK))
    assert moved(moves) == [("n5", "a2", "a3"), ("n4", "a1", "a3")]
    assert stacks(policy) == {"a1": ["n0", "n2"], "a2": ["n1", "n3"], "a3": ["n5", "n4"]}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        *[((4,), [2, 2]), ((9,), [5, 4]), ((3, 3), [2, 2, 2]), ((4, 4), [3, 3, 2])],
        *[((6, 6, 6), [5, 5, 4, 4]), ((2, 2, 2, 2, 2), [2, 2, 2, 2, 1, 1])],
        # Here the repair stops, or does not begin, when the largest has one more at most.
        *[
            ((1,), [1, 0]),
            ((1, 1), [1, 1, 0]),
            ((3,), [2, 1]),
            ((3, 2), [2, 2, 1]),
            ((2, 2, 2), [2, 2, 1, 1]),
        ],
    ],
)
def test_rule_1_2_after_additions_the_sizes_differ_by_at_most_one(before, after):
    found, moves = add_anode(rack_of(*before))
    assert sorted(found, reverse=True) == after
    assert len(moves) == found[-1]
    assert all(move.new == "new" for move in moves)


def as_printed(heights):
    """The sizes after the loop of rule 1 (2) as it is printed; None: it never gets there.

    It goes on until the new stack is as large as the smallest of the queue.
    """
    queue, new = list(heights), 0
    while new != min(queue):
        if max(queue) == 0:
            return None
        last = max(at for at, height in enumerate(queue) if height == max(queue))
        queue[last] -= 1
        new += 1
    return [*queue, new]


@pytest.mark.parametrize("heights", [(1,), (3,), (1, 1), (3, 2), (4, 4)])
def test_the_repair_is_needed_as_printed_the_loop_waits_for_ever(heights):
    """The new stack passes the smallest without being equal, until nothing is left to take."""
    assert as_printed(heights) is None


@pytest.mark.parametrize("heights", [*itertools.product(range(5), repeat=3)])
def test_the_repair_changes_nothing_where_the_printed_loop_ends(heights):
    """Also where it ends unfairly: uneven stacks, such as [4, 0, 0], come from losses."""
    found, _ = add_anode(rack_of(*heights))
    expected = as_printed(heights)
    if expected is not None:
        assert found == expected
    else:
        assert max(found) - found[-1] <= 1


def test_rule_2_1_a_lost_nnode_moves_nobody():
    policy = rack_of(2, 2)
    (first, second) = stacks(policy)["a1"]
    for node in (second, first):
        moves = policy.apply(binding.NNodeLost(node))
        assert moves == [binding.Move(node, "a1", None, moves[0].reason)]
    assert sizes(policy) == [0, 2]
    policy.validate()


def test_rule_2_1_a_lost_nnode_leaves_the_middle_of_its_stack():
    policy = rack_of(3)
    low, middle, top = stacks(policy)["a1"]
    policy.apply(binding.NNodeLost(middle))
    assert stacks(policy) == {"a1": [low, top]}


def test_rule_2_2_the_nnodes_of_a_lost_anode_join_again_top_first():
    policy = rack_of(3, 1, 2)
    low, middle, top = stacks(policy)["a1"]
    moves = policy.apply(binding.ANodeLost("a1"))
    assert moved(moves) == [(top, "a1", "a2"), (middle, "a1", "a2"), (low, "a1", "a3")]
    assert sizes(policy) == [3, 3]
    policy.validate()


def test_racks_are_isolated():
    policy = binding.PaperBinding()
    policy.apply(binding.ANodeAdded("a", "/rack2"))
    assert policy.apply(binding.NNodeAdded("n", RACK)) == []
    assert policy.bound() == {}
    assert "no accelerator node" in policy.explain("n")


def test_who_waited_joins_in_order_when_the_first_anode_comes():
    policy = binding.PaperBinding()
    for node in ("z", "y", "x"):
        policy.apply(binding.NNodeAdded(node, RACK))
    moves = policy.apply(binding.ANodeAdded("a", RACK))
    assert [move.node for move in moves] == ["z", "y", "x"]
    assert stacks(policy) == {"a": ["z", "y", "x"]}


def test_when_the_last_anode_is_lost_its_nnodes_wait():
    policy = rack_of(2)
    moves = policy.apply(binding.ANodeLost("a1"))
    assert [(move.old, move.new) for move in moves] == [("a1", None), ("a1", None)]
    policy.validate()
    assert len(policy.apply(binding.ANodeAdded("a2", RACK))) == 2


def test_the_papers_clusters():
    """Section 3.3: in 4-2 and in 4-3 two nodes share one GPU, in 4-4 none does."""
    for n_accelerators, expected in ((2, [1, 1]), (3, [1, 0, 0]), (4, [0, 0, 0, 0])):
        policy = binding.PaperBinding()
        for number in range(4):
            name = f"w{number}"
            policy.apply(
                binding.ANodeAdded(name, RACK) if number < n_accelerators else binding.NNodeAdded(name, RACK)
            )
        assert sizes(policy) == expected


def test_weights_mean_nothing_to_it():
    policy = binding.PaperBinding()
    policy.apply(binding.ANodeAdded("a", RACK, weight=8.0))
    policy.apply(binding.ANodeAdded("b", RACK))
    for number in range(4):
        policy.apply(binding.NNodeAdded(f"n{number}", RACK))
    assert policy.apply(binding.WeightChanged("b", 100.0)) == []
    assert policy.loads() == {"a": 2.0, "b": 2.0}


def test_it_cannot_be_set_to_cross_racks():
    with pytest.raises(ConfigError, match="has no setting 'cross_rack'"):
        binding.make("paper", {"cross_rack": "fallback"})
