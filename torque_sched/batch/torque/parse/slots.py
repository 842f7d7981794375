"""Slots and GPUs: ``exec_host``, ``exec_gpus`` and a node's ``jobs``, in ranges (6.x) or one by one (4.x)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torque_sched.errors import RecordError
from torque_sched.model.cluster import GpuSlot, HostSlots, JobId, JobSlots, NodeName

_RANGE = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?")


def _ranges(text: str, place: str) -> Iterator[tuple[int, int]]:
    for part in text.split(","):
        found = _RANGE.fullmatch(part.strip())
        first = int(found.group(1)) if found else 0
        last = int(found.group(2) or first) if found else -1
        if last < first:
            raise RecordError(f"{place}: {part[:40]!r} is no slot and no range of slots")
        yield first, last


def parse_exec_host(text: str) -> tuple[HostSlots, ...]:
    """The slots a job holds; neighbouring slots of one node become one range.

    >>> parse_exec_host("node3/0-1+node2/0+node2/1")
    (HostSlots(node='node3', first=0, last=1), HostSlots(node='node2', first=0, last=1))

    Raises:
        RecordError: the text does not follow ``host/slots+host/slots``.
    """
    parts: list[HostSlots] = []
    for element in text.split("+"):
        host, slash, slots = element.strip().rpartition("/")
        if not slash or not host:
            raise RecordError(f"exec_host: {element[:60]!r} is not of the form HOST/SLOTS")
        for first, last in _ranges(slots, "exec_host"):
            if parts and parts[-1].node == host and parts[-1].last + 1 == first:
                first = parts.pop().first
            parts.append(HostSlots(NodeName(host), first, last))
    return tuple(parts)


def parse_exec_gpus(text: str) -> tuple[GpuSlot, ...]:
    """The GPUs a job holds.

    >>> parse_exec_gpus("node4-gpu/0+node4-gpu/1")
    (GpuSlot(node='node4', index=0), GpuSlot(node='node4', index=1))

    Raises:
        RecordError: the text does not follow ``host-gpu/N+host-gpu/N``.
    """
    slots: list[GpuSlot] = []
    for element in text.split("+"):
        host, slash, numbers = element.strip().rpartition("/")
        if not slash or not host:
            raise RecordError(f"exec_gpus: {element[:60]!r} is not of the form HOST-gpu/N")
        node = NodeName(host.removesuffix("-gpu"))
        for first, last in _ranges(numbers, "exec_gpus"):
            if last - first > 1024:
                raise RecordError(f"exec_gpus: {element[:60]!r} names more than 1024 GPUs")
            slots.extend(GpuSlot(node, index) for index in range(first, last + 1))
    return tuple(slots)


def parse_node_jobs(text: str) -> tuple[JobSlots, ...]:
    """The slots of a node in use, each with its job; neighbouring slots of one job become one range.

    >>> parse_node_jobs("0-1/46.head,2/47[0].head")
    (JobSlots(job='46.head', first=0, last=1), JobSlots(job='47[0].head', first=2, last=2))

    Raises:
        RecordError: the text does not follow ``slots/job,slots/job``.
    """
    parts: list[JobSlots] = []
    pending: list[str] = []
    for element in text.split(","):
        slots, slash, job = element.strip().partition("/")
        pending.append(slots)
        if not slash:
            continue  # "0-1,4/46.head": more ranges of the job still to come
        for first, last in _ranges(",".join(pending), "jobs"):
            if parts and parts[-1].job == job and parts[-1].last + 1 == first:
                first = parts.pop().first
            parts.append(JobSlots(JobId(job), first, last))
        pending.clear()
    if pending:
        raise RecordError(f"jobs: {pending[0][:60]!r} is not of the form SLOTS/JOB")
    return tuple(parts)
