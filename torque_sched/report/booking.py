"""What somebody means who reserves nodes: moments, and which nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone

from torque_sched.errors import ConfigError, UnitError
from torque_sched.model.cluster import Job, JobId, Node, NodeName
from torque_sched.model.snapshot import Reservation, Snapshot
from torque_sched.model.units import duration_s

_LONGEST_S = 400 * 86400.0
_CLOCK = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?")
_COUNT = re.compile(r"([0-9]+)((?::[^:,+]+)*)")


def moment_s(text: str, now_s: float) -> float:
    """Seconds since the epoch of ``now``, ``+2:00:00``, ``14:30`` (the next one), an ISO time, or digits.

    Times without an offset are this host's. Of one that the clocks show twice, the first is meant.

    Raises:
        ConfigError: the text is none of these, or a time that this host's clocks leave out.
    """
    words = text.strip()
    try:
        at_s = now_s if words == "now" else _absolute(words, now_s)
        if at_s is None:
            at_s = _local_s(_wall_clock(words, now_s))
        _shown(at_s)
    except (UnitError, ValueError, OverflowError, OSError) as error:
        raise ConfigError(
            f"{text[:40]!r} is no moment", cure="write now, +2:00:00, 14:30 or 2026-12-24T08:00"
        ) from error
    return at_s


def second_of_two_s(text: str, now_s: float) -> float | None:
    """The other moment of a local time that the clocks show twice (:func:`moment_s` takes the first)."""
    at_s = moment_s(text, now_s)
    if text.strip() == "now" or _absolute(text.strip(), now_s) is not None:
        return None
    other_s = _shown(at_s).replace(fold=1).timestamp()
    return other_s if other_s != at_s else None


def with_offset(at_s: float) -> str:
    """A moment in this host's time with its offset, as :func:`moment_s` reads it back."""
    return datetime.fromtimestamp(at_s, timezone.utc).astimezone().isoformat(" ", "seconds")


def _shown(at_s: float) -> datetime:
    """What this host's clocks show then, without an offset."""
    return datetime.fromtimestamp(at_s, timezone.utc).astimezone().replace(tzinfo=None)


def _absolute(words: str, now_s: float) -> float | None:
    """A moment that needs no time zone of this host; None for others."""
    if words.startswith("+"):
        return now_s + duration_s(words[1:])
    if words.isascii() and words.isdigit() and len(words) >= 9:
        return float(words)
    if _CLOCK.fullmatch(words):
        return None
    # Python 3.10 does not read the Z.
    moment = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", words))
    return None if moment.tzinfo is None else moment.timestamp()


def _wall_clock(words: str, now_s: float) -> datetime:
    clock = _CLOCK.fullmatch(words)
    if clock is None:
        return datetime.fromisoformat(words)
    now = _shown(now_s)
    at = now.replace(hour=int(clock[1]), minute=int(clock[2]), second=int(clock[3] or 0), microsecond=0)
    return at if at.timestamp() > now_s else at + timedelta(days=1)


def _local_s(moment: datetime) -> float:
    at_s = moment.replace(fold=0).timestamp()
    if _shown(at_s) != moment.replace(fold=0):
        before, after = with_offset(moment.replace(fold=1).timestamp()), with_offset(at_s)
        raise ConfigError(
            f"{moment.isoformat(' ')} does not exist: the clocks of this host leave it out",
            cure=f"write {before} or {after}",
        )
    return at_s


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
    of_kind = [node for node in snapshot.nodes if kind <= set(node.properties) and not node.only_for]
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
