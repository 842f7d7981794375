"""Standing reservations: by the clock on the wall, in summer and winter, and for whom."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.torque_builders import NOW_S, answers, job, node, running, snapshot
from torque_sched.daemon.config import Config
from torque_sched.daemon.standing_reservations import DAYS, StandingReservation
from torque_sched.decide.backfill import AgedReservations, ConservativeBackfill
from torque_sched.decide.context import Context
from torque_sched.decide.settings import Settings
from torque_sched.model.cluster import NodeName
from torque_sched.report.booking import with_offset

HOUR_S, DAY_S = 3600.0, 86_400.0
WEEKDAYS = frozenset(range(5))


pytestmark = pytest.mark.usefixtures("berlin")


def moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def standing(
    days: frozenset[int], start_minute: int, end_minute: int, **changes: frozenset[str]
) -> StandingReservation:
    nodes = frozenset({NodeName("n1")})
    return StandingReservation("course", nodes, days, start_minute, end_minute, **changes)


def shown(made: StandingReservation, first: str, last: str) -> list[tuple[str, str]]:
    spans = made.spans(moment(first), moment(last))
    return [
        (with_offset(start_s)[:-9] + with_offset(start_s)[-6:], with_offset(end_s)[11:16])
        for start_s, end_s in spans
    ]


def test_working_days_over_the_change_to_summer_time() -> None:
    """The clocks of Berlin are put forward on Sunday, 28 March 2027, at 02:00."""
    assert shown(standing(WEEKDAYS, 8 * 60, 18 * 60), "2027-03-26T00:00", "2027-03-30T00:00") == [
        ("2027-03-26 08:00+01:00", "18:00"),
        ("2027-03-29 08:00+02:00", "18:00"),
    ]


@pytest.mark.parametrize(
    ("day", "start_minute", "end_minute", "hours"),
    [
        ("2027-03-28", 0, 6 * 60, 5),
        ("2027-10-31", 0, 6 * 60, 7),
        ("2027-03-28", 60, 2 * 60 + 30, 1.5),
        ("2027-10-31", 2 * 60, 2 * 60 + 30, 1.5),
        ("2027-10-31", 2 * 60 + 30, 4 * 60, 2.5),
        ("2027-03-28", 0, 24 * 60, 23),
        ("2027-10-31", 0, 0, 25),
    ],
)
def test_how_long_it_is_when_the_clocks_change(
    day: str, start_minute: int, end_minute: int, hours: float
) -> None:
    made = standing(frozenset({6}), start_minute, end_minute)
    (span,) = made.spans(moment(f"{day}T00:00"), moment(f"{day}T23:00"))
    assert span[1] - span[0] == hours * HOUR_S


def test_one_over_midnight_that_began_yesterday_goes_on() -> None:
    made = standing(frozenset({4}), 22 * 60, 6 * 60)
    assert shown(made, "2026-11-28T05:00", "2026-11-28T06:00") == [("2026-11-27 22:00+01:00", "06:00")]
    assert not shown(made, "2026-11-28T06:00", "2026-12-04T22:00")


@given(
    st.floats(1.7e9, 1.9e9),
    st.floats(0, 20 * DAY_S),
    st.frozensets(st.integers(0, 6), min_size=1),
    st.integers(0, 1439),
    st.integers(0, 1440),
)
def test_each_time_begins_on_its_day_by_the_wall_clock_and_none_is_left_out(
    from_s: float, length_s: float, days: frozenset[int], start_minute: int, end_minute: int
) -> None:
    made = standing(days, start_minute, end_minute)
    spans = list(made.spans(from_s, from_s + length_s))
    for start_s, end_s in spans:
        assert start_s < from_s + length_s
        assert end_s > from_s
        assert datetime.fromtimestamp(start_s).weekday() in days  # noqa: DTZ006 -- the host's own time
    assert spans == sorted(spans)
    halves = [
        *made.spans(from_s, from_s + length_s / 2),
        *made.spans(from_s + length_s / 2, from_s + length_s),
    ]
    assert sorted(set(halves)) == spans
    if length_s >= 8 * DAY_S:
        assert len(spans) >= len(days) - 1


CONFIG = Config(
    standing_reservations=[
        {
            "name": "course",
            "nodes": ["n1"],
            "days": list(DAYS),
            "start": "00:00",
            "end": "24:00",
            "groups": ["chem"],
        }
    ]  # type: ignore[arg-type]
)


@pytest.mark.parametrize("backfill", [AgedReservations(), ConservativeBackfill()])
def test_members_of_the_group_alone_run_in_it(backfill: object) -> None:
    jobs = [job(n, group=group, user=f"u{n}", walltime_s=60.0) for n, group in ((1, "phys"), (2, "chem"))]
    nodes = [node("n1")]
    context = Context(reservations=CONFIG.reservations_at(snapshot(nodes, jobs)))
    got = answers(nodes, jobs, Settings(backfill=backfill), context)  # type: ignore[arg-type]
    assert got.started == [2]
    assert "course, which keeps nodes from" in got.comment(1) or "course keeps nodes until" in got.comment(1)


def test_a_week_ahead_is_seen_and_many_times_leave_room_for_other_reservations() -> None:
    """Each day's time would need a bit of its own in the plan, and there are 29."""
    kept = CONFIG.reservations_at(snapshot([node("n1")], [job(1, group="chem", user="cid")]))
    assert kept[-1].end_s >= NOW_S + 14 * DAY_S
    assert all(each.users == {"cid", "group chem"} for each in kept)
    many = tuple(each for _ in range(4) for each in kept)
    long = job(1, group="chem", user="cid", walltime_s=13 * DAY_S)
    runs = running(9, "n1/0-3", "1:ppn=4", walltime_s=3600.0, user="cid", group="chem")
    got = answers(
        [node("n1")], [runs, long], Settings(backfill=ConservativeBackfill()), Context(reservations=many)
    )
    assert got.told == {1: "kept"}


@pytest.mark.parametrize(
    ("minutes", "words"),
    [((480, 1080), "08:00 to 18:00"), ((1320, 360), "22:00 to 06:00"), ((0, 1440), "00:00 to 24:00")],
)
def test_when_it_is_in_words(minutes: tuple[int, int], words: str) -> None:
    assert standing(frozenset(range(7)), *minutes).when == f"daily {words}"


MINUTES = st.tuples(st.frozensets(st.integers(0, 6), min_size=1), st.integers(0, 1439), st.integers(0, 1440))


@given(MINUTES, MINUTES)
def test_two_that_keep_a_node_at_the_same_time_are_found(
    one: tuple[frozenset[int], int, int], other: tuple[frozenset[int], int, int]
) -> None:
    """In weeks without a change of the clocks."""
    first, second = standing(*one), standing(*other)
    from_s, until_s = moment("2026-12-07T00:00"), moment("2026-12-21T00:00")
    do_meet = any(
        begin_s < until and start_s < end_s
        for begin_s, end_s in first.spans(from_s, until_s)
        for start_s, until in second.spans(from_s, until_s)
    )
    assert first.meets(second) == second.meets(first) == do_meet


def test_two_for_different_users_are_warned_of() -> None:
    def warnings(**changes: object) -> list[str]:
        one = {"name": "a", "nodes": ["n1", "n2"], "start": "8:00", "end": "18:00", "users": ["ann"]}
        other = {**one, "name": "b", "users": ["bob"], **changes}
        return list(Config(standing_reservations=[one, other]).warnings())  # type: ignore[arg-type]

    (told,) = warnings()
    assert told.startswith("standing_reservations: a and b keep n1 at the same time for different users")
    for changes in ({"users": ["ann"]}, {"nodes": ["n3"]}, {"start": "18:00", "end": "8:00"}):
        assert not warnings(**changes)
