"""Whether Torque's batch protocol and its commands show the same cluster, by looks taken one after the other.

A look by the commands is held between two by the protocol. Only what decisions read is compared, by the lists
below: counters move with every connection, the commands' own included. What differs between the two looks by
the protocol has moved meanwhile, and is no disagreement.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torque_sched.model.cluster import GpuReport, NodeStatus
from torque_sched.model.snapshot import Snapshot
from torque_sched.model.states import NodeState

_LIMITS = (
    "name", "max_running", "max_user_run", "max_group_run", "run_limits", "resources_available",
    "resources_assigned", "resources_max", "keep_completed_s",
)  # fmt: skip

COMPARED: dict[str, tuple[str, ...]] = {
    "server": (
        *_LIMITS, "scheduling", "tokens", "holds_beyond_array_limits", "version", "managers", "operators",
    ),
    "queue": (*_LIMITS, "queue_type", "is_enabled", "is_started", "priority", "features_required"),
    "node": (
        "name", "slots", "states", "properties", "gpus", "jobs", "power_saving", "note", "status",
        "gpu_report", "sharing", "parts", "only_for", "mem_assigned_bytes", "others",
    ),
    "status": (
        "rectime_s", "ncpus", "loadave", "physmem_bytes", "totmem_bytes", "availmem_bytes", "gres", "varattr",
        "message",
    ),
    "gpu_report": (
        "index", "mode", "state", "memory_total_bytes", "memory_used_bytes", "utilization",
        "single_bit_ecc_errors", "double_bit_ecc_errors", "temperature_c",
    ),
    "job": (
        "id", "state", "queue", "request", "name", "user", "group", "account", "project", "sequence",
        "array_index", "array_slot_limit", "priority", "ctime_s", "qtime_s", "etime_s", "start_s",
        "execution_time_s",
        "comp_s", "exit_status", "total_runtime_s", "hold_types", "progress", "depend", "allocated_slots",
        "allocated_gpus", "comment",
    ),
}  # fmt: skip
"""Fields by what has them; ``status`` is a `NodeStatus`, ``gpu_report`` each device of a `GpuReport`.

A job's ``used`` and ``walltime_remaining_s`` are read as well, and move in each second that it runs.
"""

Differences = dict[tuple[str, str, str], tuple[Any, Any]]
"""By kind, name and field: the value by the protocol, and by the commands."""
_OF_JOBS = frozenset({"resources_assigned", "jobs"})
"""Fields that jobs change: where a job moved they may have changed and come back."""


def differences(before: Snapshot, commands: Snapshot, after: Snapshot) -> Differences:
    """Where the commands disagree with the protocol.

    What moved to and fro between the looks shows as well; it is not there in another comparison.

    Args:
        before: by the protocol.
        commands: by the commands, then.
        after: by the protocol again.
    """
    first_new = max((job.sequence for job in before.jobs), default=-1) + 1
    jobs = [look.job_by_id for look in (before, commands, after)]
    # Submitted after the first look, and gone before the last one.
    passed = {name for name, job in jobs[1].items() if job.sequence >= first_new and name not in jobs[2]}
    found = {each: values for each, values in _of("job", *jobs).items() if each[1] not in passed}
    is_still = jobs[0] == jobs[2] and not passed
    found |= _of("server", *({"": look.server} for look in (before, commands, after)))
    found |= _of("queue", *(_named(look.queues) for look in (before, commands, after)))
    found |= _of("node", *(_named(look.nodes) for look in (before, commands, after)))
    return {each: values for each, values in found.items() if is_still or not _is_of_jobs(each[2], *values)}


def _is_of_jobs(field: str, protocol: Any, commands: Any) -> bool:
    """Whether jobs alone make the difference; a node is `job-exclusive` while they fill it."""
    return field in _OF_JOBS or (field == "states" and protocol ^ commands == {NodeState.JOB_EXCLUSIVE})


def _named(values: Iterable[Any]) -> dict[str, Any]:
    return {each.name: each for each in values}


def _of(
    kind: str, before: Mapping[Any, Any], commands: Mapping[Any, Any], after: Mapping[Any, Any]
) -> Differences:
    stayed = before.keys() & after.keys()
    moved = before.keys() ^ after.keys()
    found: Differences = {
        (kind, name, "there"): (name in stayed, name in commands)
        for name in (stayed ^ commands.keys()) - moved
    }
    for name in stayed & commands.keys():
        looks = before[name], commands[name], after[name]
        if looks[0] == looks[1]:
            continue
        for field in COMPARED[kind]:
            first, shown_by_commands, last = (_compared(getattr(look, field)) for look in looks)
            if first == last != shown_by_commands:
                found[kind, name, field] = last, shown_by_commands
    return found


def _compared(value: Any) -> Any:
    """What is compared of a value."""
    if isinstance(value, NodeStatus):
        return _fields("status", value)
    if isinstance(value, GpuReport):
        return tuple(_fields("gpu_report", device) for device in value.devices)
    return value


def _fields(kind: str, value: object) -> tuple[Any, ...]:
    return tuple(getattr(value, field) for field in COMPARED[kind])


def in_words(found: Differences, *, with_values: bool = False) -> str:
    """The first of them, and how many more.

    Args:
        found: at least one.
        with_values: say what either way shows; not for the eyes of every user.
    """
    (kind, name, field), values = min(found.items(), key=lambda item: item[0])
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    shown = " (protocol {:.60}, commands {:.60})".format(*map(str, values)) if with_values else ""
    return f"{' '.join((kind, name)).strip()}: {field}{shown}{more}"
