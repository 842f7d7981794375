"""Limits of the settings: of users, groups, accounts and queues, soft and hard."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fixtures.torque_builders import NOW_S, answers, job, node, queue, running
from torque_sched.decide.backfill import AgedReservations, ConservativeBackfill, EasyBackfill, FcfsBackfill
from torque_sched.decide.context import BackOff, Context, Pause, PendingStart
from torque_sched.decide.order import FairShareOrder, FcfsOrder
from torque_sched.decide.rules import Members, Qos, QueueRules, RunningLimits, Throttling
from torque_sched.decide.settings import Settings
from torque_sched.decide.throttling import QosOrder, Throttle
from torque_sched.errors import ConfigError
from torque_sched.model.cluster import JobId, NodeName
from torque_sched.model.decisions import NodeShare
from torque_sched.model.reasons import Reason

BACKFILLS = pytest.mark.parametrize(
    "backfill", [AgedReservations(), EasyBackfill(), ConservativeBackfill(), FcfsBackfill()]
)
WIDE = [node("n1", 16), node("n2", 16)]


def throttled(backfill: Any = None, strict: bool = False, **tables: Any) -> Settings:
    """Settings with limits, by the tables of `Throttling`."""
    made = Settings(throttling=Throttling(**tables), queues=QueueRules(strict=strict))
    return (
        made
        if backfill is None
        else Settings(throttling=made.throttling, queues=made.queues, backfill=backfill)
    )


@BACKFILLS
@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"users": {"ann": RunningLimits(max_jobs=1)}}, "user ann may have 1 job at once: 1 now, 1 more"),
        (
            {"groups": {"staff": RunningLimits(max_procs=9)}},
            "group staff may have 9 processors at once: 8 now",
        ),
        ({"accounts": {"p1": RunningLimits(max_jobs=1)}}, "account p1 may have 1 job at once: 1 now, 1 more"),
        (
            {"queues": {"batch": RunningLimits(max_jobs=1)}},
            "queue batch may have 1 job at once: 1 now, 1 more",
        ),
        (
            {"groups": {"*": RunningLimits(max_proc_s=8 * 3000.0 + 7199)}},
            "group staff may have 31199 processor-seconds at once: 24000 now, 7200 more",
        ),
    ],
)
def test_a_hard_limit_holds_and_says_whose_it_is(backfill: Any, tables: Any, words: str) -> None:
    runs = running(9, "n1/0-7", "1:ppn=8", walltime_s=3600.0, since_s=600.0, account="p1")
    got = answers(
        WIDE, [runs, job(1, "1:ppn=2", walltime_s=3600.0, account="p1")], throttled(backfill, **tables)
    )
    assert got.reason(1) is Reason.HARD_LIMIT
    assert got.comment(1).startswith(f"Not Running: {words}")
    other = {"user": "bob", "group": "guests", "account": "p2", "queue": "long"}
    free = job(2, "1:ppn=2", walltime_s=3000.0, **other)
    tables = {key: {k: v for k, v in table.items() if k != "*"} for key, table in tables.items()}
    queues = [queue(), queue("long")]
    assert answers(WIDE, [runs, free], throttled(backfill, **tables), queues=queues).started == [2]


@BACKFILLS
def test_starts_of_this_cycle_and_those_asked_for_count(backfill: Any) -> None:
    settings = throttled(backfill, groups={"staff": RunningLimits(max_procs=3)})
    assert answers(WIDE, [job(1, "1:ppn=2"), job(2, "1:ppn=2"), job(3)], settings).started == [1, 3]
    pending = Context(pending=(PendingStart(JobId("1.head"), (NodeShare(NodeName("n1"), 2),), NOW_S),))
    assert answers(WIDE, [job(1, "1:ppn=2"), job(2, "1:ppn=2"), job(3)], settings, pending).started == [3]


def test_jobs_without_account_are_one_account_and_each_other_name_its_own() -> None:
    settings = throttled(accounts={"*": RunningLimits(max_jobs=1)})
    accounts = ["", "", "x", "y", "x"]
    jobs = [job(number, account=account) for number, account in enumerate(accounts, 1)]
    got = answers(WIDE, jobs, settings)
    assert got.started == [1, 3, 4]
    assert "jobs without account may have 1 job at once" in got.comment(2)


def test_an_entry_of_its_own_replaces_that_of_anybody() -> None:
    settings = throttled(
        users={"*": RunningLimits(max_jobs=0), "ann": RunningLimits(), "bob": RunningLimits(max_jobs=1)}
    )
    jobs = [job(1), job(2), *(job(n, user="bob") for n in (3, 4)), job(5, user="cid")]
    assert answers(WIDE, jobs, settings).started == [1, 2, 3]


def test_processor_seconds_count_what_is_left_and_an_hour_where_nobody_says() -> None:
    jobs = [
        running(7, "n1/0", walltime_s=1000.0, since_s=5000.0),
        running(8, "n1/1", since_s=600.0),
        job(1, walltime_s=1000.0),
        job(2),
        job(3, walltime_s=10.0),
    ]
    settings = throttled(users={"ann": RunningLimits(max_proc_s=4050.0)})
    got = answers(WIDE, jobs, settings)
    assert got.started == [1, 3]
    assert "4010 now" not in got.comment(2)
    assert "4000 now, 3600 more" in got.comment(2)


@BACKFILLS
def test_a_soft_limit_holds_only_while_others_wait_whom_no_limit_holds(backfill: Any) -> None:
    settings = throttled(backfill, groups={"chem": RunningLimits(soft_max_jobs=1, max_jobs=3)})
    chem = [job(n, group="chem", walltime_s=600.0) for n in (1, 2, 3, 4)]
    alone = answers(WIDE, chem, settings)
    assert alone.started == [1, 2, 3]
    assert alone.reason(4) is Reason.HARD_LIMIT
    blocked = job(5, "2:ppn=16", user="bob", walltime_s=600.0)
    long = running(9, "n2/0", user="cid", walltime_s=86400.0)
    got = answers(WIDE, [long, *chem, blocked], settings)
    assert got.started == [1]
    assert got.reason(2) is Reason.SOFT_LIMIT
    assert "While others wait, group chem may have 1 job at once: 1 now, 1 more" in got.comment(2)


@pytest.mark.parametrize("backfill", [AgedReservations(), EasyBackfill(), ConservativeBackfill()])
@pytest.mark.parametrize("strict", [False, True])
def test_others_start_first_and_leave_the_rest(backfill: Any, strict: bool) -> None:
    settings = throttled(backfill, strict, groups={"chem": RunningLimits(soft_max_jobs=1)})
    jobs = [job(n, group="chem" if n < 4 else "staff", walltime_s=600.0) for n in (1, 2, 3, 4)]
    assert sorted(answers(WIDE, jobs, settings).started) == [1, 2, 3, 4]


@BACKFILLS
def test_who_is_promised_a_start_waits_all_the_same(backfill: Any) -> None:
    """Its promise fills its own limit, and it is held by none."""
    settings = throttled(
        backfill, users={"bob": RunningLimits(max_jobs=1)}, groups={"chem": RunningLimits(soft_max_jobs=0)}
    )
    long = running(9, "n2/0", user="cid", walltime_s=86400.0)
    wide = job(1, "2:ppn=16", user="bob", walltime_s=600.0)
    got = answers(WIDE, [long, wide, job(2, group="chem", walltime_s=600.0)], settings)
    assert not got.started
    assert got.reason(2) in {Reason.SOFT_LIMIT, Reason.NOT_FIRST}


def test_processors_are_those_asked_for_and_those_held() -> None:
    settings = throttled(users={"*": RunningLimits(max_procs=4)})
    jobs = [running(9, "n1/0-3", user="bob"), job(1, user="bob"), job(2, ncpus=5), job(3, ncpus=4)]
    assert answers(WIDE, jobs, settings).started == [3]


@pytest.mark.parametrize(
    "other",
    [
        {"trouble": "nodes=:x"},
        {"user": "out"},
        {"group": "full"},
        {"queue": "closed"},
        {"number": 6},
        {"spec": "40"},
    ],
)
def test_who_is_held_himself_holds_nobody_back(other: dict[str, Any]) -> None:
    settings = throttled(
        groups={"chem": RunningLimits(soft_max_jobs=0), "full": RunningLimits(soft_max_jobs=0)},
        users={"out": RunningLimits(max_jobs=0)},
    )
    other = {"number": 5, **other}
    waits = job(other.pop("number"), other.pop("spec", "1"), **other)
    paused = Context(back_off=BackOff(jobs={JobId("6.head"): Pause(NOW_S + 60)}))
    queues = [queue(), queue("closed", is_started=False)]
    assert 1 in answers(WIDE, [job(1, group="chem"), waits], settings, paused, queues=queues).started


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({"max_jobs": -1}, "below 0"),
        ({"soft_max_proc_s": -1.0}, "below 0"),
        ({"max_procs": 3, "soft_max_procs": 4}, "soft_max_procs 4 is above max_procs 3"),
    ],
)
def test_limits_that_make_no_sense(bounds: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        RunningLimits(**bounds)


URGENT = Throttling(
    qos={
        "urgent": Qos(
            priority=9,
            members=Members(frozenset({"ann"}), frozenset({"chem"}), frozenset({"p1"})),
            limits=RunningLimits(max_procs=4),
            each_user=RunningLimits(max_jobs=1),
        ),
        "spare": Qos(priority=-1, default_of=frozenset({"batch"})),
        "long": Qos(members=Members(users=frozenset({"ann"})), default_of=frozenset({"long"})),
    }
)


@BACKFILLS
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"user": "ann"}, ""),
        ({"group": "chem"}, ""),
        ({"account": "p1"}, ""),
        ({}, "QoS urgent is not open to user bob of group staff; ask for another (qalter -l qos=NAME)"),
        ({"qos": "x"}, "there is no QoS x here; ask for another"),
    ],
)
def test_who_may_use_a_qos(backfill: Any, changes: dict[str, Any], words: str) -> None:
    settings = Settings(throttling=URGENT, backfill=backfill)
    got = answers(WIDE, [job(1, **{"user": "bob", "qos": "urgent", **changes}), job(2)], settings)
    assert got.started == ([2] if words else [1, 2])
    if words:
        assert got.reason(1) is Reason.NOT_PERMITTED
        assert words in got.comment(1)


def test_limits_of_a_qos_and_of_each_user_in_it() -> None:
    spare = [job(n, qos="urgent") for n in (1, 2)]
    wide = [
        job(3, "1:ppn=3", group="chem", user="bob", qos="urgent"),
        job(4, group="chem", user="cid", qos="urgent"),
    ]
    got = answers(WIDE, [*spare, *wide, job(5)], Settings(throttling=URGENT))
    assert got.started == [1, 3, 5]
    assert "user ann in QoS urgent may have 1 job at once" in got.comment(2)
    assert "QoS urgent may have 4 processors at once: 4 now, 1 more for this job" in got.comment(4)


def test_what_nobody_defined_is_not_looked_at() -> None:
    assert answers(WIDE, [job(1, qos="high")], Settings()).started == [1]


@pytest.mark.parametrize("order", [FcfsOrder(), FairShareOrder()])
def test_a_qos_of_higher_priority_goes_first(order: Any) -> None:
    jobs = [
        job(1),
        job(2, queue="long", user="bob"),
        job(3, queue="long"),
        job(4, qos="urgent"),
        job(5, qos="urgent", user="bob"),
    ]
    settings = Settings(throttling=URGENT, order=QosOrder(order, URGENT))
    got = answers(WIDE, jobs, settings, queues=[queue(), queue("long")])
    assert got.started[0] == 4
    assert sorted(got.started[1:3]) == [2, 3]
    assert got.started[3:] == [1]


def test_who_may_not_use_a_qos_does_not_have_its_priority() -> None:
    order = QosOrder(FcfsOrder(), URGENT)
    jobs = [job(1, user="bob", qos="urgent"), job(2, user="bob", group="chem", qos="urgent"), job(3, qos="x")]
    assert [order.priority_of(each) for each in [*jobs, job(4)]] == [0, 9, 0, -1]


def test_a_start_counts_in_the_queues_of_every_priority() -> None:
    jobs = [job(1, qos="urgent", walltime_s=100.0), job(2), job(3, user="bob")]
    settings = Settings(throttling=URGENT, order=QosOrder(FairShareOrder(), URGENT))
    assert answers(WIDE, jobs, settings).started == [1, 3, 2]


@pytest.mark.parametrize(
    ("account", "user", "words"),
    [
        ("p1", "ann", ""),
        ("", "bob", ""),
        ("p1", "bob", "account p1 is not open to user bob of group staff; name another (qalter -A)"),
        ("p2", "bob", "there is no account p2 here; name another (qalter -A)"),
    ],
)
@pytest.mark.parametrize("strict", [False, True])
def test_who_may_use_an_account(account: str, user: str, words: str, strict: bool) -> None:
    settings = throttled(strict=strict, account_members={"p1": Members(users=frozenset({"ann"}))})
    got = answers(WIDE, [job(1, account=account, user=user), job(2)], settings)
    assert got.started == ([2] if words else [1, 2]), "who may not run blocks nobody"
    assert not words or words in got.comment(1)


def test_the_limits_that_a_job_counts_for_are_told_with_what_is_used() -> None:
    rules = Throttling(
        users={"*": RunningLimits(max_jobs=1)},
        groups={"staff": RunningLimits(soft_max_procs=8, max_procs=16), "chem": RunningLimits(max_jobs=2)},
        qos=URGENT.qos,
    )
    throttle = Throttle(rules, NOW_S, [running(9, "n1/0-3", user="bob")])
    assert list(throttle.described(job(1, qos="urgent"))) == [
        "limit of user ann: 1 job; 0 now",
        "limit of group staff: 16 processors, 8 while others wait; 4 now",
        "limit of QoS urgent: 4 processors; 0 now",
        "limit of user ann in QoS urgent: 1 job; 0 now",
    ]
