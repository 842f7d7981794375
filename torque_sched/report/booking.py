"""What somebody means who reserves nodes: moments, and which nodes."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from datetime import datetime

from torque_sched.core.model import Job, JobId, Node, NodeName
from torque_sched.core.snapshot import Snapshot
from torque_sched.core.units import duration_s
from torque_sched.errors import ConfigError, UnitError
from torque_sched.policies.context import Reservation

__all__ = ["chosen_nodes", "moment_s", "running_into", "span_of"]

_LONGEST_S = 400 * 86400.0
_CLOCK = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?")
_COUNT = re.compile(r"([0-9]+)((?::[^:,+]+)*)")


def moment_s(text: str, now_s: float) -> float:
    """Seconds since the epoch of ``now``, ``+2:00:00``, ``14:30`` (the next one), an ISO time, or digits.

    Times without a zone are this host's.

    Raises:
        ConfigError: the text is none of these.
    """
    words = text.strip()
    if words == "now":
        return now_s
    try:
        if words.startswith("+"):
            return now_s + duration_s(words[1:])
        if words.isascii() and words.isdigit() and len(words) >= 9:
            return float(words)
        clock = _CLOCK.fullmatch(words)
        if clock is not None:
            return _next(int(clock[1]), int(clock[2]), int(clock[3] or 0), now_s)
        return datetime.fromisoformat(words).timestamp()
    except (UnitError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"{text[:40]!r} is no moment", cure="write now, +2:00:00, 14:30 or 2026-12-24T08:00"
        ) from error


def _next(hour: int, minute: int, second: int, now_s: float) -> float:
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError(f"{hour}:{minute}:{second}")
    today = time.localtime(now_s)

    def at_s(day: int) -> float:
        return time.mktime((today.tm_year, today.tm_mon, day, hour, minute, second, 0, 0, -1))

    return at_s(today.tm_mday) if at_s(today.tm_mday) > now_s else at_s(today.tm_mday + 1)


def span_of(start: str, end: str, length: str, now_s: float) -> tuple[float, float]:
    """Start and end, in seconds since the epoch.

    Raises:
        ConfigError: a moment is none, the start is over, or the end does not come after it.
    """
    start_s = moment_s(start, now_s)
    if start_s < now_s:
        raise ConfigError(f"--start {start} is over", cure="for nodes from now on write --start now")
    if end:
        end_s = moment_s(end, now_s)
    else:
        try:
            end_s = start_s + duration_s(length)
        except UnitError as error:
            raise ConfigError(f"--length {length[:40]!r} is no length", cure="write HH:MM:SS") from error
    if end_s <= start_s:
        raise ConfigError("the end does not come after the start", cure="see --end or --length")
    if end_s - start_s > _LONGEST_S:
        raise ConfigError("longer than a year", cure="take the nodes out of the server instead")
    return start_s, end_s


def chosen_nodes(
    snapshot: Snapshot, text: str, start_s: float, end_s: float, others: Iterable[Reservation]
) -> frozenset[NodeName]:
    """The nodes named, or so many of a kind: those that are not reserved then, soonest free first.

    Raises:
        ConfigError: there is no such node, or there are too few.
    """
    words = text.strip()
    count = _COUNT.fullmatch(words)
    if count is not None and NodeName(words) not in snapshot.node_by_name:
        properties = frozenset(filter(None, count[2].split(":")))
        return _some(snapshot, int(count[1]), properties, start_s, end_s, tuple(others))
    names = [NodeName(name.strip()) for name in re.split(r"[,+]", words) if name.strip()]
    unknown = [name for name in names if name not in snapshot.node_by_name]
    if unknown or not names:
        known = ", ".join(str(node.name) for node in snapshot.nodes[:12])
        more = ", ..." if len(snapshot.nodes) > 12 else ""
        raise ConfigError(f"no node {', '.join(unknown) or repr(text)}", cure=f"there are {known}{more}")
    return frozenset(names)


def _some(
    snapshot: Snapshot, n: int, kind: frozenset[str], start_s: float, end_s: float,
    others: tuple[Reservation, ...],
) -> frozenset[NodeName]:  # fmt: skip
    of_kind = [node for node in snapshot.nodes if kind <= set(node.properties)]
    taken = {name for each in others if each.start_s < end_s and start_s < each.end_s for name in each.nodes}
    free = [node for node in of_kind if node.name not in taken and node.is_up]
    if n < 1 or len(free) < n:
        words = f" with {', '.join(sorted(kind))}" if kind else ""
        raise ConfigError(
            f"{n} nodes{words} are wanted: there are {len(of_kind)}, of which {len(free)} are up and not "
            "reserved then",
            cure="ask for fewer, or for another time",
        )
    busy_s = _busy_until(snapshot)

    def by_trouble(node: Node) -> tuple[float, int]:
        # Nodes whose jobs end before the start come first, in the server's order.
        until_s = busy_s.get(node.name, 0.0)
        return (until_s if until_s > start_s else 0.0, snapshot.nodes.index(node))

    return frozenset(node.name for node in sorted(free, key=by_trouble)[:n])


def _busy_until(snapshot: Snapshot) -> dict[NodeName, float]:
    """By when the jobs of a node end at the latest; far off without a walltime."""
    busy_s: dict[NodeName, float] = {}
    for job in (*snapshot.running, *snapshot.suspended):
        end_s = _end_s(job, snapshot.now_s)
        for node in job.slots_by_node():
            busy_s[node] = max(busy_s.get(node, 0.0), float("inf") if end_s is None else end_s)
    return busy_s


def _end_s(job: Job, now_s: float) -> float | None:
    if job.walltime_s is None:
        return None
    return (now_s if job.start_s is None else job.start_s) + job.walltime_s


def running_into(
    snapshot: Snapshot, nodes: frozenset[NodeName], start_s: float
) -> list[tuple[JobId, NodeName, float | None]]:
    """Jobs that may still run on these nodes at that time: (job, node, end at the latest or None)."""
    found = []
    for job in (*snapshot.running, *snapshot.suspended):
        end_s = _end_s(job, snapshot.now_s)
        if end_s is None or end_s > start_s:
            found += [(job.id, node, end_s) for node in job.slots_by_node() if node in nodes]
    return found
