"""Jobs: the attributes of a record to a :class:`Job`, and back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timezone, tzinfo

from torque_sched.batch.torque.parse.records import Record, figure
from torque_sched.batch.torque.parse.request import parse_request
from torque_sched.batch.torque.parse.slots import parse_exec_gpus, parse_exec_host
from torque_sched.batch.torque.parse.times import epoch_s
from torque_sched.errors import ModelError, RecordError
from torque_sched.model.cluster import Dependency, Job, JobId, QueueName, UsedResources
from torque_sched.model.states import HoldType, JobState, StartProgress
from torque_sched.model.units import boolean, count, duration_s, size_bytes

_JOB_ID = re.compile(r"([0-9]{1,18})(?:\[([0-9]{0,18})\]|-([0-9]{1,18}))?(?:\..*)?", re.DOTALL)
_RUNNING_SUBSTATE = 42
_LEFT_SUBSTATE = 19
"""Of a queued job whose accepted start never began (6.1.3)."""


def job_number(job: str) -> tuple[int, int | None]:
    """The sequence number of a job id and its index in the array; None outside of arrays.

    A whole array (``47[].head``) has index -1.

    >>> job_number("44.head"), job_number("47[2].head"), job_number("47[].head")
    ((44, None), (47, 2), (47, -1))

    Raises:
        ModelError: the text is no job id.
    """
    found = _JOB_ID.fullmatch(job)
    if found is None:
        raise ModelError(
            f"{job[:60]!r} is no job id", cure="a job id is NUMBER.server or NUMBER[INDEX].server"
        )
    number, bracketed, dashed = found.groups()
    index = dashed if bracketed is None else bracketed
    return int(number), None if index is None else (-1 if index == "" else int(index))


_STATES = {state.value: state for state in JobState}
# OpenPBS letters: an array with members under way, and a member that is done.
_STATES.update({"B": JobState.RUNNING, "X": JobState.COMPLETED, "F": JobState.COMPLETED})
_HOLDS = {hold.value: hold for hold in HoldType}
_NO_HOLDS: frozenset[HoldType] = frozenset()
_DIGITS = frozenset(map(str, range(100)))
_NOTHING_USED = UsedResources()
_SLOT_LIMIT = re.compile(r"(?:^|\s)-t\s*\S*%([0-9]{1,9})(?=\s|$)")
_ARRAY_LIMIT = re.compile(r"[^%]*%([0-9]{1,9})")


def job_from_record(record: Record, zone: tzinfo = timezone.utc) -> Job:
    """The job a record describes; ``zone`` is that of text times.

    Raises:
        RecordError: id, state, queue, a time or the slots it holds are missing or garbled. A request that
            cannot be understood is no error: it is in ``request.trouble``.
    """
    try:
        return _job(record, zone)
    except KeyError as error:
        raise RecordError(
            f"{record.place}: no {error.args[0]}", cure="is this the output of qstat -f -t -x?"
        ) from error
    except (ModelError, RecordError) as error:
        raise RecordError(f"{record.place}: {error.message}", cure=error.cure) from error


def _job(record: Record, zone: tzinfo) -> Job:
    state = _state(record.attributes["job_state"])
    given = _without_leftovers(record.attributes, state)
    get = given.get
    sequence, index = job_number(record.name)
    exec_host, exec_gpus, hold, depend = get("exec_host"), get("exec_gpus"), get("Hold_Types"), get("depend")
    owner, submit_args = get("Job_Owner", ""), get("submit_args", "")
    return Job(
        id=JobId(record.name), state=state, queue=QueueName(given["queue"]),
        request=parse_request(given), name=get("Job_Name", ""), owner=owner,
        user=get("euser") or owner.partition("@")[0], group=get("egroup", ""), sequence=sequence,
        array_index=index,
        array_slot_limit=None if index is None else _slot_limit(get("job_array_request", ""), submit_args),
        priority=_count(given, "Priority"),
        ctime_s=_time(given, "ctime", zone), qtime_s=_time(given, "qtime", zone),
        etime_s=_time(given, "etime", zone), start_s=_time(given, "start_time", zone),
        execution_time_s=_time(given, "Execution_Time", zone), comp_s=_time(given, "comp_time", zone),
        start_count=_count(given, "start_count"),
        exit_status=count(given["exit_status"]) if "exit_status" in given else None,
        total_runtime_s=figure(given, "total_runtime", float),
        walltime_remaining_s=figure(given, "Walltime.Remaining", float),
        hold_types=_NO_HOLDS if hold is None or hold == "n" else _holds(hold),
        progress=_progress(_count(given, "substate")), depend=parse_dependencies(depend) if depend else (),
        allocated_slots=parse_exec_host(exec_host) if exec_host else (),
        allocated_gpus=parse_exec_gpus(exec_gpus) if exec_gpus else (),
        used=_used(given) if "resources_used.walltime" in given or exec_host else _NOTHING_USED,
        comment=get("comment", ""), account=get("Account_Name", ""), submit_args=submit_args,
        init_work_dir=get("init_work_dir", ""),
        interactive=boolean(given["interactive"]) if "interactive" in given else False,
        rerunnable=get("Rerunable", "True") == "True", queue_rank=_count(given, "queue_rank"),
    )  # fmt: skip


def _without_leftovers(given: Mapping[str, str], state: JobState) -> Mapping[str, str]:
    """The attributes less those of a run that is over or never was, which the server leaves on the job.

    ``qrerun`` leaves start_time, exec_gpus and an exit_status on the queued job; a qrun that is refused for
    the array's slot limit leaves an exec_host; a job deleted while it waits keeps them all and ends without
    the comp_time that every real end has (observed on 6.1.3 and 4.2.10).
    """
    if state in _WAITING or (state is JobState.COMPLETED and "comp_time" not in given):
        stale = _OF_A_RUN if state in _WAITING else _OF_A_RUN - {"exit_status"}
    elif state is JobState.RUNNING or state is JobState.SUSPENDED:
        stale = _OF_AN_END
    else:
        return given
    if given.keys().isdisjoint(stale):
        return given
    return {name: text for name, text in given.items() if name not in stale}


_WAITING = frozenset({JobState.QUEUED, JobState.HELD, JobState.WAITING, JobState.TRANSIT})
_OF_AN_END = frozenset({"exit_status", "comp_time", "total_runtime"})
_OF_A_RUN = _OF_AN_END | {
    "exec_host", "exec_gpus", "start_time", "Walltime.Remaining", "resources_used.cput", "resources_used.mem",
    "resources_used.vmem", "resources_used.walltime", "resources_used.energy_used",
}  # fmt: skip


def _state(text: str) -> JobState:
    state = _STATES.get(text.strip())
    if state is None:
        raise RecordError(f"job_state {text[:20]!r} is unknown", cure="known are T Q H W R S E C")
    return state


def _count(given: Mapping[str, str], name: str) -> int:
    text = given.get(name)
    return 0 if text is None else int(text) if text in _DIGITS else count(text)


def _progress(substate: int) -> StartProgress:
    if substate >= _RUNNING_SUBSTATE:
        return StartProgress.BEGUN
    return StartProgress.LEFT if substate == _LEFT_SUBSTATE else StartProgress.NONE


def _time(given: Mapping[str, str], name: str, zone: tzinfo) -> float | None:
    text = given.get(name)
    if text is None:
        return None
    return float(text) if len(text) == 10 and text.isascii() and text.isdigit() else epoch_s(text, zone)


def _used(given: Mapping[str, str]) -> UsedResources:
    return UsedResources(
        cput_s=figure(given, "resources_used.cput", duration_s),
        walltime_s=figure(given, "resources_used.walltime", duration_s),
        mem_bytes=figure(given, "resources_used.mem", size_bytes),
        vmem_bytes=figure(given, "resources_used.vmem", size_bytes),
        energy_used=figure(given, "resources_used.energy_used", float),
    )


def _holds(text: str) -> frozenset[HoldType]:
    letters = text.replace(",", "").replace(" ", "").replace("n", "")
    # An unknown letter is a hold all the same.
    return frozenset(_HOLDS.get(letter, HoldType.SYSTEM) for letter in letters)


def parse_dependencies(text: str) -> tuple[Dependency, ...]:
    """The parts of ``depend``; the job ids keep a server or host the text names after ``@``.

    >>> parse_dependencies("afterok:44.head:45.head,beforeany:50.head")[0]
    Dependency(kind='afterok', jobs=('44.head', '45.head'))
    """
    parts = (part.strip().split(":") for part in text.split(","))
    return tuple(Dependency(words[0], tuple(words[1:])) for words in parts if words[0])


def _slot_limit(array_request: str, submit_args: str) -> int | None:
    """The array's ``%N``. Members do not show it, so it is taken from the submission."""
    found = _ARRAY_LIMIT.fullmatch(array_request) or _SLOT_LIMIT.search(submit_args)
    return int(found.group(1)) if found else None
