"""A server that serves Hadoop RPC on a real socket, with only what the tests use: login, calls, misdeeds.

It shares the messages with the client but neither framing nor login: a mistake there cannot cancel out.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import re
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tests.unit.adapters.hadoop_rpc.gss_acceptor import Acceptor
from yarn_accel.adapters.hadoop_rpc import framing, methods
from yarn_accel.adapters.hadoop_rpc.gssapi import GssError
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
BY_PROTOCOL: dict[tuple[str, str], Method[Any, Any]] = {
    (each.protocol, each.name): each for each in vars(methods).values() if isinstance(each, Method)
}

Handler = Callable[[Any], Any] | Callable[[Any], Awaitable[Any]]


@dataclass
class Refusal(Exception):
    """A handler raises it: a Java exception."""

    exception_class: str
    message: str = "because"
    is_fatal: bool = False


def _md5_hex(*parts: str | bytes) -> str:
    return hashlib.md5(b":".join(p.encode() if isinstance(p, str) else p for p in parts)).hexdigest()


def _session(user: str, password: str, cnonce: str, nonce: str = NONCE) -> bytes:
    secret = hashlib.md5(f"{user}:default:{password}".encode()).digest()
    return hashlib.md5(b":".join((secret, nonce.encode(), cnonce.encode()))).digest()


def digest(user: str, password: str, cnonce: str, verb: str, qop: str = "auth", nonce: str = NONCE) -> str:
    """The digest of RFC 2831 for Hadoop's realm and URI, written down once more."""
    session = _session(user, password, cnonce, nonce).hex()
    target = _md5_hex(f"{verb}:/default" + ("" if qop == "auth" else ":" + "0" * 32))
    return _md5_hex(session, nonce, "00000001", cnonce, qop, target)


class ServerLayer(Protocol):
    """The server's protection of messages."""

    def wrap(self, data: bytes) -> bytes: ...
    def unwrap(self, token: bytes) -> bytes: ...


class DigestServerLayer:
    """RFC 2831's, written down once more."""

    def __init__(self, session: bytes, is_private: bool) -> None:
        self._keys, self._streams = [], []
        for way in ("server-to-client", "client-to-server"):
            signing = f"Digest session key to {way} signing key magic constant"
            sealing = f"Digest H(A1) to {way} sealing key magic constant"
            self._keys.append(hashlib.md5(session + signing.encode()).digest())
            self._streams.append(_rc4(hashlib.md5(session + sealing.encode()).digest()))
        self._numbers = [0, 0]
        self._is_private = is_private

    def _crypt(self, way: int, data: bytes) -> bytes:
        return bytes(a ^ next(self._streams[way]) for a in data) if self._is_private else data

    def _mac(self, way: int, data: bytes) -> bytes:
        return hmac.new(self._keys[way], self._numbers[way].to_bytes(4, "big") + data, "md5").digest()[:10]

    def wrap(self, data: bytes) -> bytes:
        sealed = self._crypt(0, data + self._mac(0, data)) + b"\x00\x01" + self._numbers[0].to_bytes(4, "big")
        self._numbers[0] += 1
        return sealed

    def unwrap(self, token: bytes) -> bytes:
        assert token[-6:] == b"\x00\x01" + self._numbers[1].to_bytes(4, "big")
        content = self._crypt(1, token[:-6])
        assert content[-10:] == self._mac(1, content[:-10])
        self._numbers[1] += 1
        return content[:-10]


def _rc4(key: bytes) -> Iterator[int]:
    box, j = list(range(256)), 0
    for i in range(256):
        j = (j + box[i] + key[i % 16]) % 256
        box[i], box[j] = box[j], box[i]
    i = j = 0
    while True:
        i = (i + 1) % 256
        j = (j + box[i]) % 256
        box[i], box[j] = box[j], box[i]
        yield box[(box[i] + box[j]) % 256]


@dataclass
class GssServerLayer:
    """The Kerberos library's."""

    acceptor: Acceptor
    is_private: bool

    def wrap(self, data: bytes) -> bytes:
        return self.acceptor.wrap(data, self.is_private)

    def unwrap(self, token: bytes) -> bytes:
        return self.acceptor.unwrap(token, self.is_private)


class Stream:
    """Frames of one connection, protected from the moment that `layer` is set."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.layer: ServerLayer | None = None
        self.owner: str | bytes = ""
        self.most_bytes = 0
        self._plain = b""
        self.abort = writer.transport.abort

    async def preamble(self) -> bytes:
        return await self._reader.readexactly(7)

    async def frame(self) -> tuple[framing.RequestHeader, bytes, int]:
        while self.layer is not None and not self._has_frame():
            header, frame, at = await self._outer()
            assert header.call_id == -33
            message, end = decode_delimited(SaslMessage, frame, at)
            assert (message.state, end) == (SaslState.WRAP, len(frame))
            assert message.token is not None
            self.most_bytes = max(self.most_bytes, len(message.token))
            self._plain += self.layer.unwrap(message.token)
        if self.layer is None:
            return await self._outer()
        end = 4 + int.from_bytes(self._plain[:4], "big")
        frame, self._plain = self._plain[4:end], self._plain[end:]
        header, at = decode_delimited(framing.RequestHeader, frame)
        return header, frame, at

    def _has_frame(self) -> bool:
        return len(self._plain) >= 4 and len(self._plain) >= 4 + int.from_bytes(self._plain[:4], "big")

    async def _outer(self) -> tuple[framing.RequestHeader, bytes, int]:
        length = int.from_bytes(await self._reader.readexactly(4), "big")
        frame = await self._reader.readexactly(length)
        header, at = decode_delimited(framing.RequestHeader, frame)
        return header, frame, at

    async def step(self) -> SaslMessage:
        header, frame, at = await self.frame()
        assert header.call_id == -33
        message, end = decode_delimited(SaslMessage, frame, at)
        assert end == len(frame)
        return message

    def sasl(self, message: SaslMessage) -> None:
        header = framing.ResponseHeader(-33 & 0xFFFFFFFF, framing.RpcStatus.SUCCESS)
        self._write(encode(header), encode(message))

    def send(self, header: framing.ResponseHeader, content: bytes | None = None) -> None:
        parts = (encode(header),) if content is None else (encode(header), content)
        if self.layer is None:
            self._write(*parts)
            return
        frame = b"".join(delimited(part) for part in parts)
        token = self.layer.wrap(len(frame).to_bytes(4, "big") + frame)
        self.sasl(SaslMessage(state=SaslState.WRAP, token=token))

    def _write(self, *parts: bytes) -> None:
        frame = b"".join(delimited(part) for part in parts)
        self._writer.write(len(frame).to_bytes(4, "big") + frame)


@dataclass
class FakeHadoop:
    """One service at one port.

    Attributes:
        handlers: method name -> what it answers; an exception `Refusal` is sent as one.
        tokens: those whose owners may log in; None: no login is asked for.
        qop: what the login offers.
        auths: what the login offers instead of tokens and Kerberos.
        lies: it cannot prove that it knows the token.
        keytab: it takes Kerberos, too, as `service` at `host`.
        protections: what the Kerberos login offers, as the bits of RFC 4752.
        max_bytes: the longest protected message that it takes.
        refuses: every login, with this.
        seen: (method name, request) in order of arrival.
        users: who each connection belongs to: a user's name, or a token's identifier.
        is_strict: clients name no user beside their login, as ours do not.
        streams: of all connections.
    """

    handlers: dict[str, Handler] = field(default_factory=dict)
    tokens: list[Token] | None = None
    qop: str = "auth"
    auths: tuple[SaslAuth, ...] | None = None
    lies: bool = False
    keytab: Path | None = None
    service: str = "rm"
    host: str = "m.test"
    protections: int = 1
    max_bytes: int = 1 << 16
    refuses: Refusal | None = None
    seen: list[tuple[str, Any]] = field(default_factory=list)
    users: list[str | bytes] = field(default_factory=list)
    is_strict: bool = True
    streams: list[Stream] = field(default_factory=list)
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
        stream = Stream(reader, writer)
        self.streams.append(stream)
        try:
            await self._talk(stream)
        except (asyncio.IncompleteReadError, ConnectionError, GssError):
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _talk(self, stream: Stream) -> None:
        preamble = await stream.preamble()
        assert preamble[:6] == b"hrpc\x09\x00", preamble
        if preamble[6] == 0xDF:
            owner = await self._login(stream)
            if owner is None:
                return
            self.users.append(owner)
            stream.owner = owner
        elif self.tokens is not None:
            reason = "SIMPLE authentication is not enabled.  Available:[TOKEN, KERBEROS]"
            refusal = Refusal("org.apache.hadoop.security.AccessControlException", reason, is_fatal=True)
            self._refuse(stream, -1, refusal)
            return
        header, frame, at = await stream.frame()
        assert header.call_id == -3
        context, end = decode_delimited(framing.ConnectionContext, frame, at)
        assert end == len(frame)
        if preamble[6] == 0:
            assert context.user is not None
            self.users.append(context.user.effective_user or "")
        elif self.is_strict:
            assert context.user is None
        tasks = set()
        while True:
            header, frame, at = await stream.frame()
            task = asyncio.create_task(self._answer(stream, header, frame, at))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def _answer(self, stream: Stream, header: framing.RequestHeader, frame: bytes, at: int) -> None:
        called, at = decode_delimited(framing.MethodHeader, frame, at)
        method = BY_PROTOCOL[called.protocol, called.method]
        request, end = decode_delimited(method.request, frame, at)
        assert end == len(frame)
        self.seen.append((method.name, request))
        self._arrived.set()
        try:
            answer = self.called(stream, method.name, request)
            if asyncio.iscoroutine(answer):
                answer = await answer
        except Refusal as refusal:
            self._refuse(stream, header.call_id, refusal)
            return
        if answer is CLOSE:
            stream.abort()
            return
        assert isinstance(answer, method.answer)
        stream.send(framing.ResponseHeader(header.call_id, framing.RpcStatus.SUCCESS), encode(answer))

    def called(self, stream: Stream, name: str, request: Any) -> Any:
        """What a call is answered with."""
        return self.handlers[name](request)

    @property
    def n_connections(self) -> int:
        """Connections that are open."""
        return len(self._writers)

    async def _login(self, stream: Stream) -> str | bytes | None:
        assert (await stream.step()).state is SaslState.NEGOTIATE
        if self.refuses is not None:
            self._refuse(stream, -33, self.refuses)
            return None
        challenge = (
            f'realm="default",nonce="{NONCE}",qop="{self.qop}",charset=utf-8,algorithm=md5-sess,'
            'cipher="3des,rc4,des,rc4-56,rc4-40"'
        )
        offer = [SaslAuth("TOKEN", "DIGEST-MD5", "", "default", challenge.encode())]
        if self.keytab is not None:
            offer.append(SaslAuth("KERBEROS", "GSSAPI", self.service, self.host))
        stream.sasl(SaslMessage(state=SaslState.NEGOTIATE, auths=self.auths or tuple(offer)))
        message = await stream.step()
        assert message.state is SaslState.INITIATE
        (chosen,) = message.auths
        login = self._by_ticket if chosen.mechanism == "GSSAPI" else self._by_token
        return await login(stream, message.token or b"")

    async def _by_ticket(self, stream: Stream, token: bytes) -> str:
        assert self.keytab is not None
        acceptor = Acceptor(self.keytab)
        answer, client = acceptor.step(token)
        stream.sasl(SaslMessage(state=SaslState.CHALLENGE, token=answer))
        message = await stream.step()
        assert (message.state, message.token) == (SaslState.RESPONSE, b"")
        offer = bytes((self.protections,)) + self.max_bytes.to_bytes(3, "big")
        stream.sasl(SaslMessage(state=SaslState.CHALLENGE, token=acceptor.wrap(offer, False)))
        message = await stream.step()
        assert message.state is SaslState.RESPONSE
        chosen = acceptor.unwrap(message.token or b"", False)
        assert len(chosen) == 4  # no identity to act for
        assert chosen[0] & self.protections
        stream.sasl(SaslMessage(state=SaslState.SUCCESS))
        if chosen[0] > 1:
            stream.layer = GssServerLayer(acceptor, chosen[0] == 4)
        return client

    async def _by_token(self, stream: Stream, answer: bytes) -> bytes | None:
        fields = dict(re.findall(r'([a-z-]+)="?([^",]*)"?', answer.decode()))
        qop = fields["qop"]
        for token in self.tokens or ():
            user, password = (base64.b64encode(each).decode() for each in (token.identifier, token.password))
            cnonce = fields["cnonce"]
            if user == fields["username"] and fields["response"] == digest(
                user, password, cnonce, "AUTHENTICATE", qop
            ):
                proof = "0" * 32 if self.lies else digest(user, password, cnonce, "", qop)
                stream.sasl(SaslMessage(state=SaslState.SUCCESS, token=f"rspauth={proof}".encode()))
                if qop != "auth":
                    stream.layer = DigestServerLayer(_session(user, password, cnonce), qop == "auth-conf")
                return token.identifier
        self._refuse(stream, -33, Refusal(INVALID_TOKEN, "no such token", is_fatal=True))
        return None

    def _refuse(self, stream: Stream, call_id: int, refusal: Refusal) -> None:
        status = framing.RpcStatus.FATAL if refusal.is_fatal else framing.RpcStatus.ERROR
        message = (
            f"{refusal.exception_class}: {refusal.message}\n\tat org.apache.hadoop.Some.where(Some.java:1)"
        )
        stream.send(framing.ResponseHeader(call_id & 0xFFFFFFFF, status, 9, refusal.exception_class, message))


@contextmanager
def in_thread(hadoop: FakeHadoop) -> Iterator[FakeHadoop]:
    """A service for a caller that has an event loop of its own, or none."""
    loop = asyncio.new_event_loop()
    loop.run_until_complete(hadoop.__aenter__())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield hadoop
    finally:
        asyncio.run_coroutine_threadsafe(hadoop.vanish(), loop).result(120)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
