"""One link to one server, with the protocol object on top: messages out, events in.

The ordinary small request is one system call out and one in.  A large payload goes out while whatever the
server says meanwhile comes in, so two ends that both have much to say never wait for each other; where a
checksum travels behind the payload, it grows piece by piece just before each piece is sent, while the piece
is in the processor's cache.
"""

from __future__ import annotations

import collections
import errno
import secrets
import time
from typing import TYPE_CHECKING, Callable, Deque, Iterator, List, Optional, Sequence, Tuple

from yarn_accel.client.binding import Endpoint
from yarn_accel.client.connector import CARRIERS, open_link
from yarn_accel.client.links import Link, reason
from yarn_accel.client.liveness import LOST_AFTER_S, SilenceMeter
from yarn_accel.client.signal_errors import reraise_from_signal
from yarn_accel.errors import AccelError, AuthenticationError, RemoteProtocolError, UnavailableError
from yarn_accel.wire import (
    MEMFD,
    NONCE_BYTES,
    PACKING,
    PROGRESS,
    Buffer,
    Checksum,
    ClientConnection,
    Credential,
    Event,
    Limits,
    Message,
    Opened,
    Ping,
    available_checksums,
)

if TYPE_CHECKING:
    import ssl

#: Payloads longer than this leave in pieces of `_PIECE_BYTES`, each added to the checksum just before; for
#: shorter ones the additional system calls cost more than the cache gives back.
_WHOLE_BYTES = 8 * 1024 * 1024
_PIECE_BYTES = 1024 * 1024
#: Who waits looks so often whether the node at the other end is still there.
LOOK_S = 0.25
#: The token of a ping that only asks for a sign of life.
PROBE_TOKEN = 0


def describe(endpoint: Endpoint) -> str:
    """An endpoint for messages to people: name and address."""
    address = "{}:{}".format(endpoint.host, endpoint.port) if endpoint.port else endpoint.unix_path
    return "{} ({})".format(endpoint.name, address)


class Transport:
    """An open, authenticated connection.

    Args:
        endpoint: where the server listens.
        credential: what this side proves itself with.
        connect_timeout_s: limit for connecting and the handshake together.
        timeout_s: longest silence while something is expected.
        lost_after_s: after so long a node that acknowledges nothing any more is lost, see `liveness`.
        silent_after_s: longest silence of a server that promises progress, or that is doubted; None: as
            `timeout_s`.
        carriers: which of `CARRIERS` may be used.
        checksums: payload checksums accepted over plain TCP, best first; None: all this Python can compute.
            The other carriers need none.
        max_payload_bytes: largest answer that will be received.
        tls: how to speak TLS; with it, plain TCP is not used.

    Attributes:
        connection: the protocol object, once open.

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
    ) -> None:
        self.where = describe(endpoint)
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
        self._link = open_link(endpoint, connect_timeout_s, lost_after_s, carriers=carriers, tls=tls)
        self._link.set_timeout(connect_timeout_s)
        offers = _offered(self._link, checksums), Limits(payload_bytes=max_payload_bytes)
        capabilities = _capabilities(self._link, carriers)
        self.connection = ClientConnection(
            credential, secrets.token_bytes(NONCE_BYTES), *offers, capabilities
        )
        self._may_carry_descriptors = False
        self._shake_hands(deadline_s)
        #: What has arrived so far, without waiting: `NEED_DATA` when nothing complete has.
        self.next_event: Callable[[], Event] = self.connection.next_event
        self._may_carry_descriptors = MEMFD in self.connection.capabilities
        self._is_checked = self.connection.checksum != "none"
        if silent_after_s is not None and PROGRESS in self.connection.capabilities:
            self.doubt()

    @property
    def carrier(self) -> str:
        """How the bytes travel, one of `CARRIERS`."""
        return "memfd" if self._may_carry_descriptors else self._link.carrier

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

    def fileno(self) -> int:
        """The descriptor to wait for, for receiving and, with `has_outgoing`, for sending."""
        return self._link.fileno()

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
            why = "is gone ({})".format(reason(error))
        return UnavailableError("server {} {}".format(self.where, why))

    def _shake_hands(self, deadline_s: float) -> None:
        try:
            self._prove(deadline_s)
            self._link.set_timeout(self._look_s)
        except BaseException:
            self.close()
            raise

    def _prove(self, deadline_s: float) -> None:
        try:
            while True:
                event = self.connection.next_event()
                for part in self.connection.data_to_send():
                    self._link.send((memoryview(part),), is_blocking=True)
                if isinstance(event, Opened):
                    return
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
    """What to offer as checksum: none first where the carrier itself is safe against damage."""
    known = available_checksums() if checksums is None else tuple(checksums)
    return known if link.carrier == "tcp" else ("none", *(name for name in known if name != "none"))


def _capabilities(link: Link, carriers: Sequence[str]) -> Tuple[str, ...]:
    shares_memory = link.carrier == "unix" and "memfd" in carriers and _can_share()
    return (PROGRESS, PACKING, MEMFD) if shares_memory else (PROGRESS, PACKING)


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
