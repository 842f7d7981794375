from __future__ import annotations

import math

from tests.unit.torque.grid.jobs import table
from torque_sched.core.grid.search import fewest_blocks, one_block, split_blocks


def test_fewest_blocks_takes_the_biggest_clusters() -> None:
    assert fewest_blocks([4, 10, 6], 10) == 1
    assert fewest_blocks([4, 10, 6], 11) == 2
    assert fewest_blocks([4, 10, 6], 17) == 3
    assert fewest_blocks([4, 10, 6], 21) == 0


def test_the_common_start_is_asked_for_again_until_it_stays() -> None:
    # The first is free from 0 to 10 and from 20 on, the second from 10 to 20 and from 30 on.
    first = table(1, (1, 10, 20))
    second = table(1, (1, 0, 10), (1, 20, 30))
    assert [each.earliest(1, 10, 0.0) for each in (first, second)] == [0, 10]
    assert split_blocks([first, second], 2, 2, 10, 0.0, math.inf) == (30.0, ((0, 1), (1, 1)))


def test_an_offer_of_a_moment_ago_is_asked_for_again() -> None:
    # From 0.875 on the second is free, and the first has too little from 1 to 1.25.
    tables = [table(3, (1, 1.0, 1.25)), table(1, (1, 0.0, 0.875))]
    assert split_blocks(tables, 4, 2, 0.25, 0.0, math.inf) == (1.25, ((0, 3), (1, 1)))


def test_a_block_that_never_fits_has_no_common_start() -> None:
    assert split_blocks([table(1), table(1)], 3, 2, 5, 0.0, math.inf) == (math.inf, ())


def test_one_block_prefers_the_cluster_with_most_free() -> None:
    tables = [table(8, (3, 0, 50)), table(8), table(8, (5, 0, 50))]
    assert one_block(tables, 2, 10, 0.0, math.inf) == (0.0, 1)


def test_one_block_not_by_then() -> None:
    assert one_block([table(4, (4, 0, 50))], 1, 10, 0.0, 49.0) == (math.inf, -1)


def test_a_split_fills_the_biggest_first_and_leaves_no_block_empty() -> None:
    tables = [table(4, (1, 0, 100)), table(4), table(4, (2, 0, 100))]
    assert split_blocks(tables, 6, 2, 10, 0.0, math.inf) == (0.0, ((1, 4), (0, 2)))
    assert split_blocks(tables, 4, 2, 10, 0.0, math.inf) == (0.0, ((1, 4),))


def test_a_split_waits_until_enough_is_free_throughout() -> None:
    # At 0 there are 4 and 2, but the second cluster is full again from 5 to 20.
    tables = [table(4), table(4, (2, 0, 5), (4, 5, 20))]
    assert split_blocks(tables, 6, 2, 10, 0.0, math.inf) == (20.0, ((0, 4), (1, 2)))
    assert split_blocks(tables, 6, 2, 10, 0.0, 19.0) == (math.inf, ())
