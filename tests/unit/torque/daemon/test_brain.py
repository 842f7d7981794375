"""What the brain tells a decision beside the snapshot."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.torque.policies.builders import NOW_S, job, node, snapshot
from torque_sched.core.decisions import NodeShare
from torque_sched.core.model import JobSlots, NodeName
from torque_sched.daemon.brain import PolicyBrain
from torque_sched.daemon.c_policy import CFiles, SettingsInForce
from torque_sched.daemon.config import Config
from torque_sched.daemon.standing import Standing
from torque_sched.learning import History
from torque_sched.policies.context import PendingStart


def test_starts_by_others_that_only_a_node_shows_count_like_our_own() -> None:
    ours, theirs = job(1), job(2, "1:ppn=2")
    host = replace(node("n1"), jobs=(JobSlots(theirs.id, 0, 1),))
    standing = Standing()
    standing.asked(ours.id, (NodeShare(NodeName("n1"), 1),), NOW_S - 1)
    history = History.open(None)
    try:
        brain = PolicyBrain(SettingsInForce(Config(), CFiles()), history)
        pending = brain.context(snapshot([host], [ours, theirs]), standing).pending
    finally:
        history.close()
    assert pending == (
        PendingStart(ours.id, (NodeShare(NodeName("n1"), 1),), NOW_S - 1),
        PendingStart(theirs.id, (NodeShare(NodeName("n1"), 2),), NOW_S),
    )
