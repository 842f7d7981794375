"""Jobs of ``qstat -f -t -w``, and of ``qstat -x`` once they have ended."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import timezone, tzinfo

from torque_sched.batch.openpbs.parse.select import Kinds, parse_exec_vnode, request_of
from torque_sched.batch.openpbs.parse.text import Block, read_blocks
from torque_sched.batch.torque.parse.jobs import job_number, parse_dependencies
from torque_sched.batch.torque.parse.records import Parsed, as_record_error, figure, listed_once
from torque_sched.batch.torque.parse.times import epoch_s
from torque_sched.errors import RecordError, TorqueSchedError
from torque_sched.model.cluster import GpuSlot, HostSlots, Job, JobId, NodeName, QueueName, UsedResources
from torque_sched.model.states import HoldType, JobState, StartProgress
from torque_sched.model.units import count, duration_s, size_bytes

_STATES = {state.value: state for state in JobState}
_STATES.update(
    # An array with members under way; a member or a job that is over, or moved; one that gave way to a user.
    {"B": JobState.RUNNING, "X": JobState.COMPLETED, "F": JobState.COMPLETED, "M": JobState.COMPLETED,
     "U": JobState.SUSPENDED}
)  # fmt: skip
_HOLDS = {hold.value: hold for hold in HoldType}
_WAITING = frozenset({JobState.QUEUED, JobState.HELD, JobState.WAITING, JobState.TRANSIT})
_BEGUN = 42
"""Substate from which on the MoM has the job; 41: it was sent there."""
_MOST_JOBS_SEEN = 200_000


def parse_jobs(
    data: bytes | str,
    kinds: Kinds,
    command: str = "qstat",
    zone: tzinfo = timezone.utc,
    seen: dict[str, Job] | None = None,
) -> Parsed[Job]:
    """Jobs of a whole output; slots and GPUs that they hold go by vnodes here.

    Args:
        data: what the command printed.
        kinds: of the site's resources.
        command: its name for messages.
        zone: that of the command's times: with TZ=UTC in its environment, UTC.
        seen: jobs of the output before by their text, read with the same `kinds`, so that unchanged ones are
            not read again; it is replaced by this output's.

    Raises:
        DocumentError: the output is unusable as a whole.
    """
    jobs: list[Job] = []
    problems: list[RecordError] = []
    now: dict[str, Job] = {}
    for block in read_blocks(data, "Job", command):
        key = f"{block.name}\n{block.text}"
        job = seen.get(key) if seen else None
        if job is None:
            try:
                job = job_of(block, kinds, zone)
            except TorqueSchedError as error:
                problems.append(as_record_error(error, block.place))
                continue
        now[key] = job
        jobs.append(job)
    if seen is not None:
        seen.clear()
        if len(now) <= _MOST_JOBS_SEEN:
            seen.update(now)
    return listed_once(jobs, problems, command)


def job_of(block: Block, kinds: Kinds, zone: tzinfo = timezone.utc) -> Job:
    """The job of a record.

    Raises:
        RecordError: id, state, queue or what it holds are missing or garbled.
        ModelError: a number in it is impossible.
    """
    return _job(block.place, block.name, block.attributes(), kinds, zone)


def _job(place: str, name: str, given: Mapping[str, str], kinds: Kinds, zone: tzinfo) -> Job:
    state = _STATES.get(given.get("job_state", ""))
    if state is None or "queue" not in given:
        raise RecordError(f"{place}: no queue, or no state that is known: {given.get('job_state')!r:.20}")
    sequence, index = job_number(name)
    # The server leaves words of a start that failed, and of the parent's on a member that waits.
    holds = state not in _WAITING and index != -1
    owner, get = given.get("Job_Owner", ""), given.get
    slots, gpus = _held(get("exec_vnode", "")) if holds else ((), ())
    limit = given.get("max_run_subjobs")
    return Job(
        id=JobId(name), state=state, queue=QueueName(given["queue"]), request=request_of(given, kinds),
        name=get("Job_Name", ""), owner=owner, user=get("euser") or owner.partition("@")[0],
        group=get("egroup", ""), sequence=sequence, array_index=index,
        array_slot_limit=None if limit is None else count(limit), priority=_count(given, "Priority"),
        ctime_s=_time(given, "ctime", zone), qtime_s=_time(given, "qtime", zone),
        etime_s=_time(given, "etime", zone), start_s=_time(given, "stime", zone) if holds else None,
        start_count=_count(given, "run_count"),
        execution_time_s=_time(given, "Execution_Time", zone),
        comp_s=_time(given, "obittime", zone) if state is JobState.COMPLETED else None,
        exit_status=_exit_status(given, state), total_runtime_s=_runtime_s(given, state, zone),
        hold_types=_holds(get("Hold_Types", "n")),
        progress=StartProgress.BEGUN if _count(given, "substate") >= _BEGUN and holds else StartProgress.NONE,
        depend=parse_dependencies(given["depend"]) if "depend" in given else (),
        allocated_slots=slots, allocated_gpus=gpus, used=_used(given) if holds else UsedResources(),
        comment=get("comment", ""), account=get("Account_Name", ""), project=get("project", ""),
        submit_args=get("Submit_arguments", ""), init_work_dir=get("jobdir", ""),
        interactive=get("interactive", "False") not in {"False", "0"},
        rerunnable=get("Rerunable", "True") == "True",
        queue_rank=_count(given, "queue_rank"),
    )  # fmt: skip


_OF_ACCOUNTING = {
    "user": "euser", "group": "egroup", "account": "Account_Name", "jobname": "Job_Name", "start": "stime",
    "end": "obittime",
}  # fmt: skip
_EXEC_VNODE = re.compile(r" exec_vnode=(\S+)")


def job_of_accounting(name: str, given: Mapping[str, str], *, is_over: bool) -> Job:
    """The job of an S or E record of accounting; of its chunks processors, GPUs and memory.

    Which other words of a chunk are counted, and which are kinds of nodes, no record says.

    Args:
        name: its id.
        given: the attributes, where what Torque does not know is a part of the value before.
        is_over: an E record.

    Raises:
        RecordError: what it holds is garbled.
        ModelError: a number in it is impossible.
    """
    held = _EXEC_VNODE.search(given.get("exec_host", ""))
    attributes = {_OF_ACCOUNTING.get(key, key): text.partition(" ")[0] for key, text in given.items()}
    attributes |= {
        "Job_Name": given.get("jobname", ""), "job_state": "F" if is_over else "R", "substate": "42",
        "exec_vnode": held.group(1) if held else "",
    }  # fmt: skip
    attributes.setdefault("queue", "")
    job = _job("job " + name[:60], name, attributes, Kinds(), timezone.utc)
    request = job.request
    return replace(
        job,
        request=replace(
            request, node_group="",
            chunks=tuple(replace(chunk, properties=()) for chunk in request.chunks),
            tasks=tuple(replace(chunk, properties=()) for chunk in request.tasks),
        ),
    )  # fmt: skip


def _exit_status(given: Mapping[str, str], state: JobState) -> int | None:
    """Of a job that is over, or whose last start failed (-3)."""
    if "Exit_status" not in given or state in {JobState.RUNNING, JobState.SUSPENDED}:
        return None
    return count(given["Exit_status"])


def _runtime_s(given: Mapping[str, str], state: JobState, zone: tzinfo) -> float | None:
    began_s, ended_s = _time(given, "stime", zone), _time(given, "obittime", zone)
    if state is not JobState.COMPLETED or began_s is None or ended_s is None:
        return None
    return max(0.0, ended_s - began_s)


def _count(given: Mapping[str, str], name: str) -> int:
    text = given.get(name)
    return 0 if text is None else count(text)


def _time(given: Mapping[str, str], name: str, zone: tzinfo) -> float | None:
    text = given.get(name)
    return None if text is None else epoch_s(text, zone)


def _holds(text: str) -> frozenset[HoldType]:
    # An unknown letter is a hold all the same.
    return frozenset(_HOLDS.get(letter, HoldType.SYSTEM) for letter in text if letter not in "n, ")


def _held(text: str) -> tuple[tuple[HostSlots, ...], tuple[GpuSlot, ...]]:
    """Slots and GPUs by vnode. GPUs have no index at OpenPBS: they are numbered later (`cluster.settled`)."""
    slots: dict[NodeName, int] = {}
    gpus: dict[NodeName, int] = {}
    for element in parse_exec_vnode(text):
        for share in element:
            name = NodeName(share.vnode)
            slots[name] = slots.get(name, 0) + share.amount("ncpus")
            gpus[name] = gpus.get(name, 0) + share.amount("ngpus")
    return (
        tuple(HostSlots(name, 0, n - 1) for name, n in slots.items()),
        tuple(GpuSlot(name, index) for name, n in gpus.items() for index in range(n)),
    )


def _used(given: Mapping[str, str]) -> UsedResources:
    return UsedResources(
        cput_s=figure(given, "resources_used.cput", duration_s),
        walltime_s=figure(given, "resources_used.walltime", duration_s),
        mem_bytes=figure(given, "resources_used.mem", size_bytes),
        vmem_bytes=figure(given, "resources_used.vmem", size_bytes),
    )
