"""The messages of the batch protocol as values, and each as its bytes.

A message has no outer length: type, version and number, then field after field to the last one.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, NamedTuple, TypeVar

from torque_sched.batch.torque.protocol.dis import encode_number, encode_string
from torque_sched.errors import ProtocolError

PROTOCOL_TYPE = 2
PROTOCOL_VERSION = 2
T = TypeVar("T")


class RequestType(enum.IntEnum):
    """Numbers of the requests that are supported."""

    DELETE_JOB = 6
    MODIFY_JOB = 11
    RUN_JOB = 15
    SELECT_JOBS = 16
    STATUS_JOB = 19
    STATUS_QUEUE = 20
    STATUS_SERVER = 21
    ASYNC_RUN_JOB = 23
    AUTHENTICATE_USER = 49
    STATUS_NODE = 58
    DISCONNECT = 59
    SELECT_STATUS = 64


class Operator(enum.IntEnum):
    """What an attribute in a request means: set it, or compare with it."""

    SET = 0
    UNSET = 1
    INCREASE = 2
    DECREASE = 3
    EQUAL = 4
    NOT_EQUAL = 5
    AT_LEAST = 6
    MORE = 7
    AT_MOST = 8
    LESS = 9


class ObjectType(enum.IntEnum):
    """What a status object is."""

    SERVER = 0
    QUEUE = 1
    JOB = 2
    NODE = 3


class ReplyKind(enum.IntEnum):
    """What follows the codes of a reply; the kinds not listed answer requests that are never sent."""

    NOTHING = 1
    JOB_IDS = 5
    OBJECTS = 6
    TEXT = 7


class ErrorCode(enum.IntEnum):
    """Codes a server refuses with, as far as they make a difference here."""

    DONE = 0
    UNKNOWN_JOB = 15001
    UNKNOWN_ATTRIBUTE = 15002
    READ_ONLY = 15003
    INVALID = 15004
    UNKNOWN_REQUEST = 15005
    NOT_ALLOWED = 15007
    WRONG_USER = 15008
    CANNOT_MODIFY_RUNNING = 15017
    WRONG_STATE = 15018
    UNKNOWN_QUEUE = 15020
    NOT_AUTHORISED = 15021
    DOES_NOT_FIT_NOW = 15046
    NOT_DECODED = 15058
    UNKNOWN_NODE = 15064
    JOB_NOT_FOUND = 15086
    UNREADABLE_AUTHORISATION = 15098
    TOO_BUSY = 15134
    NO_SUCH_CONNECTION = 15135


class Attribute(NamedTuple):
    """One attribute of a request or an object; ``Resource_List.nodes`` has the resource ``nodes``.

    ``operator`` is one of `Operator`; 0 in a status object.
    """

    name: str
    resource: str | None = None
    value: str = ""
    operator: int = 0


def wanted(names: Sequence[str]) -> tuple[Attribute, ...]:
    """The list of attributes a status request asks for; no name: all of them."""
    return tuple(Attribute(name) for name in names)


@dataclass(frozen=True, slots=True)
class Status:
    """StatusJob, StatusQueue, StatusServer or StatusNode.

    Attributes:
        type: which of the four.
        user: who asks.
        name: of the object; empty: all.
        attributes: the wanted ones, none: all; StatusNode ignores them.
        extension: ``summarize_arrays`` shows an array as one object.
    """

    type: RequestType
    user: str
    name: str = ""
    attributes: tuple[Attribute, ...] = ()
    extension: str | None = None


@dataclass(frozen=True, slots=True)
class SelectStatus:
    """SelStatAttr: status of the jobs that fit all criteria."""

    type: ClassVar[RequestType] = RequestType.SELECT_STATUS
    user: str
    criteria: tuple[Attribute, ...] = ()
    attributes: tuple[Attribute, ...] = ()
    extension: str | None = None


@dataclass(frozen=True, slots=True)
class SelectJobs:
    """Ids of the jobs that fit all criteria."""

    type: ClassVar[RequestType] = RequestType.SELECT_JOBS
    user: str
    criteria: tuple[Attribute, ...] = ()
    extension: str | None = None


@dataclass(frozen=True, slots=True)
class RunJob:
    """RunJob, or AsyncRunJob, which is acknowledged before the mom is asked.

    ``destination`` is as for ``qrun -H``; empty: the job's own request, placed by the server.
    """

    user: str
    job: str
    destination: str = ""
    is_async: bool = True
    extension: str | None = None

    @property
    def type(self) -> RequestType:
        """Its number."""
        return RequestType.ASYNC_RUN_JOB if self.is_async else RequestType.RUN_JOB


@dataclass(frozen=True, slots=True)
class ModifyJob:
    """Set attributes of one job."""

    type: ClassVar[RequestType] = RequestType.MODIFY_JOB
    user: str
    job: str
    attributes: tuple[Attribute, ...] = ()
    extension: str | None = None


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete one job; ``extension`` may be a message, or ``deldelay=N``."""

    type: ClassVar[RequestType] = RequestType.DELETE_JOB
    user: str
    job: str
    attributes: tuple[Attribute, ...] = ()
    extension: str | None = None


@dataclass(frozen=True, slots=True)
class AuthenticateUser:
    """The connection from ``port`` of this host belongs to ``user``; only trqauthd sends it."""

    type: ClassVar[RequestType] = RequestType.AUTHENTICATE_USER
    user: str
    port: int
    extension: str | None = None


@dataclass(frozen=True, slots=True)
class Disconnect:
    """The server closes the connection; there is no reply."""

    type: ClassVar[RequestType] = RequestType.DISCONNECT
    user: str


Request = Status | SelectStatus | SelectJobs | RunJob | ModifyJob | DeleteJob | AuthenticateUser | Disconnect


@dataclass(frozen=True, slots=True)
class StatusObject:
    """A server, queue, job or node with attributes; ``type`` is one of `ObjectType`."""

    type: int
    name: str
    attributes: tuple[Attribute, ...] = ()


@dataclass(frozen=True, slots=True)
class Reply(Generic[T]):
    """What the server answers; which of ``text``, ``job_ids`` and ``objects`` counts, ``kind`` tells.

    Attributes:
        code: 0: done; else one of Torque's error numbers.
        auxiliary: a second code, 0 as far as seen.
        kind: a refusal has the text.
        text: the server's words.
        job_ids: for SelectJobs.
        objects: for the status requests; what a `ReplyDecoder` made of each.
    """

    code: int = 0
    auxiliary: int = 0
    kind: ReplyKind = ReplyKind.NOTHING
    text: str = ""
    job_ids: tuple[str, ...] = ()
    objects: tuple[T, ...] = ()


def encode_request(request: Request) -> bytes:
    """All bytes of a request.

    >>> encode_request(RunJob("torquesched", "0.head", "node1:ppn=2+node2", is_async=False))
    b'+2+22+152+11torquesched+60.head2+17node1:ppn=2+node2+0+0'
    """
    head = _HEAD + encode_number(request.type) + encode_string(request.user)
    if isinstance(request, Disconnect):
        return head
    if request.extension is None:
        return head + _body(request) + b"+0"
    return head + _body(request) + b"+1" + encode_string(request.extension)


_HEAD = encode_number(PROTOCOL_TYPE) + encode_number(PROTOCOL_VERSION)


def _body(request: Request) -> bytes:
    match request:
        case Status():
            return encode_string(request.name) + _attributes(request.attributes)
        case SelectStatus():
            return _attributes(request.criteria) + _attributes(request.attributes)
        case SelectJobs():
            return _attributes(request.criteria)
        case RunJob():
            return encode_string(request.job) + encode_string(request.destination) + b"+0"
        case ModifyJob():
            return b"+2+2" + encode_string(request.job) + _attributes(request.attributes)
        case DeleteJob():
            return b"+1+2" + encode_string(request.job) + _attributes(request.attributes)
        case AuthenticateUser():
            return encode_number(request.port)
        case Disconnect():
            return b""


def _attributes(attributes: Sequence[Attribute]) -> bytes:
    return encode_number(len(attributes)) + b"".join(map(_attribute, attributes))


def _attribute(attribute: Attribute) -> bytes:
    name, value = encode_string(attribute.name), encode_string(attribute.value)
    # Each with a NUL, as Torque allocates it; readers ignore it.
    n_bytes = _n_bytes(attribute.name) + 1 + _n_bytes(attribute.value) + 1
    resource = b"+0"
    if attribute.resource is not None:
        resource = b"+1" + encode_string(attribute.resource)
        n_bytes += _n_bytes(attribute.resource) + 1
    return encode_number(n_bytes) + name + resource + value + encode_number(attribute.operator)


def _n_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogateescape"))


def encode_reply(reply: Reply[StatusObject]) -> bytes:
    """All bytes of a reply.

    >>> encode_reply(Reply(15064, kind=ReplyKind.TEXT, text="Unknown node "))
    b'+2+25+15064+0+72+13Unknown node '

    Raises:
        ProtocolError: the reply has something that its kind has no place for.
    """
    has = {ReplyKind.TEXT: reply.text, ReplyKind.JOB_IDS: reply.job_ids, ReplyKind.OBJECTS: reply.objects}
    if any(there for kind, there in has.items() if kind is not reply.kind):
        raise ProtocolError(f"a reply of kind {reply.kind.name} that has something else besides")
    head = _HEAD + encode_number(reply.code) + encode_number(reply.auxiliary) + encode_number(reply.kind)
    match reply.kind:
        case ReplyKind.NOTHING:
            return head
        case ReplyKind.JOB_IDS:
            return head + encode_number(len(reply.job_ids)) + b"".join(map(encode_string, reply.job_ids))
        case ReplyKind.OBJECTS:
            return head + encode_number(len(reply.objects)) + b"".join(map(_object, reply.objects))
        case ReplyKind.TEXT:
            return head + encode_string(reply.text)


def _object(each: StatusObject) -> bytes:
    return encode_number(each.type) + encode_string(each.name) + _attributes(each.attributes)
