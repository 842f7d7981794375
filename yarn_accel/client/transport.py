"""An open, authenticated connection to one server: the socket, and the protocol object on top.

Messages go out, events come in.  The link is the best that this node can have to the server: its Unix socket,
TLS or TCP.  A plain socket stays in blocking mode and says "do not wait" per call, so the ordinary small
request is one system call out and one in, and never a poll.  A large payload goes out while whatever the
server says meanwhile comes in, so two ends that both have much to say never wait for each other; where a
checksum travels behind the payload, it grows piece by piece just before each piece is sent, while the piece
is in the processor's cache.

How a lost server is noticed.  A server promises progress on unanswered requests once per second (the
capability ``progress``).  One that is silent for some seconds and leaves a ping unanswered hangs.  Time in
which this process did not run, or did not look, is nobody's silence (`SilenceMeter`).  A server that computes
sends nothing for long, and one that is short of memory reads nothing; but the kernel of its node still
acknowledges what arrives, however busy the node is, and answers one keep-alive probe per second while nothing
is under way.  A node that acknowledges nothing of what it should for some seconds is lost.  TCP alone takes a
quarter of an hour to find that out.  `TCP_USER_TIMEOUT` does not serve: it also ends connections to servers
that acknowledge but have no space.  Only Linux reports the figures; elsewhere no node is ever found lost.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import os
import secrets
import select
import socket
import struct
import sys
import time
from typing import TYPE_CHECKING, Callable, Deque, Iterator, List, Optional, Sequence, Tuple, Type

from yarn_accel.client.binding import Endpoint
from yarn_accel.client.signal_errors import reraise_from_signal
from yarn_accel.errors import AccelError, AuthenticationError, RemoteProtocolError, UnavailableError
from yarn_accel.users import peer_uid
from yarn_accel.wire import (
    LARGE_PACKS,
    MEMFD,
    NEED_DATA,
    NONCE_BYTES,
    PACKING,
    PROGRESS,
    USER_TOKENS,
    Buffer,
    Checksum,
    ClientConnection,
    Credential,
    Event,
    Failed,
    Limits,
    Message,
    Opened,
    Ping,
    UserAccepted,
    UserTokens,
    available_checksums,
)

if TYPE_CHECKING:
    import ssl

    from yarn_accel.client.job_user import JobUser

#: Every carrier, best first; ``memfd`` is the Unix socket with shared memory for what is large.
CARRIERS = ("memfd", "unix", "tls", "tcp")
#: How long a node may leave everything unacknowledged before it counts as lost, unless it is set otherwise.
LOST_AFTER_S = 3.0
#: Silence of a server that promised progress once per second, and an unanswered ping, after which it hangs.
SILENT_AFTER_S = 3.0
#: Longest silence of a server that promises nothing, while an answer is due.
TIMEOUT_S = 60.0
#: Limit for connecting and the handshake together.
CONNECT_TIMEOUT_S = 5.0
#: Who waits looks so often whether the node at the other end is still there.
LOOK_S = 0.25
#: The token of a ping that only asks for a sign of life.
PROBE_TOKEN = 0
#: Limit for a server to log in as the job's user.
_LOGIN_TIMEOUT_S = 30.0
#: The number of the message that hands tokens over, before any request has one.
_TOKENS_ID = 0
#: So many probes, or copies of the same bytes, must be unanswered: one alone may be lost on a bad line.
UNANSWERED_PROBES = 2
_PROBE_EVERY_S = 1
#: A longer gap between two looks means that this process stood still itself; no more of it counts.
_LONGEST_GAP_S = 0.5
_CAN_TELL = sys.platform.startswith("linux")
#: ``struct tcp_info`` to tcpi_last_ack_recv: eight bytes, then whole numbers of four.
_TCP_INFO = struct.Struct("8B13I")
_RETRANSMITS, _PROBES = 2, 3
_UNACKED, _LAST_DATA, _LAST_ACK = 8 + 4, 8 + 11, 8 + 12
#: Payloads longer than this leave in pieces of `_PIECE_BYTES`, each added to the checksum just before; for
#: shorter ones the additional system calls cost more than the cache gives back.
_WHOLE_BYTES = 8 * 1024 * 1024
_PIECE_BYTES = 1024 * 1024
#: Twice as fast as the usual 208 KiB for large payloads (the kernel may allow less); TCP finds its own size.
_UNIX_BUFFER_BYTES = 4 * 1024 * 1024
_TLS_PIECE_BYTES = 256 * 1024
_TIMEVAL = struct.Struct("ll")
_ANCILLARY_BYTES = socket.CMSG_SPACE(4 * 4)
# As plain numbers: members of an enumeration take a microsecond for each `|` and `&`.
_DONTWAIT, _CLOEXEC, _TRUNCATED = map(int, (socket.MSG_DONTWAIT, socket.MSG_CMSG_CLOEXEC, socket.MSG_CTRUNC))
_START = "start it there with `yarn-accel pipeline serve`"


class Transport:
    """A connection, which is open and authenticated when this object exists.

    Args:
        endpoint: where the server listens.
        credential: what this side proves itself with.
        connect_timeout_s: limit for connecting and the handshake together.
        timeout_s: longest silence while something is expected.
        lost_after_s: after so long a node that acknowledges nothing any more is lost.
        silent_after_s: longest silence of a server that promises progress, or that is doubted; None: as
            `timeout_s`.
        carriers: which of `CARRIERS` may be used.
        checksums: payload checksums accepted over plain TCP, best first; None: all this Python can compute.
            The other carriers need none.
        max_payload_bytes: largest answer that will be received.
        tls: how to speak TLS; with it, plain TCP is not used.
        job_user: whose tokens the server gets if it is one that the job knows; None: nobody's.

    Attributes:
        where: name and address of the server, for messages to people.
        connection: the protocol object.
        carrier: how the bytes travel, one of `CARRIERS`.
        principal: the user that the server reads and writes as; empty: its own.
        next_event: takes the next event of what has arrived so far, without waiting; `NEED_DATA` when nothing
            complete has.
        fileno: the descriptor to wait for, for receiving and, with `has_outgoing`, for sending.

    Raises:
        UnavailableError: nobody there, or refused for now.
        AuthenticationError: one side could not prove the credential.
        RemoteProtocolError: something else answers there, or another version.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        credential: Credential,
        *,
        connect_timeout_s: float,
        timeout_s: float,
        carriers: Sequence[str] = CARRIERS,
        checksums: Optional[Sequence[str]] = None,
        max_payload_bytes: int,
        tls: Optional[ssl.SSLContext] = None,
        lost_after_s: float = LOST_AFTER_S,
        silent_after_s: Optional[float] = None,
        job_user: Optional[JobUser] = None,
    ) -> None:
        address = "{}:{}".format(endpoint.host, endpoint.port) if endpoint.port else endpoint.unix_path
        self.where = "{} ({})".format(endpoint.name, address)
        self._lost_after_s = lost_after_s
        self._doubted_s = timeout_s if silent_after_s is None else min(silent_after_s, timeout_s)
        self._look_s = min(LOOK_S, timeout_s)
        self._longest_silence_s = timeout_s
        self._silence = SilenceMeter()
        self._is_judged = self._is_probed = False
        self._held: List[Buffer] = []
        self._sending: List[Buffer] = []
        self._to_send: Deque[Iterator[List[Buffer]]] = collections.deque()
        deadline_s = time.monotonic() + connect_timeout_s
        self.principal = ""
        self._link = _open_link(endpoint, connect_timeout_s, lost_after_s, carriers, tls, job_user)
        try:
            self.fileno = self._link.fileno
            self._link.set_timeout(connect_timeout_s)
            offers = _offered(self._link, checksums), Limits(payload_bytes=max_payload_bytes)
            capabilities = _capabilities(self._link, carriers, job_user)
            self.connection = ClientConnection(
                credential, secrets.token_bytes(NONCE_BYTES), *offers, capabilities
            )
            self._may_carry_descriptors = False
            self._prove(deadline_s)
            if USER_TOKENS in self.connection.capabilities and job_user is not None:
                self._hand_over(job_user)
            self._link.set_timeout(self._look_s)
            self.next_event: Callable[[], Event] = self.connection.next_event
            self._may_carry_descriptors = MEMFD in self.connection.capabilities
            self.carrier = "memfd" if self._may_carry_descriptors else self._link.carrier
            self._is_checked = self.connection.checksum != "none"
            if silent_after_s is not None and PROGRESS in self.connection.capabilities:
                self.doubt()
        except BaseException:
            # Left to the garbage collector, a socket takes what a signal handler raises meanwhile: CPython's
            # finalizer of sockets drops it.
            self._link.close()
            raise

    @property
    def has_outgoing(self) -> bool:
        """Whether something handed to `send` has not left yet; `pump` then goes on with it."""
        return bool(self._sending or self._to_send)

    def send_later(self, message: Message) -> None:
        """Send a message without payload together with the next one."""
        self._held += self.connection.send(message)

    def send(
        self, message: Message, payload: Sequence[Buffer] = (), n_bytes: int = 0, is_alone: bool = False
    ) -> None:
        """Send a message, or as much of it as goes without waiting.

        Args:
            payload: flat buffers; they must stay unchanged until they have left.
            n_bytes: how long the payload is.
            is_alone: nothing is to be expected from the server before this has arrived there, so all of it
                may be sent in one go.

        Raises:
            LocalProtocolError: the message cannot be said; nothing was sent.
            UnavailableError: the server vanished.
        """
        if n_bytes > _WHOLE_BYTES and self._is_checked:
            head, trailer = self.connection.send_head(message)
            self._to_send.append(self._pieces([*self._held, head], payload, trailer))
            self._held = []
        else:
            parts = self._encoded(message, payload)
            if not self._sending and not self._to_send:
                self._sending = parts
            else:
                self._to_send.append(iter((parts,)))
        while True:
            try:
                while self._send_some(is_alone):
                    pass
                return
            except BlockingIOError as error:
                reraise_from_signal(error)
                self.check()
            except OSError as error:
                reraise_from_signal(error)
                raise self._lost(error) from None

    def take_descriptor(self) -> int:
        """The file descriptor that came first, now the caller's to close.

        Raises:
            RemoteProtocolError: none came.
        """
        if not self._link.descriptors:
            raise RemoteProtocolError("a segment was granted without its descriptor")
        return self._link.descriptors.popleft()

    def pump(self) -> None:
        """Receive something, sending on meanwhile what has not left; waits until one of them is possible.

        Raises:
            UnavailableError: the server vanished, or was silent for too long.
        """
        while not self.pump_briefly():
            pass

    def pump_briefly(self) -> bool:
        """As `pump`, but waits `LOOK_S` at most; whether anything moved."""
        try:
            if not self._sending and not self._to_send:
                self._receive(is_blocking=True)
            else:
                self._move_both_ways()
            return True
        except BlockingIOError as error:
            reraise_from_signal(error)
            self.check()
            return False
        except OSError as error:
            reraise_from_signal(error)
            raise self._lost(error) from None

    def pump_now(self) -> bool:
        """As `pump`, but without waiting; whether anything moved.

        Raises:
            UnavailableError: the server vanished.
        """
        has_moved = False
        try:
            while self._send_some(is_blocking=False):
                has_moved = True
            if has_moved and not self._is_probed:
                self._silence.restart(time.monotonic())
            self._receive(is_blocking=False)
        except BlockingIOError as error:
            reraise_from_signal(error)
            return has_moved
        except OSError as error:
            reraise_from_signal(error)
            raise self._lost(error) from None
        return True

    def expect_answer(self) -> None:
        """From now on the server owes an answer."""
        self._silence.restart(time.monotonic())

    def doubt(self) -> None:
        """Take the server for hung after `silent_after_s` of silence even if it promises no progress."""
        if not self._is_judged:
            self._is_judged = True
            self._longest_silence_s = self._doubted_s
            self._silence.restart(time.monotonic())

    def check(self) -> None:
        """Look whether the server may still be waited for; it owes an answer, and no bytes are here.

        A server that promises progress, or is doubted, is pinged halfway to its longest silence.

        Raises:
            UnavailableError: it was silent for too long, or its node is off the network.
        """
        silent_s = self._silence.look(time.monotonic())
        if silent_s >= self._longest_silence_s:
            raise self._lost(BlockingIOError())
        if self._is_judged and silent_s >= self._longest_silence_s / 2 and not self._is_probed:
            self._is_probed = True
            self._to_send.append(iter((self._encoded(Ping(PROBE_TOKEN)),)))
        unacknowledged_s = self._link.unacknowledged_s()
        if unacknowledged_s >= self._lost_after_s:
            raise UnavailableError(
                "server {} is lost: its node acknowledged nothing for {:.1f} s".format(
                    self.where, unacknowledged_s
                )
            )

    def close(self) -> None:
        """Close the socket; harmless when closed already."""
        self._sending = []
        self._to_send.clear()
        self._link.close()

    def _move_both_ways(self) -> None:
        has_moved = self._send_some(is_blocking=False)
        try:
            self._receive(is_blocking=False)
        except BlockingIOError as error:
            reraise_from_signal(error)
            if not has_moved and not self._link.wait(self._look_s, for_sending=True):
                raise

    def _encoded(self, message: Message, payload: Sequence[Buffer] = ()) -> List[Buffer]:
        """The frames held back and this one, in the order of their tags."""
        parts = [*self._held, *self.connection.send(message, payload)]
        self._held = []
        return parts

    def _send_some(self, is_blocking: bool) -> bool:
        """Send what goes in one system call; False when there is nothing left, or no space for it now."""
        parts = self._sending
        if not parts:
            if not self._to_send:
                return False
            following = next(self._to_send[0], None)
            if following is None:
                self._to_send.popleft()
                return True
            parts = self._sending = following
        try:
            n_bytes = self._link.send(parts, is_blocking)
        except BlockingIOError as error:
            reraise_from_signal(error)
            if is_blocking:
                raise
            return False
        except (BrokenPipeError, ConnectionResetError) as error:
            reraise_from_signal(error)
            # What the server said before it closed is still to be received, and tells more than this error.
            self._sending = []
            self._to_send.clear()
            return False
        for position, part in enumerate(parts):
            if n_bytes < len(part):
                self._sending = [memoryview(part)[n_bytes:], *parts[position + 1 :]]
                return True
            n_bytes -= len(part)
        self._sending = []
        return bool(self._to_send)

    def _pieces(
        self, waiting: List[Buffer], payload: Sequence[Buffer], trailer: Optional[Checksum]
    ) -> Iterator[List[Buffer]]:
        """The frame bit by bit, its checksum computed on the way."""
        for part in payload:
            view = memoryview(part)
            for start in range(0, len(view), _PIECE_BYTES):
                piece = view[start : start + _PIECE_BYTES]
                if trailer is not None:
                    trailer.update(piece)
                waiting.append(piece)
                yield waiting
                waiting = []
        if trailer is not None:
            waiting.append(trailer.digest())
        yield waiting

    def _receive(self, is_blocking: bool) -> None:
        connection = self.connection
        left = connection.payload_left
        if left > _PIECE_BYTES:
            view = connection.wanted()
            n_bytes = self._link.receive((view[:_PIECE_BYTES] if self._is_checked else view,), is_blocking)
        elif left:
            n_bytes = self._link.receive(connection.wanted_all(), is_blocking, self._may_carry_descriptors)
        else:
            n_bytes = self._link.receive((connection.wanted(),), is_blocking, self._may_carry_descriptors)
        if n_bytes == 0:
            raise self._lost(None)
        self._silence.restart(time.monotonic())
        self._is_probed = False
        connection.received(n_bytes)

    def _lost(self, error: Optional[OSError]) -> UnavailableError:
        if error is None:
            why = "closed the connection"
        elif isinstance(error, BlockingIOError):
            why = "has been silent for {:g} s".format(self._longest_silence_s)
        elif error.errno == errno.ETIMEDOUT:
            why = "is lost: its node acknowledges nothing any more"
        else:
            why = "is gone ({})".format(_reason(error))
        return UnavailableError("server {} {}".format(self.where, why))

    def _prove(self, deadline_s: float) -> None:
        """Shake hands."""
        while not isinstance(self._await_event(deadline_s), Opened):
            pass

    def _hand_over(self, job_user: JobUser) -> None:
        """Have the server act as the user of this job."""
        deadline_s = time.monotonic() + _LOGIN_TIMEOUT_S
        for part in self.connection.send(UserTokens(_TOKENS_ID, job_user.tokens, job_user.application)):
            view = memoryview(part)
            while view:
                view = view[self._link.send((view,), is_blocking=True) :]
        event = self._await_event(deadline_s)
        if isinstance(event, UserAccepted):
            self.principal = event.principal
        elif isinstance(event, Failed) and event.kind == "rejected":
            raise AuthenticationError("{}: {}".format(self.where, event.message), cure=event.cure)
        elif isinstance(event, Failed):
            raise UnavailableError("{}: {}".format(self.where, event.message), cure=event.cure)
        else:
            raise UnavailableError("server {} did not take the job's tokens".format(self.where))

    def _await_event(self, deadline_s: float) -> Event:
        """The next event before requests begin."""
        try:
            while True:
                event = self.connection.next_event()
                for part in self.connection.data_to_send():
                    self._link.send((memoryview(part),), is_blocking=True)
                if event is not NEED_DATA:
                    return event
                self._link.set_timeout(max(0.001, deadline_s - time.monotonic()))
                n_bytes = self._link.receive((self.connection.wanted(),), is_blocking=True)
                if n_bytes == 0:
                    raise self._lost(None)
                self.connection.received(n_bytes)
        except BlockingIOError as error:
            reraise_from_signal(error)
            raise UnavailableError(
                "server {} did not finish the handshake in time".format(self.where)
            ) from None
        except OSError as error:
            reraise_from_signal(error)
            raise self._lost(error) from None
        except (AuthenticationError, RemoteProtocolError, UnavailableError) as error:
            reraise_from_signal(error)
            raise _with_place(error, self.where) from None


def _offered(link: Link, checksums: Optional[Sequence[str]]) -> Sequence[str]:
    """The checksums to offer: none first where the carrier itself is safe against damage."""
    known = available_checksums() if checksums is None else tuple(checksums)
    return known if link.carrier == "tcp" else ("none", *(name for name in known if name != "none"))


def _capabilities(link: Link, carriers: Sequence[str], job_user: Optional[JobUser]) -> Tuple[str, ...]:
    shares_memory = link.carrier == "unix" and "memfd" in carriers and _can_share()
    has_tokens = job_user is not None and job_user.tokens and link.is_known
    return (
        PROGRESS,
        PACKING,
        LARGE_PACKS,
        *([MEMFD] * shares_memory),
        *([USER_TOKENS] if has_tokens else ()),
    )


def _can_share() -> bool:
    """Whether this Python can tell when a view of shared memory is dropped (see `memory`)."""
    try:
        import ctypes  # noqa: F401
    except ImportError:
        return False
    return True


def _with_place(error: AccelError, where: str) -> AccelError:
    if where not in error.message:
        error.message = "{}: {}".format(where, error.message)
    return error


class SilenceMeter:
    """Measures for how long a server was silent, counting only time in which this process looked.

    Attributes:
        silent_s: seconds of silence as of the last look.
    """

    def __init__(self) -> None:
        self.silent_s = 0.0
        self._looked_s = 0.0

    def restart(self, now_s: float) -> None:
        """Bytes came, or from now on an answer is due."""
        self.silent_s = 0.0
        self._looked_s = now_s

    def look(self, now_s: float) -> float:
        """Nothing has come so far; the seconds of silence."""
        self.silent_s += min(now_s - self._looked_s, _LONGEST_GAP_S)
        self._looked_s = now_s
        return self.silent_s


# The socket


class Link:
    """A Unix or TCP socket, which moves bytes and knows no protocol; `TlsLink` is the same with TLS.

    With ``is_blocking`` a method waits, in the kernel, until it can do something; without, it returns at
    once.

    Attributes:
        carrier: ``unix``, ``tcp`` or ``tls``.
        is_known: more than the credential says who is at the other end: its certificate, or its user.
        descriptors: file descriptors that came with the bytes, first come first.
        fileno: gives the descriptor of the socket, to be waited for among others.
    """

    def __init__(self, sock: socket.SocketType, carrier: str, is_known: bool = False) -> None:
        self.carrier = carrier
        self.is_known = is_known
        self.descriptors: Deque[int] = collections.deque()
        self.fileno = sock.fileno
        self._socket = sock
        self._poll = select.poll()
        self._interest = 0

    def set_timeout(self, timeout_s: float) -> None:
        """Seconds that a blocking call waits, in the kernel, before it raises `BlockingIOError`."""
        whole_s = int(timeout_s)
        value = _TIMEVAL.pack(whole_s, max(1, int((timeout_s - whole_s) * 1e6)))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)

    def send(self, parts: Sequence[Buffer], is_blocking: bool) -> int:
        """Send some of the bytes; how many. Raises `BlockingIOError` when none could be sent in time."""
        return self._socket.sendmsg(parts, (), 0 if is_blocking else _DONTWAIT)

    def receive(
        self, views: Sequence[memoryview], is_blocking: bool, may_carry_descriptors: bool = False
    ) -> int:
        """Receive into the views, one after the other; how many bytes, 0 when the peer has closed.

        Args:
            may_carry_descriptors: descriptors may come along.

        Raises:
            BlockingIOError: nothing came in time.
        """
        flags = 0 if is_blocking else _DONTWAIT
        if may_carry_descriptors:
            return self._receive_descriptors(views, flags)
        if len(views) == 1:
            return self._socket.recv_into(views[0], 0, flags)
        return self._socket.recvmsg_into(views, 0, flags)[0]

    def wait(self, timeout_s: float, for_sending: bool) -> bool:
        """Wait until bytes can be received, or also sent; False when the time is over."""
        interest = select.POLLIN | select.POLLOUT if for_sending else select.POLLIN
        if interest != self._interest:
            self._poll.register(self._socket, interest)
            self._interest = interest
        return bool(self._poll.poll(timeout_s * 1000))

    def unacknowledged_s(self) -> float:
        """Seconds for which the other end has not acknowledged what it should have; 0: it has, or unknown.

        While the other end has no space the probes become rare; between two of them nothing is due.
        """
        info = self._tcp_info()
        if info is None:
            return 0.0
        fields = _TCP_INFO.unpack(info)
        is_asked = fields[_PROBES] >= UNANSWERED_PROBES
        is_repeated = fields[_UNACKED] > 0 and fields[_RETRANSMITS] >= UNANSWERED_PROBES
        return min(fields[_LAST_DATA], fields[_LAST_ACK]) / 1000 if is_asked or is_repeated else 0.0

    def close(self) -> None:
        """Close the socket and what nobody took of `descriptors`; harmless when closed already."""
        self._socket.close()
        while self.descriptors:
            os.close(self.descriptors.popleft())

    def _receive_descriptors(self, views: Sequence[memoryview], flags: int) -> int:
        n_bytes, ancillary, reported, _ = self._socket.recvmsg_into(views, _ANCILLARY_BYTES, flags | _CLOEXEC)
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self.descriptors.extend(
                    struct.unpack("{}i".format(len(data) // 4), data[: len(data) // 4 * 4])
                )
        if reported & _TRUNCATED:
            raise RemoteProtocolError("more descriptors at once than this protocol sends")
        return n_bytes

    def _tcp_info(self) -> Optional[bytes]:
        sock = self._socket
        if not _CAN_TELL or sock.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        try:
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        except OSError as error:
            reraise_from_signal(error)
            return None
        return info if len(info) == _TCP_INFO.size else None


class TlsLink(Link):
    """A TCP socket with TLS; the session of the ssl module never blocks, `wait` does."""

    def __init__(
        self, sock: ssl.SSLSocket, wants: Tuple[Type[Exception], Type[Exception]], is_known: bool
    ) -> None:
        super().__init__(sock, "tls", is_known)
        self._tls = sock
        self._wants = wants
        self._timeout_s = 0.0
        sock.setblocking(False)

    def set_timeout(self, timeout_s: float) -> None:
        """See `Link`."""
        self._timeout_s = timeout_s

    def send(self, parts: Sequence[Buffer], is_blocking: bool) -> int:
        """See `Link`; at most one part, and of that one piece."""
        piece = memoryview(parts[0])[:_TLS_PIECE_BYTES]
        while True:
            try:
                return self._tls.send(piece)
            except self._wants as error:
                self._wait_for_tls(error, is_blocking)

    def receive(
        self, views: Sequence[memoryview], is_blocking: bool, may_carry_descriptors: bool = False
    ) -> int:
        """See `Link`; into the first view only."""
        while True:
            try:
                return self._tls.recv_into(views[0])
            except self._wants as error:
                self._wait_for_tls(error, is_blocking)

    def wait(self, timeout_s: float, for_sending: bool) -> bool:
        """See `Link`."""
        return self._tls.pending() > 0 or super().wait(timeout_s, for_sending)

    def _wait_for_tls(self, error: Exception, is_blocking: bool) -> None:
        for_sending = isinstance(error, self._wants[1])
        if not is_blocking or not Link.wait(self, self._timeout_s, for_sending):
            raise BlockingIOError


def _start_tls(
    sock: socket.SocketType, endpoint: Endpoint, context: Optional[ssl.SSLContext], ca_file: str
) -> Link:
    """Shake hands on a connected socket.

    Args:
        context: how to speak; None: the server must show a certificate of ``endpoint.ca_file``, or of an
            authority this machine trusts when that is empty.
        ca_file: the authority that the job itself names; no other counts then.

    Raises:
        AuthenticationError: the server's certificate is not accepted.
        OSError: it has no TLS, or not in time.
    """
    import ssl  # not every Python has it

    try:
        own = context
        if own is None:
            own = ssl.create_default_context(cafile=ca_file or endpoint.ca_file or None)
        is_checked = own.check_hostname and own.verify_mode == ssl.CERT_REQUIRED
        wrapped = own.wrap_socket(sock, server_hostname=endpoint.host)  # type: ignore[arg-type]
    except ssl.SSLCertVerificationError as error:
        raise AuthenticationError(
            "{}: its certificate is not accepted: {}".format(endpoint.name, error.verify_message),
            cure="name the authority that signed it (ca_file), and the host as in the certificate",
        ) from None
    is_known = is_checked and (context is not None or bool(ca_file))
    return TlsLink(wrapped, (ssl.SSLWantReadError, ssl.SSLWantWriteError), is_known)


def _open_link(
    endpoint: Endpoint,
    timeout_s: float,
    lost_after_s: float,
    carriers: Sequence[str],
    tls: Optional[ssl.SSLContext],
    job_user: Optional[JobUser],
) -> Link:
    """The best link to a server that this node can have.

    Args:
        timeout_s: limit for connecting; over a network `lost_after_s` is one too, since a node that is there
            accepts at once, however busy its server is.
        carriers: those that may be used.
        tls: how to speak TLS; made from the endpoint when that says so and none is given.
        job_user: says by what servers are known.

    Raises:
        UnavailableError: nobody there.
        AuthenticationError: the server's certificate is not accepted, or another user listens there.
    """
    failures: List[str] = []
    for carrier, family, address in _addresses(endpoint, carriers, tls):
        try:
            return _open(carrier, family, address, timeout_s, lost_after_s, endpoint, tls, job_user)
        except OSError as error:
            reraise_from_signal(error)
            failures.append("{}: {}".format(_format_address(address), _reason(error)))
    why = "; ".join(failures) or "it has no address that this node can use"
    raise UnavailableError("no pipeline server answers as {} ({})".format(endpoint.name, why), cure=_START)


def _addresses(
    endpoint: Endpoint, carriers: Sequence[str], tls: Optional[ssl.SSLContext]
) -> List[Tuple[str, int, object]]:
    addresses: List[Tuple[str, int, object]] = []
    if endpoint.unix_path and ("unix" in carriers or "memfd" in carriers):
        addresses.append(("unix", socket.AF_UNIX, endpoint.unix_path))
    carrier = "tls" if endpoint.tls or tls is not None else "tcp"
    if endpoint.host and endpoint.port and carrier in carriers:
        family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
        addresses.append((carrier, family, (endpoint.host, endpoint.port)))
    return addresses


def _open(
    carrier: str,
    family: int,
    address: object,
    timeout_s: float,
    lost_after_s: float,
    endpoint: Endpoint,
    tls: Optional[ssl.SSLContext],
    job_user: Optional[JobUser],
) -> Link:
    # Not `socket.socket`, a class in Python on top of this one: a signal handler that raises within its
    # `__init__` leaves an open socket to the garbage collector.
    sock = socket.SocketType(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s if family == socket.AF_UNIX else min(timeout_s, lost_after_s))
        sock.connect(address)  # type: ignore[arg-type]
        sock.settimeout(timeout_s)
        if family == socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNIX_BUFFER_BYTES)
        else:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _enable_keepalive(sock, lost_after_s)
        if carrier == "tls":
            return _start_tls(sock, endpoint, tls, job_user.ca_file if job_user is not None else "")
        sock.setblocking(True)
        return Link(sock, carrier, carrier == "unix" and _is_of_service(sock, endpoint, job_user))
    except BaseException:
        with contextlib.suppress(OSError):
            sock.close()
        raise


def _is_of_service(sock: socket.SocketType, endpoint: Endpoint, job_user: Optional[JobUser]) -> bool:
    """Whether the service listens at a Unix socket; False: nobody says who that is.

    Raises:
        AuthenticationError: somebody else listens there.
    """
    if job_user is None or job_user.service_uid is None:
        return False
    uid = peer_uid(sock)
    if uid != job_user.service_uid:
        raise AuthenticationError(
            "{}: user {} listens at {}, and the servers run as user {}".format(
                endpoint.name, uid, endpoint.unix_path, job_user.service_uid
            ),
            cure="somebody poses as a server there; or ACCEL_SERVICE_USER names another user than theirs",
        )
    return True


def _format_address(address: object) -> str:
    return "{}:{}".format(*address[:2]) if isinstance(address, tuple) else str(address)


def _enable_keepalive(sock: socket.SocketType, lost_after_s: float) -> None:
    """Have the kernel probe the other end of an idle TCP connection every second.

    The kernel ends a connection whose probes are not answered for `lost_after_s`, in whole seconds.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if not _CAN_TELL:
        return
    n_probes = max(UNANSWERED_PROBES, round(lost_after_s / _PROBE_EVERY_S) - 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_EVERY_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_EVERY_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, min(127, n_probes))


def _reason(error: OSError) -> str:
    """The reason for a socket's error, in a few words."""
    if isinstance(error, socket.timeout):
        return "no answer in time"
    if error.errno and type(error).__module__ == "builtins":
        return os.strerror(error.errno).lower()
    return str(error)
