"""Records from the replies of Torque's own batch protocol: the same as from the commands' outputs.

A whole reply, as it came over the connection, is one more form in which jobs, nodes, queues and the server
may be written down; the journal keeps it so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeGuard, TypeVar

from torque_sched.batch.torque.parse.records import Parsed, Record, as_record_error, listed_once, read_record
from torque_sched.batch.torque.protocol import ObjectType, Reply, ReplyDecoder, StatusObject
from torque_sched.errors import DocumentError, ProtocolError, RecordError, TorqueSchedError

T = TypeVar("T")
_KINDS: dict[int, str] = {
    ObjectType.SERVER: "Server", ObjectType.QUEUE: "Queue", ObjectType.JOB: "Job", ObjectType.NODE: "Node",
}  # fmt: skip
_BEGINNING = b"+2+2"

_OF_ALL_VERSIONS = (
    "Job_Name", "Job_Owner", "resources_used", "job_state", "queue", "Account_Name", "ctime", "depend",
    "exec_host", "exec_gpus", "Execution_Time", "Hold_Types", "Priority", "qtime", "Rerunable",
    "Resource_List", "interactive", "substate", "euser", "egroup", "queue_rank", "comment", "etime",
    "exit_status", "submit_args", "job_array_request", "start_time", "start_count", "comp_time",
    "total_runtime", "init_work_dir", "x",
)  # fmt: skip
_OF_6 = ("node_exclusive", "req_information", "L_Request")
JOB_ATTRIBUTES: tuple[tuple[str, ...], ...] = (_OF_ALL_VERSIONS + _OF_6, _OF_ALL_VERSIONS, ())
"""What a job is made of, to be asked for in this order: a server refuses a name it does not know.

The last asks for everything. ``Walltime.Remaining`` comes unasked.
"""


def record_from_object(each: StatusObject) -> Record:
    """The record of an object, as the commands' outputs give it.

    Raises:
        RecordError: it is of a type nobody knows, or has no name.
    """
    kind = _KINDS.get(each.type)
    if kind is None or not each.name:
        raise RecordError(f"an object of type {each.type} named {each.name[:60]!r}", cure=_CURE)
    attributes = {
        attribute.name if attribute.resource is None else f"{attribute.name}.{attribute.resource}":
        attribute.value if attribute.value.isascii() else _text(attribute.value)
        for attribute in each.attributes
    }  # fmt: skip
    return read_record(kind, _text(each.name), attributes)


_CURE = "the other records are used; if it stays, set `transport: commands`"


def _text(text: str) -> str:
    """Bytes that are not UTF-8 become U+FFFD, as in outputs of commands."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def builder(kind: str, build: Callable[[Record], T]) -> Callable[[StatusObject], T | RecordError]:
    """What makes values of status objects for a `ReplyDecoder`; a damaged one becomes its error.

    Args:
        kind: ``Job``, ``Node``, ``Queue`` or ``Server``; others are damaged.
        build: makes the value of a record.
    """

    def made(each: StatusObject) -> T | RecordError:
        try:
            record = record_from_object(each)
            if record.kind != kind:
                raise RecordError(f"{record.place} where a {kind.lower()} belongs", cure=_CURE)
            return build(record)
        except TorqueSchedError as error:
            return as_record_error(error, f"{kind.lower()} {each.name[:60]}")

    return made


def parsed(values: Iterable[T | RecordError]) -> Parsed[T]:
    """Values and errors, apart."""
    items: list[T] = []
    problems: list[RecordError] = []
    for value in values:
        if isinstance(value, RecordError):
            problems.append(value)
        else:
            items.append(value)
    return listed_once(items, problems, "pbs_server")


def is_reply(data: bytes | str) -> TypeGuard[bytes]:
    """Whether this is a reply of the protocol; no output of a command begins like one."""
    return isinstance(data, bytes) and data.startswith(_BEGINNING)


def build_from_reply(data: bytes, kind: str, build: Callable[[Record], T]) -> Parsed[T]:
    """Values of one kind from a whole reply.

    Raises:
        DocumentError: the reply is cut off, garbled, too large, or a refusal.
    """
    decoder: ReplyDecoder[T | RecordError] = ReplyDecoder(builder(kind, build))
    decoder.receive(data)
    try:
        reply: Reply[T | RecordError] | None = decoder.next()
    except ProtocolError as error:
        raise DocumentError(f"a reply of pbs_server: {error.message}", cure=error.cure) from error
    if reply is None or not decoder.is_between_messages:
        raise DocumentError("a reply of pbs_server is cut off, or goes on", cure="nothing of it is used")
    if reply.code:
        raise DocumentError(f"pbs_server refused: {reply.text} ({reply.code})", cure="ask again")
    return parsed(reply.objects)
