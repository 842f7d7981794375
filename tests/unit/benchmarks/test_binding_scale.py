"""The simulated cluster of `binding_scale`, and how far `paper` strays from a balanced policy."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.binding_scale import (
    SECTIONS,
    ApplicationMaster,
    PolicyMaster,
    World,
    cluster,
    deviation,
    draw,
    misplaced,
    run,
    simulate,
)
from benchmarks.binding_scale.world import Master, Timed
from benchmarks.result import Report
from yarn_accel.core.binding import ANodeAdded, NNodeAdded, NNodeLost, PaperBinding

pytest.importorskip("simpy", reason="the extra `bench` is not installed")

MASTERS = [
    lambda: PolicyMaster("paper"),
    lambda: PolicyMaster("weighted"),
    lambda: ApplicationMaster("weighted"),
]


def n_bound(master: Master) -> int:
    return len(master.policy.bound() if isinstance(master, PolicyMaster) else master.core.bound())


def test_a_tenth_of_every_rack_has_accelerators() -> None:
    nodes = cluster(100, 5)
    assert len({node.name for node in nodes}) == 100
    assert {
        node.rack: sum(n.is_accelerator for n in nodes if n.rack == node.rack) for node in nodes
    } == dict.fromkeys((f"/rack00{number}" for number in range(5)), 2)


@pytest.mark.parametrize("make_master", MASTERS)
def test_after_the_warm_up_every_nnode_is_bound(make_master) -> None:
    master = make_master()
    World(master, cluster(100, 5), seed=1).env.run(until=15.0)
    assert n_bound(master) >= 85


def test_silence_is_a_loss_and_a_heartbeat_a_return() -> None:
    master = PolicyMaster("weighted")
    nodes = cluster(20, 1)
    for node in nodes:
        list(master.hear(node, 0.0))
    assert n_bound(master) == 18
    for node in nodes[1:]:
        list(master.hear(node, 2.9))
    list(master.tick(3.1))
    assert set(master.policy.bound().values()) == {"h00010"}
    list(master.hear(nodes[0], 4.0))
    assert set(master.policy.bound().values()) == {"h00000", "h00010"}


@pytest.mark.parametrize("make_master", MASTERS)
def test_equal_seeds_give_equal_moves(make_master, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.binding_scale.world._FLAPS_PER_NODE_S", 0.005)
    one, other = (simulate(make_master(), cluster(100, 5), 60.0, seed=3) for _ in range(2))
    assert one.n_moves == other.n_moves > 0
    assert len(one.change_ns) == len(other.change_ns)


def test_a_node_that_the_rm_takes_for_lost_loses_its_containers_and_gets_them_again() -> None:
    master = ApplicationMaster("paper")
    world = World(master, cluster(20, 1), seed=1)
    world.env.run(until=15.0)
    before = dict(master.bound)
    world.env.process(world._lose(cluster(20, 1)[0], 10.0))
    world.env.run(until=17.0)
    assert set(master.bound.values()) == {"h00010"}
    assert world.usable == cluster(20, 1)[1:]
    world.env.run(until=40.0)
    assert set(master.bound.values()) == {"h00000", "h00010"}
    assert master.bound.keys() == before.keys()
    master.core.validate()


@pytest.mark.parametrize("policy", ["paper", "weighted", "container"])
def test_the_next_attempt_takes_over_without_a_move(policy: str) -> None:
    master = ApplicationMaster(policy)
    world = World(master, cluster(100, 5), seed=1)
    world.env.run(until=30.0)
    before, master.timed = dict(master.bound), Timed()
    master.restart(world.usable, world.env.now)
    master.core.validate()
    assert (master.timed.n_moves, master.bound) == (0, before)


@pytest.mark.slow
def test_the_command_writes_and_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.binding_scale.cluster", lambda *_: cluster(100, 5))
    monkeypatch.setattr("benchmarks.binding_scale.world._FLAPS_PER_NODE_S", 0.005)
    file = tmp_path / "scale.json"
    done = CliRunner().invoke(main, ["binding_scale", "--quick", "--json", str(file)])
    assert done.exit_code == 0, done.output
    assert "policy paper: time per event" in file.read_text()
    assert (tmp_path / "scale-time-per-event.png").exists()


def test_a_cluster_in_which_nothing_happens_is_said_to_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.binding_scale.world._FLAPS_PER_NODE_S", 1e-9)
    monkeypatch.setattr("benchmarks.binding_scale.cluster", lambda *_: cluster(20, 1))
    report = Report("binding_scale")
    run(True, lambda _: None, report, ["policies"])
    assert [row.n for row in report.rows if row.what == "policy paper: time per event"] == [0]


def test_without_a_policy_nothing_is_drawn() -> None:
    assert draw(Report("binding_scale"), "nowhere") == []
    assert set(SECTIONS) == {"policies", "application", "page", "deviation"}


# ---- deviation

RACK = "/rack1"


def test_its_deviation_after_losses_is_measured():
    events = [ANodeAdded("a1", RACK), ANodeAdded("a2", RACK)]
    events += [NNodeAdded(f"n{i}", RACK) for i in range(6)]
    events += [NNodeLost(f"n{i}") for i in (0, 2, 4)]
    found = deviation(PaperBinding(), events)
    assert (found.n_events, found.n_moves, found.n_moves_balanced) == (11, 6, 7)
    assert (found.misplaced_max, found.excess_max) == (1, 1)
    assert found.misplaced_mean == pytest.approx(2 / 11)


def test_without_losses_it_deviates_in_nothing():
    events = [NNodeAdded(f"n{i}", RACK) for i in range(20)] + [ANodeAdded(f"a{i}", RACK) for i in range(7)]
    found = deviation(PaperBinding(), events)
    assert (found.misplaced_max, found.excess_max) == (0, 0)
    assert found.n_moves == found.n_moves_balanced


@pytest.mark.parametrize(
    ("heights", "n_misplaced"),
    [([], 0), ([4], 0), ([3, 2], 0), ([4, 2], 1), ([0, 0, 7], 4), ([2, 1, 1, 0], 1)],
)
def test_misplaced_counts_the_moves_balance_would_take(heights, n_misplaced):
    assert misplaced(heights) == n_misplaced
