"""A server that serves Hadoop RPC on a real socket, with only what the tests use: login, calls, misdeeds.

It shares the messages with the client but neither framing nor login: a mistake there cannot cancel out.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from yarn_accel.adapters.hadoop_rpc import methods
from yarn_accel.adapters.hadoop_rpc.framing import (
    ConnectionContext,
    MethodHeader,
    RequestHeader,
    ResponseHeader,
    RpcStatus,
)
from yarn_accel.adapters.hadoop_rpc.methods import Method
from yarn_accel.adapters.hadoop_rpc.protobuf import decode_delimited, delimited, encode
from yarn_accel.adapters.hadoop_rpc.sasl import SaslAuth, SaslMessage, SaslState
from yarn_accel.adapters.hadoop_rpc.tokens import Token
from yarn_accel.adapters.hadoop_rpc.transport import Address

NONCE = "c2VydmVyLW5vbmNl"
STANDBY = "org.apache.hadoop.ipc.StandbyException"
NOT_REGISTERED = "org.apache.hadoop.yarn.exceptions.ApplicationMasterNotRegisteredException"
INVALID_TOKEN = "org.apache.hadoop.security.token.SecretManager$InvalidToken"
CLOSE = object()
"""A handler that returns it makes the server close the connection instead of answering."""

METHODS: dict[str, Method[Any, Any]] = {
    each.name: each for each in vars(methods).values() if isinstance(each, Method)
}
"""Every method that the package calls, by its name."""

Handler = Callable[[Any], Any] | Callable[[Any], Awaitable[Any]]


@dataclass
class Refusal(Exception):
    """A handler raises it: a Java exception."""

    exception_class: str
    message: str = "because"
    is_fatal: bool = False


def _md5_hex(*parts: str | bytes) -> str:
    return hashlib.md5(b":".join(p.encode() if isinstance(p, str) else p for p in parts)).hexdigest()


def digest(user: str, password: str, cnonce: str, verb: str, nonce: str = NONCE) -> str:
    """The digest of RFC 2831 for qop auth and Hadoop's realm and URI, written down once more."""
    secret = hashlib.md5(f"{user}:default:{password}".encode()).digest()
    session = _md5_hex(secret, nonce, cnonce)
    return _md5_hex(session, nonce, "00000001", cnonce, "auth", _md5_hex(f"{verb}:/default"))


@dataclass
class FakeHadoop:
    """One service at one port.

    Attributes:
        handlers: method name -> what it answers; an exception `Refusal` is sent as one.
        tokens: those whose owners may log in; None: no login is asked for.
        qop: what the login offers.
        seen: (method name, request) in order of arrival.
        users: who each connection belongs to: a user's name, or a token's identifier.
    """

    handlers: dict[str, Handler] = field(default_factory=dict)
    tokens: list[Token] | None = None
    qop: str = "auth"
    auths: tuple[SaslAuth, ...] | None = None
    lies: bool = False
    seen: list[tuple[str, Any]] = field(default_factory=list)
    users: list[str | bytes] = field(default_factory=list)
    port: int = 0

    async def __aenter__(self) -> FakeHadoop:
        self._writers: set[asyncio.StreamWriter] = set()
        self._arrived = asyncio.Event()
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.vanish()

    async def listen(self) -> None:
        """Take connections, at the port of before when there was one."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def vanish(self) -> None:
        """As if the process had been killed."""
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await self._server.wait_closed()

    async def until_seen(self, n_calls: int) -> None:
        """So many calls have come."""
        while len(self.seen) < n_calls:
            self._arrived.clear()
            await self._arrived.wait()

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self.port)

    def methods(self) -> list[str]:
        return [name for name, _ in self.seen]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            await self._talk(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        preamble = await reader.readexactly(7)
        assert preamble[:6] == b"hrpc\x09\x00", preamble
        if preamble[6] == 0xDF:
            owner = await self._login(reader, writer)
            if owner is None:
                return
            self.users.append(owner)
        elif self.tokens is not None:
            reason = "SIMPLE authentication is not enabled.  Available:[TOKEN, KERBEROS]"
            refusal = Refusal("org.apache.hadoop.security.AccessControlException", reason, is_fatal=True)
            self._refuse(writer, -1, refusal)
            return
        header, frame, at = await _frame(reader)
        assert header.call_id == -3
        context, end = decode_delimited(ConnectionContext, frame, at)
        assert end == len(frame)
        if preamble[6] == 0:
            assert context.user is not None
            self.users.append(context.user.effective_user or "")
        else:
            assert context.user is None
        tasks = set()
        while True:
            header, frame, at = await _frame(reader)
            task = asyncio.create_task(self._answer(writer, header, frame, at))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def _answer(
        self, writer: asyncio.StreamWriter, header: RequestHeader, frame: bytes, at: int
    ) -> None:
        called, at = decode_delimited(MethodHeader, frame, at)
        method = METHODS[called.method]
        assert called.protocol == method.protocol
        request, end = decode_delimited(method.request, frame, at)
        assert end == len(frame)
        self.seen.append((method.name, request))
        self._arrived.set()
        try:
            answer = self.handlers[method.name](request)
            if asyncio.iscoroutine(answer):
                answer = await answer
        except Refusal as refusal:
            self._refuse(writer, header.call_id, refusal)
            return
        if answer is CLOSE:
            writer.transport.abort()
            return
        assert isinstance(answer, method.answer)
        self._send(writer, ResponseHeader(header.call_id, RpcStatus.SUCCESS), encode(answer))

    async def _login(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes | None:
        message = await self._step(reader)
        assert message.state is SaslState.NEGOTIATE
        challenge = f'realm="default",nonce="{NONCE}",qop="{self.qop}",charset=utf-8,algorithm=md5-sess'
        offer = self.auths or (SaslAuth("TOKEN", "DIGEST-MD5", "", "default", challenge.encode()),)
        self._sasl(writer, SaslMessage(state=SaslState.NEGOTIATE, auths=offer))
        message = await self._step(reader)
        assert message.state is SaslState.INITIATE
        fields = dict(re.findall(r'([a-z-]+)="?([^",]*)"?', (message.token or b"").decode()))
        for token in self.tokens or ():
            user, password = (base64.b64encode(each).decode() for each in (token.identifier, token.password))
            if user == fields["username"] and fields["response"] == digest(
                user, password, fields["cnonce"], "AUTHENTICATE"
            ):
                proof = "0" * 32 if self.lies else digest(user, password, fields["cnonce"], "")
                self._sasl(writer, SaslMessage(state=SaslState.SUCCESS, token=f"rspauth={proof}".encode()))
                return token.identifier
        self._refuse(writer, -33, Refusal(INVALID_TOKEN, "no such token", is_fatal=True))
        return None

    async def _step(self, reader: asyncio.StreamReader) -> SaslMessage:
        header, frame, at = await _frame(reader)
        assert header.call_id == -33
        message, end = decode_delimited(SaslMessage, frame, at)
        assert end == len(frame)
        return message

    def _sasl(self, writer: asyncio.StreamWriter, message: SaslMessage) -> None:
        self._send(writer, ResponseHeader(-33 & 0xFFFFFFFF, RpcStatus.SUCCESS), encode(message))

    def _refuse(self, writer: asyncio.StreamWriter, call_id: int, refusal: Refusal) -> None:
        status = RpcStatus.FATAL if refusal.is_fatal else RpcStatus.ERROR
        message = (
            f"{refusal.exception_class}: {refusal.message}\n\tat org.apache.hadoop.Some.where(Some.java:1)"
        )
        header = ResponseHeader(call_id & 0xFFFFFFFF, status, 9, refusal.exception_class, message)
        self._send(writer, header)

    def _send(
        self, writer: asyncio.StreamWriter, header: ResponseHeader, content: bytes | None = None
    ) -> None:
        frame = delimited(encode(header)) + (b"" if content is None else delimited(content))
        writer.write(len(frame).to_bytes(4, "big") + frame)


async def _frame(reader: asyncio.StreamReader) -> tuple[RequestHeader, bytes, int]:
    length = int.from_bytes(await reader.readexactly(4), "big")
    frame = await reader.readexactly(length)
    header, at = decode_delimited(RequestHeader, frame)
    return header, frame, at
