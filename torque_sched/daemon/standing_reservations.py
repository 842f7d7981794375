"""Standing reservations: nodes kept again and again, on days of the week, by the clock on the wall.

A reservation from 08:00 to 18:00 begins at 08:00 as the host's clocks show it, in summer and in winter. What
stands in the settings becomes ordinary reservations, as far ahead as jobs are planned.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Literal

from torque_sched.model.cluster import Job, NodeName
from torque_sched.model.snapshot import Reservation

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
BEYOND_S = 8 * 86_400.0
"""Beyond the last planned start. Each comes again within a week, so a longer job meets one of these."""
_A_DAY = timedelta(days=1)
_DAY_MINUTES = 24 * 60
_WEEK_MINUTES = 7 * _DAY_MINUTES


@dataclass(frozen=True, slots=True)
class StandingReservation:
    """Nodes kept for some users and groups, or for nobody, on some days of each week.

    Attributes:
        name: shown to those who wait.
        nodes: whole nodes.
        days: days of the week on which it begins, Monday is 0.
        start_minute: when it begins, in minutes after midnight by the clock on the wall.
        end_minute: when it ends; not after the start: on the next day.
        users: who may use the nodes.
        groups: whose members may use them, those who have a job of the group.
    """

    name: str
    nodes: frozenset[NodeName]
    days: frozenset[int]
    start_minute: int
    end_minute: int
    users: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()

    def spans(self, from_s: float, until_s: float) -> Iterator[tuple[float, float]]:
        """Start and end of each time that begins before ``until_s`` and ends after ``from_s``."""
        day = _day_of(from_s) - _A_DAY - _A_DAY
        while _wall_s(day, 0) < until_s:
            if day.weekday() in self.days:
                is_next = self.end_minute <= self.start_minute
                start_s = _wall_s(day, self.start_minute)
                end_s = _wall_s(day + _A_DAY if is_next else day, self.end_minute, is_end=True)
                if start_s < until_s and end_s > from_s and start_s < end_s:
                    yield start_s, end_s
            day += _A_DAY

    def during(self, from_s: float, until_s: float, jobs: Iterable[Job] = ()) -> Iterator[Reservation]:
        """As policies want it, once for each time."""
        users = self.users | {f"group {group}" for group in self.groups}
        if self.groups:
            users |= {job.user for job in jobs if job.group in self.groups}
        for start_s, end_s in self.spans(from_s, until_s):
            yield Reservation(self.name, self.nodes, start_s, end_s, users)

    def meets(self, other: StandingReservation) -> bool:
        """Whether both keep a node at the same time of some week."""
        if not self.nodes & other.nodes:
            return False
        pairs = ((mine, its) for mine in self._of_week() for its in other._of_week())
        return any(
            mine[0] < its[1] + shift and its[0] + shift < mine[1]
            for mine, its in pairs
            for shift in (-_WEEK_MINUTES, 0, _WEEK_MINUTES)
        )

    def _of_week(self) -> list[tuple[int, int]]:
        """Begins and ends in minutes since Monday."""
        end_minute = self.end_minute + (_DAY_MINUTES if self.end_minute <= self.start_minute else 0)
        return [
            (day * _DAY_MINUTES + self.start_minute, day * _DAY_MINUTES + end_minute) for day in self.days
        ]

    @property
    def when(self) -> str:
        """Its days and times in words.

        >>> StandingReservation("a", frozenset(), frozenset({0, 1, 4}), 480, 1080).when
        'mon,tue,fri 08:00 to 18:00'
        """
        days = "daily" if len(self.days) == len(DAYS) else ",".join(DAYS[day] for day in sorted(self.days))
        return f"{days} {_clock(self.start_minute)} to {_clock(self.end_minute)}"


def minute_of(text: str) -> int | None:
    """Minutes after midnight of ``HH:MM``, at most 24:00; None: it is no time of day.

    >>> minute_of("18:30"), minute_of("24:00"), minute_of("25:00")
    (1110, 1440, None)
    """
    found = re.fullmatch(r"([0-9]{1,2}):([0-5][0-9])", text)
    minute = int(found[1]) * 60 + int(found[2]) if found else -1
    return minute if 0 <= minute <= _DAY_MINUTES else None


def _clock(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"


def _day_of(at_s: float) -> date:
    return datetime.fromtimestamp(at_s).date()  # noqa: DTZ006 -- the host's own time


def _wall_s(day: date, minute: int, *, is_end: bool = False) -> float:
    """When the host's clocks show that time: of one that they show twice, an end is the second.

    A time that the clocks leave out is as much later as they are put forward.
    """
    days, minute = divmod(minute, _DAY_MINUTES)
    moment = datetime.combine(day + days * _A_DAY, time(minute // 60, minute % 60))
    return moment.replace(fold=int(is_end and _is_shown_twice(moment))).timestamp()


def _is_shown_twice(moment: datetime) -> bool:
    return moment.replace(fold=1).timestamp() > moment.replace(fold=0).timestamp()
