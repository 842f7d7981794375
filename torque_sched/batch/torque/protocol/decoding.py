"""Bytes to messages, whatever pieces they arrive in.

A message is read field by field by a generator that waits where bytes are missing, so that nothing but a
single attribute is ever read twice. Lengths, counts and the whole message are bounded before memory is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from torque_sched.batch.torque.protocol.dis import Garbled, Incomplete, read_number, read_string
from torque_sched.batch.torque.protocol.messages import (
    PROTOCOL_TYPE,
    PROTOCOL_VERSION,
    Attribute,
    AuthenticateUser,
    DeleteJob,
    Disconnect,
    ModifyJob,
    Reply,
    ReplyKind,
    Request,
    RequestType,
    RunJob,
    SelectJobs,
    SelectStatus,
    Status,
    StatusObject,
)
from torque_sched.errors import ForeignProtocolError, ProtocolError, UnknownRequestError

M = TypeVar("M")
T = TypeVar("T")
U = TypeVar("U")
Reading = Generator[int, None, M]
"""Yields the number of bytes that are needed from where it reads; returns what it read."""


@dataclass(frozen=True, slots=True)
class MessageBounds:
    """What a message may have at most.

    Attributes:
        message_bytes: in all.
        string_bytes: in one string.
        n_attributes: of one object, or in one list of a request.
        n_objects: in one reply; job ids as well.
    """

    message_bytes: int
    string_bytes: int
    n_attributes: int = 4096
    n_objects: int = 1_000_000


REPLY_BOUNDS = MessageBounds(message_bytes=512 << 20, string_bytes=8 << 20)
"""As much as is taken of the output of a command."""
REQUEST_BOUNDS = MessageBounds(message_bytes=16 << 20, string_bytes=1 << 20)


@dataclass(slots=True)
class KnownObjects(Generic[T]):
    """What the reply before was made of: each object's bytes, and what was built of it, in their order.

    An object that has the same bytes at the same place is stepped over and its value used again. A server
    lists jobs in the order of their ids, so places shift only where one came or went.
    """

    entries: list[tuple[bytes, str, T]] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)

    def clear(self) -> None:
        """Build every object anew next time."""
        self.entries, self.places = [], {}

    def replace(self, entries: list[tuple[bytes, str, T]]) -> None:
        """Keep these; the reply is complete."""
        self.entries = entries
        self.places = {name: place for place, (_, name, _) in enumerate(entries)}


class _Input:
    """The bytes that arrived and are not read yet, and how to read them or wait."""

    def __init__(self, bounds: MessageBounds) -> None:
        self.data = bytearray()
        self.at = 0
        self.place = ""
        self.bounds = bounds
        self._began = 0
        self._kept: int | None = None

    def receive(self, data: bytes) -> None:
        done = self.at if self._kept is None else self._kept
        del self.data[:done]
        self._began -= done
        self.at -= done
        self._kept = None if self._kept is None else 0
        self.data += data

    def keep(self) -> None:
        """Keep the bytes from here on even where they are read."""
        self._kept = self.at

    def release(self) -> int:
        """Where the kept bytes begin; no longer kept."""
        start, self._kept = self._kept, None
        assert start is not None
        return start

    def begin(self) -> None:
        self._began = self.at
        self.place = "header"

    def check_size(self) -> None:
        if self.at - self._began > self.bounds.message_bytes:
            raise Garbled(f"a message of more than {self.bounds.message_bytes} bytes")

    def error(self, kind: Callable[..., ProtocolError], trouble: str, *args: int) -> ProtocolError:
        where = f"byte {self.at - self._began}, {self.place}"
        return kind(f"{where}: {trouble}", *args, cure="close the connection; a new one may work")

    def number(self, place: str) -> Reading[int]:
        self.place = place
        while True:
            try:
                value, self.at = read_number(self.data, self.at)
                return value
            except Incomplete as more:
                yield more.end - self.at

    def count(self, place: str, most: int) -> Reading[int]:
        value = yield from self.number(place)
        if not 0 <= value <= most:
            raise Garbled(f"{value}, more than {most}")
        return value

    def string(self, place: str) -> Reading[str]:
        self.place = place
        while True:
            try:
                value, self.at = read_string(self.data, self.at, self.bounds.string_bytes)
                return value
            except Incomplete as more:
                yield more.end - self.at

    def attributes(self, place: str) -> Reading[tuple[Attribute, ...]]:
        n = yield from self.count(f"{place}: number of attributes", self.bounds.n_attributes)
        found: list[Attribute] = []
        longest = self.bounds.string_bytes
        while len(found) < n:
            self.place = place
            try:
                attribute, self.at = _read_attribute(self.data, self.at, longest)
                found.append(attribute)
            except Incomplete as more:
                self.check_size()
                yield more.end - self.at
        self.check_size()
        return tuple(found)

    def strings(self, place: str) -> Reading[tuple[str, ...]]:
        n = yield from self.count(f"number of {place}", self.bounds.n_objects)
        found: list[str] = []
        while len(found) < n:
            found.append((yield from self.string(place)))
            self.check_size()
        return tuple(found)


def _read_name(data: bytearray, at: int, longest: int) -> tuple[str, str | None, int]:
    """The name and the resource of an attribute, and where they end."""
    name, at = read_string(data, at, longest)
    has_resource, at = read_number(data, at)
    resource = None
    if has_resource == 1:
        resource, at = read_string(data, at, longest)
    elif has_resource:
        raise Garbled(f"attribute {name[:60]}: {has_resource} where 0 or 1 belongs")
    return name, resource, at


def _read_attribute(data: bytearray, at: int, longest: int) -> tuple[Attribute, int]:
    """One attribute and where it ends; its announced length is not needed."""
    _, at = read_number(data, at)
    name, resource, at = _read_name(data, at, longest)
    value, at = read_string(data, at, longest)
    operator, at = read_number(data, at)
    return Attribute(name, resource, value, operator), at


class _Decoder(Generic[M]):
    """One message after the other out of one stream of bytes.

    Args:
        bounds: what a message may have at most.
    """

    def __init__(self, bounds: MessageBounds) -> None:
        self._input = _Input(bounds)
        self._reading: Reading[M] | None = None
        self._needed = 1
        self._error: ProtocolError | None = None

    @property
    def is_between_messages(self) -> bool:
        """Whether no byte is there that belongs to an unfinished message."""
        return self._reading is None and self._input.at == len(self._input.data)

    def receive(self, data: bytes) -> None:
        """Take what arrived, any piece of it."""
        self._input.receive(data)

    def next(self) -> M | None:
        """The next complete message; None: more bytes are needed.

        Raises:
            ProtocolError: there is none, and none will come: the connection has to be closed. The same error
                comes each time.
        """
        if self._error is not None:
            raise self._error
        source = self._input
        if len(source.data) - source.at < self._needed:
            return None
        if self._reading is None:
            source.begin()
            self._reading = self._message()
        try:
            self._needed = next(self._reading)
        except StopIteration as done:
            self._reading, self._needed = None, 1
            message: M = done.value
            return message
        except Garbled as garbled:
            self._error = source.error(ProtocolError, str(garbled))
        except ProtocolError as error:
            self._error = error
        if self._error is not None:
            self._reading = None
            raise self._error
        return None

    def discard(self) -> int:
        """Forget all bytes that are there, and an error; returns how many bytes no message was made of."""
        n_bytes = len(self._input.data) - self._input.at
        self._input = _Input(self._input.bounds)
        self._reading, self._needed, self._error = None, 1, None
        return n_bytes

    def _message(self) -> Reading[M]:
        raise NotImplementedError

    def _head(self) -> Reading[None]:
        source = self._input
        protocol = yield from source.number("protocol type")
        if protocol != PROTOCOL_TYPE:
            raise source.error(ForeignProtocolError, f"{protocol} is not the batch protocol")
        version = yield from source.number("protocol version")
        if version != PROTOCOL_VERSION:
            raise Garbled(f"version {version} is not supported")


class RequestDecoder(_Decoder[Request]):
    """Requests out of the bytes a client sends.

    >>> decoder = RequestDecoder()
    >>> decoder.receive(b"+2+22+592+11torque"), decoder.next()
    (None, None)
    >>> decoder.receive(b"sched"), decoder.next()
    (None, Disconnect(user='torquesched'))
    """

    def __init__(self, bounds: MessageBounds = REQUEST_BOUNDS) -> None:
        super().__init__(bounds)

    def _message(self) -> Reading[Request]:
        source = self._input
        yield from self._head()
        number = yield from source.number("request number")
        if number not in _REQUESTS and number != RequestType.DISCONNECT:
            raise source.error(UnknownRequestError, f"request {number} is not supported", number)
        user = yield from source.string("user")
        if number == RequestType.DISCONNECT:
            return Disconnect(user)
        request = yield from _REQUESTS[number](source, RequestType(number), user)
        has_extension = yield from source.count("whether an extension follows", 1)
        if not has_extension:
            return request
        return replace(request, extension=(yield from source.string("extension")))


_Extensible = Status | SelectStatus | SelectJobs | RunJob | ModifyJob | DeleteJob | AuthenticateUser


def _status(source: _Input, kind: RequestType, user: str) -> Reading[Status]:
    name = yield from source.string("object")
    return Status(kind, user, name, (yield from source.attributes("wanted attributes")))


def _select_status(source: _Input, _: RequestType, user: str) -> Reading[SelectStatus]:
    criteria = yield from source.attributes("criteria")
    return SelectStatus(user, criteria, (yield from source.attributes("wanted attributes")))


def _select_jobs(source: _Input, _: RequestType, user: str) -> Reading[SelectJobs]:
    return SelectJobs(user, (yield from source.attributes("criteria")))


def _run_job(source: _Input, kind: RequestType, user: str) -> Reading[RunJob]:
    job = yield from source.string("job")
    destination = yield from source.string("destination")
    yield from source.number("reservation")
    return RunJob(user, job, destination, kind is RequestType.ASYNC_RUN_JOB)


def _modify_job(source: _Input, _: RequestType, user: str) -> Reading[ModifyJob]:
    job = yield from _managed_job(source, _SET)
    return ModifyJob(user, job, (yield from source.attributes("attributes")))


def _delete_job(source: _Input, _: RequestType, user: str) -> Reading[DeleteJob]:
    job = yield from _managed_job(source, _DELETE)
    return DeleteJob(user, job, (yield from source.attributes("attributes")))


_DELETE, _SET, _JOB = 1, 2, 2


def _managed_job(source: _Input, command: int) -> Reading[str]:
    asked = yield from source.number("command")
    if asked != command:
        raise Garbled(f"command {asked} is not supported, only {command}")
    managed = yield from source.number("object type")
    if managed != _JOB:
        raise Garbled(f"object type {managed} is not supported, only {_JOB} (job)")
    return (yield from source.string("job"))


def _authenticate_user(source: _Input, _: RequestType, user: str) -> Reading[AuthenticateUser]:
    return AuthenticateUser(user, (yield from source.count("port", 65535)))


_REQUESTS: dict[int, Callable[[_Input, RequestType, str], Reading[_Extensible]]] = {
    RequestType.DELETE_JOB: _delete_job,
    RequestType.MODIFY_JOB: _modify_job,
    RequestType.RUN_JOB: _run_job,
    RequestType.SELECT_JOBS: _select_jobs,
    RequestType.STATUS_JOB: _status,
    RequestType.STATUS_QUEUE: _status,
    RequestType.STATUS_SERVER: _status,
    RequestType.ASYNC_RUN_JOB: _run_job,
    RequestType.AUTHENTICATE_USER: _authenticate_user,
    RequestType.STATUS_NODE: _status,
    RequestType.SELECT_STATUS: _select_status,
}

_MOST_NAMES = 4096
_OTHER_KINDS = {2: "Queue", 3: "RdytoCom", 4: "Commit", 8: "Locate", 9: "RescQuery"}


class ReplyDecoder(_Decoder[Reply[T]], Generic[T]):
    """Replies out of the bytes a server sends.

    Args:
        build: makes the value of each status object, at once, so that objects need not be kept; it raises
            nothing. `StatusObject` stands for itself with :func:`as_they_are`.
        known: as the reply before left it; an object with unchanged bytes is not built again. Use one for
            each ``build`` and kind of request. None: every object is built.
        bounds: what a message may have at most.
    """

    def __init__(
        self,
        build: Callable[[StatusObject], T],
        known: KnownObjects[T] | None = None,
        bounds: MessageBounds = REPLY_BOUNDS,
    ) -> None:
        super().__init__(bounds)
        self._build = build
        self._known = known
        self._names = _Names()

    def _message(self) -> Reading[Reply[T]]:
        source = self._input
        yield from self._head()
        code = yield from source.number("code")
        auxiliary = yield from source.number("auxiliary code")
        number = yield from source.number("reply kind")
        if number in _OTHER_KINDS:
            raise Garbled(f"kind {number} ({_OTHER_KINDS[number]}) answers nothing that was asked")
        if number not in _KINDS:
            raise Garbled(f"kind {number} is unknown")
        kind = ReplyKind(number)
        if kind is ReplyKind.TEXT:
            return Reply(code, auxiliary, kind, text=(yield from source.string("text")))
        if kind is ReplyKind.JOB_IDS:
            return Reply(code, auxiliary, kind, job_ids=(yield from source.strings("job ids")))
        if kind is ReplyKind.OBJECTS:
            return Reply(code, auxiliary, kind, objects=(yield from self._objects()))
        return Reply(code, auxiliary)

    def _objects(self) -> Reading[tuple[T, ...]]:
        source, known = self._input, self._known
        n = yield from source.count("number of objects", source.bounds.n_objects)
        entries: list[tuple[bytes, str, T]] = []
        values: list[T] = []
        expected = 0
        for index in range(n):
            if known is not None and expected < len(known.entries):
                entry = known.entries[expected]
                if source.data.startswith(entry[0], source.at):
                    source.at += len(entry[0])
                    source.check_size()
                    expected += 1
                    entries.append(entry)
                    values.append(entry[2])
                    continue
            name, value, raw = yield from self._object(index)
            values.append(value)
            if known is not None:
                entries.append((raw, name, value))
                expected = known.places.get(name, expected - 1) + 1
        if known is not None:
            known.replace(entries)
        return tuple(values)

    def _object(self, index: int) -> Reading[tuple[str, T, bytes]]:
        source = self._input
        start = source.at
        try:
            found, source.at = _read_object(source.data, start, source.bounds, self._names)
        except (Incomplete, Garbled):
            # Piece by piece, and with the place of what is garbled.
            source.keep()
            found = yield from self._object_in_pieces(index)
            start = source.release()
        source.check_size()
        raw = b"" if self._known is None else bytes(source.data[start : source.at])
        return found.name, self._build(found), raw

    def _object_in_pieces(self, index: int) -> Reading[StatusObject]:
        source = self._input
        kind = yield from source.number(f"object {index}: type")
        name = yield from source.string(f"object {index}: name")
        return StatusObject(kind, name, (yield from source.attributes(f"object {index} ({name[:60]})")))


class _Name:
    """The name of an attribute as it stands in a reply, and which one came behind it last."""

    __slots__ = ("data", "following", "n_bytes", "parts")

    def __init__(self, data: bytes, parts: tuple[str, str | None]) -> None:
        self.data = data
        self.n_bytes = len(data)
        self.parts = parts
        self.following: _Name | None = None


class _Names:
    """The names in a reply: most objects have the same in the same order, so few have to be decoded."""

    def __init__(self) -> None:
        self.before_all = _Name(b"", ("", None))
        self._known: dict[bytes, _Name] = {}

    def read(self, data: bytearray, at: int, longest: int) -> _Name:
        """The name that begins at ``at``, decoded."""
        name, resource, end = _read_name(data, at, longest)
        if len(self._known) > _MOST_NAMES:
            self._known.clear()
        raw = bytes(data[at:end])
        return self._known.setdefault(raw, _Name(raw, (name, resource)))


def _read_object(data: bytearray, at: int, bounds: MessageBounds, names: _Names) -> tuple[StatusObject, int]:
    """The object that begins at ``at``, where all of it is there, and where it ends."""
    longest = bounds.string_bytes
    kind, at = read_number(data, at)
    own, at = read_string(data, at, longest)
    n, at = read_number(data, at)
    if not 0 <= n <= bounds.n_attributes:
        raise Garbled(f"{n} attributes")
    attributes = []
    name = names.before_all
    for _ in range(n):
        _, at = read_number(data, at)
        expected = name.following
        if expected is None or not data.startswith(expected.data, at):
            expected = name.following = names.read(data, at, longest)
        name = expected
        value, at = read_string(data, at + name.n_bytes, longest)
        operator, at = read_number(data, at)
        attributes.append(Attribute(*name.parts, value, operator))
    return StatusObject(kind, own, tuple(attributes)), at


_KINDS = frozenset(ReplyKind)


def as_they_are(each: StatusObject) -> StatusObject:
    """For a `ReplyDecoder` whose replies keep their status objects."""
    return each
