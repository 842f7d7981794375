"""One client's connection: what its bytes mean to the server, and how long its peer may take.

A session belongs to the loop. It receives when its socket is ready, into the memory that the server has given
to the request; while a request waits for memory, nothing more is read from its connection. How bytes are sent
and received is the business of `transport`; what to do about a message is that of the engine, whose handlers
a session is given by type of message.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import select
import socket
import time
from enum import Enum
from typing import TYPE_CHECKING, Any

from yarn_accel.core.requests.records import ConnectionRecord
from yarn_accel.errors import AuthenticationError, ProtocolError, RemoteProtocolError
from yarn_accel.operations.registry import OPERATIONS
from yarn_accel.pipeline.counters import ConnectionUse
from yarn_accel.pipeline.loop import READ, WRITE
from yarn_accel.pipeline.transport import Carrier, ResponseWriter
from yarn_accel.wire import (
    LARGE_PACKS,
    MEMFD,
    NEED_DATA,
    NONCE_BYTES,
    PACKING,
    PROGRESS,
    USER_TOKENS,
    Closed,
    Failed,
    Goodbye,
    Limits,
    Message,
    Opened,
    PayloadComplete,
    Ping,
    Pong,
    Request,
    ServerConnection,
    UserAccepted,
    UserTokens,
    available_checksums,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from yarn_accel.adapters.credentials import RevocationList
    from yarn_accel.core.requests.records import Failure
    from yarn_accel.pipeline.config import PipelineConfig
    from yarn_accel.pipeline.loop import EventLoop
    from yarn_accel.pipeline.plans import Plan, Work
    from yarn_accel.pipeline.user_storage import UserSession

logger = logging.getLogger(__name__)

_LINGER_S = 1.0
#: So much is received of one connection in one turn of the loop; others want to be served as well.
_TURN_BYTES = 4 * 1024 * 1024
#: Of a request that was refused, a longer payload ends the connection.
_MOST_SKIPPED_BYTES = 64 * 1024 * 1024
#: Payloads of which more is still to come are gathered by the kernel first.
_GATHERED_BYTES = 1024 * 1024
#: How often it is reported that bytes move.
_MOVED_S = 0.1
#: While so many messages wait for the peer to read them, nothing more is read from it.
_MOST_WAITING = 512
#: Bounds of what a refusal says.
_MAX_TEXT, _MAX_CURE = 2000, 500


class _Reading(Enum):
    """Whether a session takes what its peer sends."""

    ON = "on"
    WAITING = "waiting"  # a request waits for memory
    BLOCKED = "blocked"  # too much waits for the peer to read it
    OVER = "over"


class Session:
    """A connection.

    Args:
        carrier: the accepted socket, or TLS over it.
        config: limits and time-outs.
        master: the site's master secret.
        loop: watches the socket.
        handlers: by type of message, who is given the session and the message; `Opened` is when it has proved
            its credential, `PayloadComplete` is of the payload that `receive` asked for, `Closed` is its end.
        moved: called, now and then, when bytes of a large payload or of an answer have moved.
        sent: called with each reply and whether it has left; if not, it never will.
        active: it is among these while its peer, or what it holds, is to be looked at (`check`).
        refusal: code and message to refuse the connection with; None: let it in.
        revoked: credentials that count no longer.

    Attributes:
        record: what the request machine knows of it.
        tenant: who the client is, once it has proved it; the principal where it runs as a job's user.
        user: the job's user, whose storage its requests use; None: they run as the server's own.
        account: the short name of that user; empty: there is none.
        expires_s: when its credential does, Unix seconds.
        plan: the plan of the last request: most clients send many of one kind.
        resolved: what `models.Models` found for the last request with models.
        request: the one whose payload is awaited or arriving.
        payload: its payload, if all of it came with the header.
        work: whose payload that is, from `receive` on.
        has_shared_memory: the client has descriptors of segments.
        unanswered: the numbers of its requests that have no answer yet.
        use: what its requests used that is not added up yet.
        how_ended: ``closed``, ``refused`` or ``broken``.
    """

    tenant = ""
    user: UserSession | None = None
    account = ""
    expires_s = 0.0
    plan: Plan | None = None
    resolved: object = None
    request: Request | None = None
    payload: memoryview | None = None
    work: Work | None = None
    has_shared_memory = False
    how_ended = "closed"
    _key_id = ""
    _credential_tenant = ""
    #: The client has tokens of a job's user, and nothing counts before these.
    _awaits_user = False
    _is_gathering = False
    _is_open = False
    _frame_due_s = 0.0
    _moved_s = 0.0

    def __init__(
        self,
        carrier: Carrier,
        config: PipelineConfig,
        master: bytes,
        loop: EventLoop,
        handlers: Mapping[type, Callable[[Session, Any], None]],
        moved: Callable[[Session], None],
        sent: Callable[[int, bool], None],
        active: set[Session],
        refusal: tuple[str, str] | None,
        revoked: RevocationList,
        has_gpu: bool,
    ) -> None:
        self.record = ConnectionRecord(self)
        self.carrier = carrier
        self._revoked = revoked
        self.unanswered: set[int] = set()
        self.use = ConnectionUse()
        self._config = config
        self._loop = loop
        self._handlers = handlers
        self._report_move = moved
        self._active = active
        self._refusal = refusal
        may_lend = carrier.kind == "unix" and config.max_shared_memory_bytes > 0
        capabilities = [
            PROGRESS,
            PACKING,
            *([LARGE_PACKS] if has_gpu else []),
            *([MEMFD] if may_lend else []),
        ]
        if UserTokens in handlers and carrier.kind != "tcp":
            capabilities.append(USER_TOKENS)
        self._connection = _connection(carrier.kind, config, master, capabilities, revoked)
        self._writer = ResponseWriter(
            carrier,
            self._connection,
            config.stall_timeout_s,
            config.min_bytes_per_s,
            sent,
            self._watch_for_space,
        )
        self._reading = _Reading.ON
        self._events = READ
        self._started_s = self.heard_s = time.monotonic()
        active.add(self)
        loop.watch(carrier.fd, READ, self._ready)

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._reading is _Reading.OVER

    @property
    def is_open(self) -> bool:
        """Whether the client has proved its credential."""
        return self._is_open

    @property
    def is_idle(self) -> bool:
        """Whether it is open and neither end is in the middle of anything."""
        is_quiet = not self._connection.is_mid_frame and not self._writer.n_waiting
        return self._is_open and is_quiet and not self._awaits_user

    @property
    def has_outgoing(self) -> bool:
        """Whether something waits to be sent or is being sent."""
        return self._writer.n_waiting > 0

    @property
    def wants_progress(self) -> bool:
        """Whether every unanswered request is to be reported once per `PROGRESS_INTERVAL_S`."""
        return PROGRESS in self._connection.capabilities

    @property
    def label(self) -> str:
        """Carrier and payload checksum, as ``stats`` shows them."""
        return f"{'memfd' if self.has_shared_memory else self.carrier.kind}/{self._connection.checksum}"

    # To the client

    def send(
        self, message: Message, payload: Sequence[memoryview] = (), reply: int = 0, fd: int = -1
    ) -> None:
        """Send a message as soon as may be; see `ResponseWriter.post`."""
        try:
            self._writer.post(message, payload, reply, fd)
        except OSError as error:
            self._lose(error)
            return
        n_waiting = self._writer.n_waiting
        if n_waiting:
            self._active.add(self)
            if n_waiting > _MOST_WAITING and self._reading is _Reading.ON:
                self._reading = _Reading.BLOCKED
                self._watch()

    def receive(self, work: Work, views: Sequence[memoryview]) -> None:
        """Go on: the payload of the request belongs into `views`."""
        self.work = work
        payload, self.payload = self.payload, None
        if payload is not None:
            _copy(payload, views)
            self.request = None
        elif self._connection.payload_left:
            # Waiting for memory was our doing: the client's time for the payload begins now.
            self._frame_due_s = 0.0
            self._connection.take_payload(views)
        self._go_on()

    def go_on(self, request_id: int) -> None:
        """Go on: the request has no payload that is waited for."""
        if self.request is not None and self.request.id == request_id:
            self.request = None
            self._go_on()

    def skip(self) -> None:
        """Go on: nobody wants the payload of the request."""
        if self.is_over:
            return
        self.payload = self.request = None
        n_bytes = self._connection.payload_left
        if n_bytes > max(self._config.max_request_bytes, _MOST_SKIPPED_BYTES):
            self._break(RemoteProtocolError(f"a payload of {n_bytes} bytes is not waited for"))
            return
        if n_bytes:
            self._frame_due_s = 0.0
            self._connection.skip_payload()
        self._go_on()

    def check(self, now_s: float) -> None:
        """Judge how long the peer takes; give what a quiet connection does not need back."""
        try:
            self._writer.check_pace(now_s)
            if self._reading is _Reading.ON:
                self._check_pace(now_s)
        except OSError as error:
            self._lose(error)
        except ProtocolError as error:
            self._break(error)
        else:
            if self._reading is _Reading.ON:
                self._connection.rest()

    def run_as(self, request_id: int, user: UserSession, account: str) -> None:
        """The tokens are good: every request from now on runs as their owner."""
        self.tenant, self.user, self.account = user.principal, user, account
        self._awaits_user = False
        self._handlers[Opened](self, None)
        self.send(UserAccepted(request_id, user.principal))
        self._go_on()

    def refuse_user(self, request_id: int, failure: Failure) -> None:
        """The tokens are no good: say why, and end the connection."""
        if self.is_over:
            return
        logger.warning("the tokens of tenant %s are refused: %s", self.tenant, failure.message)
        kind, code, message, cure, transient = failure
        self.send(Failed(request_id, kind, code, message[:_MAX_TEXT], cure[:_MAX_CURE], transient))
        self.how_ended = "refused"
        self.disconnect(code, message)

    def disconnect(self, code: str, reason: str) -> None:
        """End the connection, and say why if that can be said."""
        self._say_goodbye(code, reason)

    def close(self) -> None:
        """End the connection now."""
        if self.is_over:
            return
        self._end()
        self.carrier.close()

    # The socket is ready

    def _ready(self, events: int) -> None:
        try:
            if events & WRITE:
                self._writer.flush()
                self._note_move()
                if self._reading is _Reading.BLOCKED and self._writer.n_waiting < _MOST_WAITING // 2:
                    self._reading = _Reading.ON
                    self._watch()
                    self._loop.defer(self._resume)
            if not events:
                self._take_events()
                if self._reading is _Reading.ON:
                    self._receive()
            elif events & ~WRITE:
                self._receive()
        except AuthenticationError as error:
            logger.warning("connection refused: %s", error.message)
            self.how_ended = "refused"
            self._say_goodbye("credential", error.message)
        except ProtocolError as error:
            self._break(error)
        except OSError as error:
            self._lose(error)
        except Exception:
            # Whoever waits for an answer here would wait for ever.
            logger.exception("a connection met a fault of the server")
            self._say_goodbye("internal-error", "the server broke")

    def _resume(self) -> None:
        """Go on with what has been received already, and with the socket."""
        if self._reading is _Reading.ON:
            self._ready(0)

    def _receive(self) -> None:
        if self._reading is not _Reading.ON:
            # Its end is the only news that is waited for in this state.
            self.close()
            return
        connection, carrier = self._connection, self.carrier
        left = _TURN_BYTES
        while left > 0 and self._reading is _Reading.ON:
            view = connection.wanted()
            if len(view) > left:
                view = view[:left]
            try:
                n_bytes = carrier.receive_into(view)
            except BlockingIOError:
                break
            if self._refusal is not None:
                connection.refuse(*self._refusal, retry_after_s=1)
                raise AuthenticationError(self._refusal[1])
            connection.received(n_bytes)
            self._take_events()
            left -= n_bytes
            if n_bytes < len(view) and not carrier.has_received:
                break
        else:
            if carrier.has_received and not self.is_over:
                self._loop.defer(self._resume)
        if not self.is_over:
            self.heard_s = time.monotonic()
            self._active.add(self)
            if not self._is_open:
                self._send_handshake()
            self._gather()

    def _gather(self) -> None:
        """Wake for no less than a good part of a large payload."""
        n_bytes = self._connection.payload_left
        if n_bytes >= _GATHERED_BYTES:
            self._is_gathering = True
            self.carrier.expect(n_bytes)
            self._note_move()
        elif self._is_gathering:
            self._is_gathering = False
            self.carrier.expect(1)

    def _note_move(self) -> None:
        now_s = time.monotonic()
        if now_s - self._moved_s >= _MOVED_S and not self.is_over:
            self._moved_s = now_s
            self._report_move(self)

    def _take_events(self) -> None:
        connection = self._connection
        while self._reading is _Reading.ON:
            event = connection.next_event()
            if event is NEED_DATA:
                return
            kind = type(event)
            if kind is Request:
                self._take_request(event)  # type: ignore[arg-type]
            elif kind is PayloadComplete:
                self._frame_due_s = 0.0
                if self.request is not None:
                    self._handlers[kind](self, event)
            else:
                self._take_other(kind, event)

    def _take_request(self, request: Request) -> None:
        if self.expires_s <= time.time():
            raise AuthenticationError(f"the credential of tenant {self.tenant} has expired")
        if self._revoked.now().covers(self._credential_tenant, self._key_id):
            raise AuthenticationError(f"the credential of tenant {self._credential_tenant} was revoked")
        if self._awaits_user:
            raise RemoteProtocolError("a request came before the tokens of its user")
        connection = self._connection
        self.request = request
        self.payload = connection.arrived_payload() if connection.payload_left else None
        self._reading = _Reading.WAITING
        self._handlers[Request](self, request)
        if self._reading is _Reading.WAITING:
            self._watch()

    def _take_other(self, kind: type, event: Any) -> None:
        if kind is Ping:
            self.send(Pong(event.token))
        elif kind is Opened:
            self._open(event)
        elif kind is Closed:
            self.close()
        elif kind is Goodbye:
            raise ConnectionResetError(f"the client says goodbye: {event.message}")
        elif self._awaits_user or kind is UserTokens:
            self._take_tokens(kind, event)
        elif kind in self._handlers:
            self._handlers[kind](self, event)

    def _take_tokens(self, kind: type, event: Any) -> None:
        """Have the tokens of a user proved, which are the first message of who has them and come once."""
        if kind is not UserTokens or not self._awaits_user:
            raise RemoteProtocolError(f"{kind.__name__} is not accepted now")
        self._reading = _Reading.WAITING
        self._handlers[UserTokens](self, event)
        if self._reading is _Reading.WAITING:
            self._watch()

    def _open(self, event: Opened) -> None:
        self._send_handshake()
        credential = self._connection.credential
        assert credential is not None
        self.tenant, self.expires_s = credential.tenant, credential.expires_s
        self._credential_tenant, self._key_id = credential.tenant, credential.key_id
        self._is_open = self._writer.is_open = True
        self._awaits_user = USER_TOKENS in self._connection.capabilities
        if not self._awaits_user:
            self._handlers[Opened](self, event)

    def _go_on(self) -> None:
        """The request is seen to: read on; at once if this is still the turn in which it came."""
        if self._reading is not _Reading.WAITING:
            return
        self._reading = _Reading.ON
        if not self._events & select.EPOLLIN:
            self._watch()
            self._loop.defer(self._resume)

    # Watching

    def _watch_for_space(self, is_wanted: bool) -> None:
        if is_wanted != bool(self._events & WRITE):
            self._watch()

    def _watch(self) -> None:
        """Watch the socket for what is wanted of it now."""
        if self.is_over:
            return
        events = READ if self._reading is _Reading.ON else select.EPOLLRDHUP
        if self._writer.n_waiting:
            events |= WRITE
        if events != self._events:
            self._events = events
            self._loop.change(self.carrier.fd, events)

    def _check_pace(self, now_s: float) -> None:
        """End a connection whose peer stays in the middle of a frame or handshake for too long."""
        config = self._config
        if not self._is_open or self._awaits_user:
            if now_s > self._started_s + config.handshake_timeout_s:
                raise RemoteProtocolError("the credential was not proved in time")
        elif not self._connection.is_mid_frame:
            self._frame_due_s = 0.0
        elif not self._frame_due_s:
            n_bytes = self._connection.payload_left
            self._frame_due_s = now_s + config.stall_timeout_s + n_bytes / config.min_bytes_per_s
        elif now_s > self._frame_due_s or now_s > self.heard_s + config.stall_timeout_s:
            raise RemoteProtocolError("the peer is too slow: a frame was begun and not finished in time")

    # Its end

    def _break(self, error: ProtocolError) -> None:
        logger.warning("connection broken: %s", error.message)
        self.how_ended = "broken"
        self._say_goodbye("protocol-error", error.message)

    def _lose(self, error: OSError) -> None:
        logger.info("connection lost: %s", error)
        self.close()

    def _send_handshake(self) -> None:
        for part in self._connection.data_to_send():
            with contextlib.suppress(OSError):
                self.carrier.send([part])

    def _say_goodbye(self, code: str, message: str) -> None:
        """Tell the peer what it did wrong, if it still listens, and end the connection."""
        if self.is_over:
            return
        self._send_handshake()
        was_said = self._writer.goodbye(code, message)
        self._end()
        if self._is_open and not was_said:
            self.carrier.close()
            return
        _Lingering(self.carrier, self._loop)

    def _end(self) -> None:
        self._reading = _Reading.OVER
        self._active.discard(self)
        self._loop.forget(self.carrier.fd)
        self._writer.close()
        self.payload = self.request = None
        self._handlers[Closed](self, None)


class _Lingering:
    """A connection whose last words are on their way: closing with unread bytes would discard them."""

    def __init__(self, carrier: Carrier, loop: EventLoop) -> None:
        self._carrier = carrier
        self._loop = loop
        self._scratch = memoryview(bytearray(65536))
        try:
            carrier.flush()
            carrier.shutdown(socket.SHUT_WR)
            loop.watch(carrier.fd, READ, self._ready)
        except OSError:
            carrier.close()
            return
        self._timer = loop.call_at(time.monotonic() + _LINGER_S, self._close)
        loop.at_close.add(self._close)

    def _ready(self, _: int) -> None:
        try:
            if self._carrier.receive_into(self._scratch):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._close()

    def _close(self) -> None:
        self._timer.cancel()
        self._loop.at_close.discard(self._close)
        self._loop.forget(self._carrier.fd)
        self._carrier.close()


def _copy(payload: memoryview, views: Sequence[memoryview]) -> None:
    if len(views) == 1:
        views[0][:] = payload
        return
    start = 0
    for view in views:
        end = start + len(view)
        view[:] = payload[start:end]
        start = end


def _connection(
    kind: str, config: PipelineConfig, master: bytes, capabilities: Sequence[str], revoked: RevocationList
) -> ServerConnection:
    return ServerConnection(
        master,
        secrets.token_bytes(NONCE_BYTES),
        time.time(),
        config.name,
        _checksums(kind, config),
        config.max_request_bytes,
        config.max_in_flight,
        Limits(payload_bytes=1 << 40),
        max_lent_bytes=config.max_shared_memory_bytes if MEMFD in capabilities else 0,
        capabilities=capabilities,
        packable=[name for name, operation in OPERATIONS.items() if operation.takes_stacks],
        is_revoked=lambda credential: revoked.now().covers(credential.tenant, credential.key_id),
    )


def _checksums(kind: str, config: PipelineConfig) -> tuple[str, ...]:
    """The checksums that a client may choose; none only where nothing can be damaged on the way."""
    allowed = [name for name in config.checksums if name == "none" or name in available_checksums()]
    if kind != "tcp" and "none" not in allowed:
        allowed.append("none")
    return tuple(allowed)
