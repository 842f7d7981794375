"""Nodes for workers: as many as wanted, kept, released, and others where no worker starts."""

from yarn_accel.core.tasks.worker_nodes import WorkerNodes

NODES = ("n1", "n2", "n3")


def nodes():
    return WorkerNodes(patience_s=10.0)


def test_the_best_nodes_are_chosen_and_kept():
    chosen = nodes()
    assert chosen.choose(2, NODES, (), 0.0) == {"n1", "n2"}
    assert chosen.choose(2, ("n3", "n2", "n1"), ("n1",), 1.0) == {"n1", "n2"}
    assert chosen.choose(5, NODES, ("n1",), 2.0) == {"n1", "n2", "n3"}


def test_fewer_are_wanted_who_reports_stays_until_it_is_released():
    chosen = nodes()
    chosen.choose(3, NODES, (), 0.0)
    assert chosen.choose(1, NODES, ("n2", "n3"), 1.0) == {"n2", "n3"}
    chosen.release("n3")
    assert chosen.choose(1, NODES, ("n2",), 2.0) == {"n2"}
    assert chosen.choose(0, NODES, (), 3.0) == set()


def test_a_node_on_which_no_worker_starts_gives_way_to_another_one():
    chosen = nodes()
    assert chosen.choose(1, NODES, (), 0.0) == {"n1"}
    assert chosen.choose(1, NODES, (), 9.9) == {"n1"}
    assert chosen.choose(1, NODES, (), 10.0) == {"n2"}
    assert chosen.choose(1, NODES, (), 20.0) == {"n3"}
    assert chosen.choose(1, NODES, (), 30.0) == {"n1"}
    assert chosen.choose(1, NODES, ("n1",), 99.0) == {"n1"}


def test_a_worker_that_dies_late_is_awaited_on_its_node_again():
    chosen = nodes()
    chosen.choose(1, NODES, (), 0.0)
    assert chosen.choose(1, NODES, ("n1",), 99.0) == {"n1"}
    assert chosen.choose(1, NODES, (), 100.0) == {"n1"}
    assert chosen.choose(1, NODES, (), 109.0) == {"n2"}


def test_the_only_node_is_kept_however_long_it_takes():
    chosen = nodes()
    assert chosen.choose(1, ("n1",), (), 0.0) == {"n1"}
    assert chosen.choose(1, ("n1",), (), 99.0) == {"n1"}


def test_a_node_that_is_gone_is_chosen_no_more():
    chosen = nodes()
    chosen.choose(2, NODES, (), 0.0)
    assert chosen.choose(2, ("n2", "n3"), (), 1.0) == {"n2", "n3"}


def test_a_worker_of_an_earlier_master_is_taken_over():
    assert nodes().choose(1, NODES, ("n3",), 0.0) == {"n3"}
