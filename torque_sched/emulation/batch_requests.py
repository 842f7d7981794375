"""What the emulated server answers to each request of the batch protocol.

The values are those of the commands (``show_*``) before a client puts them into words: times are epoch
seconds, a family comes as one attribute for each resource. Refusals have the server's words without the job's
id, which the commands add.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torque_sched.batch.torque.protocol import (
    Attribute,
    DeleteJob,
    ErrorCode,
    ModifyJob,
    ObjectType,
    Operator,
    Reply,
    ReplyKind,
    Request,
    RequestDecoder,
    RequestType,
    RunJob,
    SelectJobs,
    SelectStatus,
    Status,
    encode_reply,
)
from torque_sched.batch.torque.protocol.dis import encode_number
from torque_sched.emulation.act import delete_job, permit, refuse_complete
from torque_sched.emulation.attributes import READ_ONLY, is_queue_attribute, is_server_attribute
from torque_sched.emulation.call import Call, Options
from torque_sched.emulation.model import EmulatedJob, Refused, seconds_of, size_kb
from torque_sched.emulation.query import named_jobs
from torque_sched.emulation.routing import is_route
from torque_sched.emulation.run import run_job
from torque_sched.emulation.show_job import N_SIGHTS, is_moving, job_pairs, knows, sight, viewer_of
from torque_sched.emulation.show_node import NodeTexts
from torque_sched.emulation.show_server import SERVER_ORDER, queue_pairs, server_pairs
from torque_sched.emulation.world import World

_NAMES: dict[RequestType, tuple[str, ...]] = {
    RequestType.STATUS_JOB: ("StatusJob", "qstat"),
    RequestType.STATUS_QUEUE: ("StatusQueue", "qstat"),
    RequestType.STATUS_SERVER: ("StatusServer", "qstat"),
    RequestType.STATUS_NODE: ("StatusNode", "pbsnodes"),
    RequestType.SELECT_STATUS: ("SelStatAttr", "qstat"),
    RequestType.SELECT_JOBS: ("SelectJobs", "qselect"),
    RequestType.RUN_JOB: ("RunJob", "qrun"),
    RequestType.ASYNC_RUN_JOB: ("AsyncRunJob", "qrun"),
    RequestType.MODIFY_JOB: ("ModifyJob", "qalter"),
    RequestType.DELETE_JOB: ("DeleteJob", "qdel"),
    RequestType.AUTHENTICATE_USER: ("AuthenticateUser",),
    RequestType.DISCONNECT: ("Disconnect",),
}
"""Torque's name of a request, and the command that sends it."""
_OF_JOBS = frozenset({RequestType.STATUS_JOB, RequestType.SELECT_STATUS})
_LETTERS = {RequestType.STATUS_QUEUE: "-Q", RequestType.STATUS_SERVER: "-B"}
_ASYNC_MODIFY_JOB = 28
_MODIFIED, _ASYNC_MODIFIED = b"+2+22+11", b"+2+22+28"
_REJECTED = "Execution server rejected request MSG=cannot send job to mom, state=PRERUN"
_MOM_REJECTED = 15043
_DONE = encode_reply(Reply())
_HEAD = encode_reply(Reply(kind=ReplyKind.OBJECTS)).removesuffix(b"+0")
_CONDENSED = ("Job_Name", "Job_Owner", "job_state", "resources_used", "queue")
_CONDENSED_AFTER_S = 45
_COMPARED: dict[int, Callable[[Any, Any], bool]] = {
    Operator.AT_LEAST: operator.ge,
    Operator.MORE: operator.gt,
    Operator.AT_MOST: operator.le,
    Operator.LESS: operator.lt,
}


@dataclass(frozen=True, slots=True)
class Answered:
    """The bytes of a reply, and how long the client waits for them."""

    data: bytes
    delay_s: float = 0.0


_JOB_S, _ATTRIBUTE_S, _ALL_ATTRIBUTES = 1.6e-6, 0.4e-6, 32
"""Of a look: 1,000 jobs cost a real server 2.9, 7.0 and 14.2 ms of CPU with 3, 12 and all attributes."""
_START_S = 2.1e-3
"""480 AsyncRunJob a second over one connection."""
_MODIFY_S, _MODIFY_JOB_S = 0.15e-3, 0.3e-6
"""6,600 comments a second where there are few jobs; some 650 were seen beside 2,000 jobs on a machine under
load 5, of which half is taken to be the server's own."""
_OTHER_S = 0.1e-3


def real_time_s(world: World, request: Request) -> float:
    """How long a real server takes for a request; measured with 6.1.3.h5 on two cores."""
    if isinstance(request, Status | SelectStatus) and request.type in _OF_JOBS:
        return len(world.jobs) * (_JOB_S + _ATTRIBUTE_S * (len(request.attributes) or _ALL_ATTRIBUTES))
    if isinstance(request, RunJob):
        return _START_S
    if isinstance(request, ModifyJob):
        return _MODIFY_S + _MODIFY_JOB_S * len(world.jobs)
    return _OTHER_S


def names_of(request: Request) -> tuple[str, ...]:
    """The names by which a fault can be ordered for a request."""
    return _NAMES[request.type]


def words_of(request: Request) -> tuple[str, ...]:
    """What a request is about, in the words of the command line."""
    letter = _LETTERS.get(request.type, "")
    if isinstance(request, Status):
        return (letter, request.name)
    if isinstance(request, RunJob):
        return ("-H", request.destination, request.job)
    if isinstance(request, ModifyJob):
        return (*(each.value for each in request.attributes), request.job)
    return (request.job,) if isinstance(request, DeleteJob) else ()


def read_async_modify(number: int, data: bytes) -> Request | None:
    """The request in ``data`` if it is an AsyncModifyJob in one piece; it has ModifyJob's body."""
    if number != _ASYNC_MODIFY_JOB or not data.startswith(_ASYNC_MODIFIED):
        return None
    decoder = RequestDecoder()
    decoder.receive(_MODIFIED + data[len(_ASYNC_MODIFIED) :])
    return decoder.next()


def refusal(code: int, text: str) -> bytes:
    """A refusal with its words."""
    return encode_reply(Reply(code, kind=ReplyKind.TEXT, text=text))


def _object(kind: ObjectType, name: str, pairs: Iterable[tuple[str, str]]) -> str:
    """The bytes of one status object as a text with one character for each byte.

    As `encode_reply` has them; tens of thousands of jobs are shown in each look, and names come again.
    """
    attributes = []
    for key, value in pairs:
        head, n_bytes = _name(key)
        raw = _raw(value)
        attributes.append(f"{_number(n_bytes + len(raw))}{head}{_number(len(raw))}{raw}+0")
    own = _raw(name)
    return f"{_number(kind)}{_number(len(own))}{own}{_number(len(attributes))}{''.join(attributes)}"


def _raw(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("latin-1")


@functools.lru_cache(maxsize=4096)
def _number(value: int) -> str:
    return encode_number(value).decode("ascii")


@functools.lru_cache(maxsize=1024)
def _name(key: str) -> tuple[str, int]:
    """What an attribute's name gives of it, and the bytes it counts besides its value's own."""
    head, dot, resource = key.partition(".")
    if not dot:
        return f"{_number(len(head))}{head}+0", len(head) + 2
    text = f"{_number(len(head))}{head}+1{_number(len(resource))}{resource}"
    return text, len(head) + len(resource) + 3


def _node(name: str, pairs: Iterable[tuple[str, str]]) -> str:
    return _object(ObjectType.NODE, name, pairs)


def _objects(texts: Sequence[str]) -> Answered:
    return Answered(_HEAD + encode_number(len(texts)) + "".join(texts).encode("latin-1"))


class Requests:
    """Answers requests over a world; keeps what it has rendered until that changes."""

    def __init__(self) -> None:
        self._nodes = NodeTexts()

    def answer(self, world: World, request: Request, user: str) -> Answered:
        """Do one request of ``user``."""
        try:
            return self._answer(world, request, user)
        except Refused as error:
            return Answered(refusal(error.code, _without_id(world, request, error.text)))

    def _answer(self, world: World, request: Request, user: str) -> Answered:
        if isinstance(request, Status):
            return _objects(self._status(world, request, user))
        if isinstance(request, SelectStatus):
            wanted = _wanted_of_jobs(request.attributes)
            render = _job_form(world, user, wanted)
            return _objects([render(each) for each in _chosen(world, request, user)])
        if isinstance(request, SelectJobs):
            ids = tuple(each.id for each in _chosen(world, request, user))
            return Answered(encode_reply(Reply(kind=ReplyKind.JOB_IDS, job_ids=ids)))
        if isinstance(request, RunJob):
            return _run(world, request, user)
        if isinstance(request, ModifyJob):
            _modify(world, request, user)
        elif isinstance(request, DeleteJob):
            _delete(world, request, user)
        return Answered(_DONE)

    def _status(self, world: World, request: Status, user: str) -> list[str]:
        if request.type is RequestType.STATUS_JOB:
            return _status_of_jobs(world, request, user)
        if request.type is RequestType.STATUS_QUEUE:
            return _status_of_queues(world, request)
        if request.type is RequestType.STATUS_SERVER:
            pairs = _some(server_pairs(world), request, _is_of_server)
            return [_object(ObjectType.SERVER, world.settings.server, pairs)]
        if request.name and request.name not in world.nodes:
            raise Refused(ErrorCode.UNKNOWN_NODE, "Unknown node  MSG=cannot locate specified node")
        nodes = [world.nodes[request.name]] if request.name else world.nodes.values()
        return [self._nodes.one(world, node, _node) for node in nodes]


def _without_id(world: World, request: Request, text: str) -> str:
    name = request.name if isinstance(request, Status) else getattr(request, "job", "")
    return text.removesuffix(f" {world.full_id(name)}").removesuffix(f" {name}") if name else text


def _some(
    pairs: Iterable[tuple[str, str]], request: Status, is_known: Callable[[str], bool]
) -> list[tuple[str, str]]:
    """What was asked for, in that order; everything if nothing was."""
    if not request.attributes:
        return list(pairs)
    found: dict[str, list[tuple[str, str]]] = {}
    for key, value in pairs:
        found.setdefault(key.partition(".")[0], []).append((key, value))
    for each in request.attributes:
        if not is_known(each.name):
            raise Refused(ErrorCode.UNKNOWN_ATTRIBUTE, f"Undefined attribute  {each.name}")
    return [pair for each in request.attributes for pair in found.get(each.name, ())]


def _is_of_server(name: str) -> bool:
    return name in SERVER_ORDER or is_server_attribute(name)


def _status_of_queues(world: World, request: Status) -> list[str]:
    if request.name and request.name not in world.queues:
        raise Refused(ErrorCode.UNKNOWN_QUEUE, "Unknown queue MSG=cannot locate queue")
    queues = [world.queues[request.name]] if request.name else world.queues.values()
    return [
        _object(ObjectType.QUEUE, each.name, _some(queue_pairs(world, each), request, _is_of_queue))
        for each in queues
    ]


def _is_of_queue(name: str) -> bool:
    return name in READ_ONLY or is_queue_attribute(name)


# -- jobs


def _status_of_jobs(world: World, request: Status, user: str) -> list[str]:
    extension = request.extension or ""
    jobs = named_jobs(world, user, request.name, expanded="summarize_arrays" not in extension)
    if request.name.partition(".")[0].endswith("[]") and "summarize_arrays" in extension:
        jobs = [world.job(request.name)]
    if "exec_queue_only" in extension:
        jobs = [job for job in jobs if job.queue in world.queues and not is_route(world.queues[job.queue])]
    wanted = _wanted_of_jobs(request.attributes)
    render = _job_form(world, user, wanted)
    if wanted or not extension.endswith("C") or world.settings.is_old:
        return [render(job) for job in jobs]
    condensed = _job_form(world, user, _CONDENSED)
    latest_s = world.now_s - _CONDENSED_AFTER_S
    return [condensed(job) if job.seconds("mtime") <= latest_s else render(job) for job in jobs]


def _wanted_of_jobs(attributes: Iterable[Attribute]) -> tuple[str, ...]:
    names = tuple(each.name for each in attributes)
    if not all(map(knows, names)):
        raise Refused(ErrorCode.UNKNOWN_ATTRIBUTE, "Undefined attribute ")
    return names


def _job_form(world: World, user: str, wanted: tuple[str, ...]) -> Callable[[EmulatedJob], str]:
    """Renders a job as a user may see it; how long it may still run comes unasked."""
    viewer = viewer_of(world, user)
    keys = [f"batch{sight}{wanted}" for sight in range(N_SIGHTS)]

    def render(job: EmulatedJob) -> str:
        key = keys[sight(job, viewer)]
        if key in job.cached and not is_moving(job):
            return job.cached[key]
        if wanted:
            pairs = job_pairs(world, job, viewer, (*wanted, "Walltime.Remaining"))
        else:
            pairs = job_pairs(world, job, viewer)
        text = _object(ObjectType.JOB, job.id, pairs)
        if not is_moving(job):
            job.cached[key] = text
        return text

    return render


def _chosen(world: World, request: SelectStatus | SelectJobs, user: str) -> list[EmulatedJob]:
    """The jobs that meet every criterion; members instead of arrays."""
    _wanted_of_jobs(request.criteria)
    return [
        job
        for job in named_jobs(world, user, "", expanded=True)
        if all(_meets(world, job, each) for each in request.criteria)
    ]


def _meets(world: World, job: EmulatedJob, criterion: Attribute) -> bool:
    name, asked = criterion.name, criterion.value
    if name == "job_state":
        is_met = job.state in asked
    elif name in ("Job_Owner", "User_List", "euser"):
        is_met = job.user in [each.partition("@")[0] for each in asked.split(",")]
    else:
        key = f"{name}.{criterion.resource}" if criterion.resource else name
        own = dict(job_pairs(world, job, "", (name,))).get(key)
        if criterion.operator in _COMPARED:
            compare = _COMPARED[criterion.operator]
            return own is not None and compare(_amount(key, own), _amount(key, asked))
        is_met = own == asked.partition("@")[0]
    return is_met != (criterion.operator == Operator.NOT_EQUAL)


def _amount(name: str, text: str) -> int:
    try:
        if name.endswith("mem"):
            return size_kb(text)
        return seconds_of(text)
    except ValueError as error:
        raise Refused(15016, "Illegal attribute or resource value for ") from error


def _run(world: World, request: RunJob, user: str) -> Answered:
    full = world.full_id(request.job)
    delay_s = run_job(world, user, full, request.destination, in_background=request.is_async)
    if delay_s:
        return Answered(refusal(_MOM_REJECTED, _REJECTED), delay_s)
    return Answered(_DONE, 0.0 if request.is_async else world.settings.mom_start_s)


def _modify(world: World, request: ModifyJob, user: str) -> None:
    """Set a comment, or with an empty value take it away."""
    job = world.job(request.job)
    permit(world, Call("qalter", (), user=user), job)
    refuse_complete(job)
    for each in request.attributes:
        if not knows(each.name):
            raise Refused(ErrorCode.UNKNOWN_ATTRIBUTE, "Undefined attribute ")
        if each.name != "comment":
            raise Refused(ErrorCode.INVALID, f"Invalid request MSG=emulated: {each.name} is not set here")
        if not world.is_admin(user):
            raise Refused(ErrorCode.READ_ONLY, "Cannot set attribute, read only or insufficient permission ")
    now = str(int(world.now_s))
    for each in request.attributes:
        if each.value:
            job.attributes.update({each.name: each.value, "mtime": now})
            world.touch_attributes(job, (each.name, "mtime"))
        else:
            job.attributes.pop(each.name, None)
            job.attributes["mtime"] = now
            world.touch_job(job)


def _delete(world: World, request: DeleteJob, user: str) -> None:
    """As qdel; what is over already is acknowledged again."""
    job = world.job(request.job)
    call = Call("qdel", (), user=user)
    permit(world, call, job)
    is_purged = (request.extension or "").startswith("delpurge")
    if job.state != "C":
        delete_job(world, call, job, Options({"p": [""]} if is_purged else {}, ()))
