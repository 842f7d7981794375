"""One socket to one server, with the protocol object on top.

The socket does not block; `Transport.pump` sends what is waiting and receives what has come, and only waits
when neither is possible.  So one thread can push a large request and take a large answer at the same time,
and two ends that both have much to say never wait for each other.
"""

from __future__ import annotations

import collections
import os
import secrets
import select
import socket
import time
from typing import Deque, List, Optional, Sequence

from yarn_accel.client.binding import Endpoint
from yarn_accel.errors import AccelError, AuthenticationError, RemoteProtocolError, UnavailableError
from yarn_accel.wire import (
    NONCE_BYTES,
    Buffer,
    ClientConnection,
    Credential,
    Event,
    Limits,
    Message,
    Opened,
)

__all__ = ["Transport", "describe"]

_START = "start it there with `yarn-accel pipeline serve`"
_MAX_PARTS = 64


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
        is_local: whether the server's Unix socket may be used when it has one.
        checksums: payload checksums accepted over TCP, best first; a Unix socket needs none.
        max_payload_bytes: largest answer that will be received.

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
        is_local: bool,
        checksums: Sequence[str],
        max_payload_bytes: int,
    ) -> None:
        self.where = describe(endpoint)
        self.carrier = ""
        self._timeout_s = timeout_s
        self._outgoing: Deque[memoryview] = collections.deque()
        self._poll = select.poll()
        deadline_s = time.monotonic() + connect_timeout_s
        self._socket = self._connect(endpoint, connect_timeout_s, is_local)
        self._poll.register(self._socket, select.POLLIN)
        self.connection = ClientConnection(
            credential,
            secrets.token_bytes(NONCE_BYTES),
            ("none", *checksums) if self.carrier == "unix" else checksums,
            Limits(payload_bytes=max_payload_bytes),
        )
        try:
            self._shake_hands(deadline_s)
        except BaseException:
            self.close()
            raise

    def send(self, message: Message, payload: Sequence[Buffer] = ()) -> None:
        """Put a message in line; `pump` sends it.  The payload must stay unchanged until it has left."""
        for part in self.connection.send(message, payload):
            self._outgoing.append(memoryview(part))

    @property
    def has_outgoing(self) -> bool:
        """Whether something put in line has not left yet."""
        return bool(self._outgoing)

    def next_event(self) -> Event:
        """What has arrived so far, without waiting: `NEED_DATA` when nothing complete has."""
        return self.connection.next_event()

    def pump(self, deadline_s: Optional[float] = None) -> bool:
        """Send and receive what is possible, waiting until something is.

        Args:
            deadline_s: monotonic time to give up waiting at, returning False; None: after the longest
                silence.

        Raises:
            UnavailableError: the server vanished, or was silent for too long.
        """
        try:
            while True:
                moved = self._send_some()
                moved = self._receive_some() or moved
                if moved:
                    return True
                if not self._wait(deadline_s):
                    if deadline_s is not None:
                        return False
                    raise UnavailableError(
                        "server {} has been silent for {:g} s".format(self.where, self._timeout_s)
                    )
        except OSError as error:
            raise self._vanished(error) from None

    def close(self) -> None:
        """Close the socket; harmless when closed already."""
        self._outgoing.clear()
        self._socket.close()

    def _send_some(self) -> bool:
        if not self._outgoing:
            return False
        parts = [self._outgoing[index] for index in range(min(len(self._outgoing), _MAX_PARTS))]
        try:
            n_bytes = self._socket.sendmsg(parts)
        except BlockingIOError:
            return False
        for part in parts:
            if n_bytes < len(part):
                self._outgoing[0] = part[n_bytes:]
                break
            n_bytes -= len(part)
            self._outgoing.popleft()
        return True

    def _receive_some(self) -> bool:
        try:
            n_bytes = self._socket.recv_into(self.connection.wanted())
        except BlockingIOError:
            return False
        if n_bytes == 0:
            raise self._vanished(None)
        self.connection.received(n_bytes)
        return True

    def _wait(self, deadline_s: Optional[float]) -> bool:
        interest = select.POLLIN | select.POLLOUT if self._outgoing else select.POLLIN
        self._poll.modify(self._socket, interest)
        left_s = self._timeout_s if deadline_s is None else max(0.0, deadline_s - time.monotonic())
        return bool(self._poll.poll(left_s * 1000))

    def _vanished(self, error: Optional[OSError]) -> UnavailableError:
        why = "closed the connection" if error is None else "is gone ({})".format(_reason(error))
        return UnavailableError("server {} {}".format(self.where, why))

    def _connect(self, endpoint: Endpoint, timeout_s: float, is_local: bool) -> socket.socket:
        failures: List[str] = []
        if endpoint.unix_path and is_local:
            try:
                return self._open("unix", socket.AF_UNIX, endpoint.unix_path, timeout_s)
            except OSError as error:
                failures.append("{}: {}".format(endpoint.unix_path, _reason(error)))
        if endpoint.host and endpoint.port:
            try:
                family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
                return self._open("tcp", family, (endpoint.host, endpoint.port), timeout_s)
            except OSError as error:
                failures.append("{}:{}: {}".format(endpoint.host, endpoint.port, _reason(error)))
        why = "; ".join(failures) or "it has no address that this node can use"
        raise UnavailableError(
            "no pipeline server answers as {} ({})".format(endpoint.name, why), cure=_START
        )

    def _open(self, carrier: str, family: int, address: object, timeout_s: float) -> socket.socket:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout_s)
            sock.connect(address)  # type: ignore[arg-type]
            if carrier == "tcp":
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setblocking(False)
        except BaseException:
            sock.close()
            raise
        self.carrier = carrier
        return sock

    def _shake_hands(self, deadline_s: float) -> None:
        try:
            while True:
                event = self.connection.next_event()
                for part in self.connection.data_to_send():
                    self._outgoing.append(memoryview(part))
                if isinstance(event, Opened):
                    return
                if not self.pump(deadline_s):
                    raise UnavailableError(
                        "server {} did not finish the handshake in time".format(self.where)
                    )
        except (AuthenticationError, RemoteProtocolError, UnavailableError) as error:
            raise _with_place(error, self.where) from None


def _reason(error: OSError) -> str:
    if isinstance(error, socket.timeout):
        return "no answer in time"
    return os.strerror(error.errno).lower() if error.errno else str(error)


def _with_place(error: AccelError, where: str) -> AccelError:
    if where not in error.message:
        error.message = "{}: {}".format(where, error.message)
    return error
