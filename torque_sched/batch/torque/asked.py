"""A job that was not submitted: what ``qsub -l`` would ask for, as the server would store it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from torque_sched.batch.openpbs.parse.select import Kinds, request_of
from torque_sched.batch.torque.parse.jobs import job_from_record
from torque_sched.batch.torque.parse.records import Record
from torque_sched.batch.torque.parse.request import HEEDED
from torque_sched.errors import ConfigError, RecordError
from torque_sched.model.cluster import Job, JobId, Server
from torque_sched.model.request import AccessPolicy
from torque_sched.model.snapshot import Snapshot

_RESOURCE = re.compile(r",(?=\s*[A-Za-z_]\w*\s*=)|,(?=\s*[A-Za-z_]\w*\s*$)")

_GPUS = frozenset({"gpus", "gpu"})


def asked_job(snapshot: Snapshot, submit: str, *, user: str, name: str = "whatif", queue: str = "") -> Job:
    """The job of ``qsub -l SUBMIT -q QUEUE -N NAME``, queued just now.

    Args:
        snapshot: its server and queues give the defaults.
        submit: such as ``nodes=2:ppn=4:gpus=1,walltime=2:00:00,mem=8gb``.
        user: who would submit it.
        name: its name; jobs of the same name tell what it would use.
        queue: empty: the server's default.

    Raises:
        ConfigError: the words cannot be read, or there is no such queue.
    """
    chosen = queue or snapshot.server.default_queue or (snapshot.queues[0].name if snapshot.queues else "")
    if chosen not in snapshot.queue_by_name:
        known = ", ".join(each.name for each in snapshot.queues)
        raise ConfigError(f"no queue {chosen!r}", cure=f"known are {known}")
    asked = _resources(submit)
    job = _next_id(snapshot)
    attributes = {
        "Job_Name": name,
        "Job_Owner": f"{user}@{snapshot.server.name or 'head'}",
        "euser": user,
        "job_state": "Q",
        "queue": chosen,
        **{at: f"{int(snapshot.now_s)}" for at in ("ctime", "qtime", "etime")},
        **{
            f"Resource_List.{key}": value
            for key, value in {**_defaults(snapshot, chosen, asked), **asked}.items()
        },
    }
    try:
        made = job_from_record(Record("Job", job, attributes))
    except RecordError as error:
        raise ConfigError(f"--submit {submit!r}: {error.message}", cure=error.cure) from error
    if "select" in asked:
        made = replace(made, request=request_of(attributes, _kinds(snapshot)))
    access = asked.get("naccesspolicy")
    if access and made.request.access is None:
        known = ", ".join(each.value for each in AccessPolicy)
        raise ConfigError(f"--submit {submit!r}: no naccesspolicy {access!r}", cure=f"known are {known}")
    if made.request.trouble:
        raise ConfigError(f"--submit {submit!r}: {made.request.trouble}", cure="write it as for qsub -l")
    return made


def _kinds(snapshot: Snapshot) -> Kinds:
    """The kinds of an OpenPBS site's resources, as its nodes show them."""
    words = (word.rpartition("=") for node in snapshot.nodes for word in node.properties)
    booleans = {name for name, _, value in words if value in {"True", "False"}}
    return Kinds(frozenset(name for node in snapshot.nodes for name in node.others), frozenset(booleans))


def joined(submits: Sequence[str], walltime: str | None) -> str:
    """Several ``-l`` and a time limit as one text, as qsub takes them.

    >>> joined(["nodes=2", "mem=1gb"], "1:00:00")
    'nodes=2,mem=1gb,walltime=1:00:00'

    Raises:
        ConfigError: a resource is named twice.
    """
    parts = [*submits, *([f"walltime={walltime}"] if walltime else ())]
    seen: dict[str, str] = {}
    for part in parts:
        for key, value in _resources(part).items():
            _only_one(seen, key, value)
    return ",".join(parts)


def note_on(submit: str) -> str:
    """Says which resources of ``qsub -l SUBMIT`` make no difference here; empty: all do.

    >>> note_on("nodes=2,walltime=1:00:00,pmen=1gb")
    'note: pmen makes no difference here: misspelt, or a matter of the server alone'
    """
    words = sorted(_resources(submit).keys() - HEEDED - {"select", "place"})
    verb = "makes" if len(words) == 1 else "make"
    note = f"note: {', '.join(words)} {verb} no difference here: misspelt, or a matter of the server alone"
    return note if words else ""


def _resources(submit: str) -> dict[str, str]:
    asked: dict[str, str] = {}
    for part in _RESOURCE.split(submit):
        key, equals, value = part.strip().partition("=")
        if not key or not equals or not value.strip():
            raise ConfigError(
                f"--submit: {part.strip()!r} is not resource=value",
                cure="for example nodes=2:ppn=4,walltime=1:00:00",
            )
        # `-l gpus=1` is stored as a generic resource.
        stored, text = ("gres", f"gpus:{value.strip()}") if key in _GPUS else (key, value.strip())
        _only_one(asked, stored, text)
    return asked


def _only_one(asked: dict[str, str], key: str, value: str) -> None:
    if asked.setdefault(key, value) != value:
        raise ConfigError(f"{key} is asked for twice", cure="leave one of them")


def _defaults(snapshot: Snapshot, queue: str, asked: dict[str, str]) -> dict[str, str]:
    """The queue's defaults before the server's; none for the shape of a job that names its own."""
    by_name = {str(each.name): each for each in snapshot.queues}
    found = {**snapshot.server.resources_default.texts, **by_name[queue].resources_default.texts}
    shapes = {"nodes", "procs", "ncpus", "nodect", "neednodes", "select"}
    has_shape = bool(shapes & asked.keys())
    return {key: value for key, value in found.items() if not (has_shape and key in shapes)}


def _next_id(snapshot: Snapshot) -> JobId:
    server: Server = snapshot.server
    number = max([server.next_job_number or 0, *(job.sequence + 1 for job in snapshot.jobs)], default=1)
    return JobId(f"{number}.{server.name.partition('.')[0] or 'head'}")
