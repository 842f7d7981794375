"""SIGHUP: which settings a running daemon takes anew."""

from __future__ import annotations

import re
from pathlib import Path

from tests.unit.torque.policies.builders import NOW_S, node
from torque_sched.core.decisions import NodeShare
from torque_sched.core.model import JobId, NodeName, Server
from torque_sched.core.snapshot import Snapshot
from torque_sched.daemon.back_off import Steps
from torque_sched.daemon.black_holes import BlackHoleRules
from torque_sched.daemon.config import Config
from torque_sched.daemon.reloading import AT_ONCE, changes_of, taken_at_once
from torque_sched.daemon.standing import BackOffRules, Standing
from torque_sched.learning import History, HistorySettings
from torque_sched.learning.usage import USER, Account
from torque_sched.parse.qrun import RunKind, RunResult
from torque_sched.policies.rules import Rates


def test_every_key_that_is_taken_at_once_is_a_key() -> None:
    assert set(Config.model_fields) >= AT_ONCE


def test_what_can_change_is_taken_and_the_rest_stays() -> None:
    old, new = Config(), Config(port=16000, look_rest=5.0, max_starts=7)
    assert changes_of(old, new) == ("port", "look_rest", "max_starts")
    taken = taken_at_once(old, new)
    assert (taken.port, taken.look_rest, taken.max_starts) == (old.port, 5.0, 7)
    assert taken_at_once(old, old) == old


def test_the_keys_stand_in_the_manual() -> None:
    manual = (Path(__file__).parents[4] / "docs" / "torque.md").read_text(encoding="utf-8")
    listed = manual.partition("`systemctl reload`")[2].partition("\n\n")[0]
    now, _, later = listed.partition("After a restart only:")
    words = re.compile("`([a-z_]+)`")
    assert set(words.findall(now)) == AT_ONCE
    assert set(words.findall(later.partition(". The log")[0])) == set(Config.model_fields) - AT_ONCE


def test_other_steps_count_for_what_failed_before() -> None:
    standing = Standing(BackOffRules(job=Steps(600.0, 600.0)))
    job, share = JobId("1.head"), NodeShare(NodeName("n1"), 1)
    for each in (job, JobId("2.head")):
        standing.asked(each, (share,), 0.0)
        standing.answered(each, RunResult(RunKind.WRONG_STATE, "no"), 0.0)
    assert set(standing.back_off(100.0).jobs) == {job, JobId("2.head")}
    standing.use(BackOffRules(job=Steps(30.0, 60.0)), BlackHoleRules())
    assert set(standing.back_off(100.0).jobs) == set()
    standing.asked(job, (share,), 100.0)
    standing.answered(job, RunResult(RunKind.WRONG_STATE, "no"), 100.0)
    assert standing.back_off(100.0).jobs[job].until_s - 100.0 in (30.0, 60.0)


def test_another_weight_and_half_life_count_for_all_that_was_used() -> None:
    history = History.open(None, HistorySettings(half_life_s=100.0, gpu_weight=10.0))
    history.used.put({(USER, "ann"): Account(proc_s=1000.0, gpu_s=100.0, at_s=0.0)})
    assert history.usage(100.0) == {"ann": 1000.0}
    history.use(HistorySettings(half_life_s=50.0, gpu_weight=30.0), {})
    assert history.usage(100.0) == {"ann": 1000.0}
    history.use(HistorySettings(half_life_s=50.0, gpu_weight=0.0), {})
    assert history.usage(100.0) == {"ann": 250.0}
    history.close()


def test_other_speeds_of_nodes_and_another_lag_are_used() -> None:
    history = History.open(None, HistorySettings(sample_lag_s=60.0))
    history.use(HistorySettings(sample_lag_s=5.0), {"n1": Rates(cpu=2.0)})
    assert history._settings.sample_lag_s == 5.0
    seen = Snapshot(NOW_S, Server(name="head"), (), (node("n1"),), ())
    assert history._usual_rate(seen) == 2.0
    history.close()
