"""Exchanges recorded from real daemons (`data/origin.md`), and how they are played again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tests.unit.adapters.hadoop_rpc.fake_hadoop import METHODS
from yarn_accel.adapters.hadoop_rpc.framing import (
    CallAnswered,
    CallFailed,
    Identity,
    LoggedIn,
    MethodHeader,
    RequestHeader,
    RpcClientProtocol,
    User,
)
from yarn_accel.adapters.hadoop_rpc.protobuf import decode_delimited
from yarn_accel.adapters.hadoop_rpc.tokens import Token

FILE = Path(__file__).parent / "data" / "exchanges-3.5.0.json"


@dataclass(frozen=True)
class Exchange:
    """One connection: who used which protocol, with which random numbers, and the bytes in order."""

    protocol: str
    identity: Identity
    random: tuple[bytes, ...]
    turns: tuple[tuple[str, bytes], ...]

    @property
    def sent(self) -> bytes:
        return b"".join(data for who, data in self.turns if who == "sent")

    @property
    def received(self) -> bytes:
        return b"".join(data for who, data in self.turns if who == "received")

    def client(self) -> RpcClientProtocol:
        """A client with the random numbers of then."""
        numbers = iter(self.random)
        return RpcClientProtocol(self.protocol, self.identity, random_bytes=lambda _n: next(numbers))

    def calls(self) -> list[tuple[str, object]]:
        """(method, request) of every call, read from the bytes sent."""
        found = []
        at = 7
        while at < len(self.sent):
            length = int.from_bytes(self.sent[at : at + 4], "big")
            frame = self.sent[at + 4 : at + 4 + length]
            at += 4 + length
            header, position = decode_delimited(RequestHeader, frame)
            if header.call_id >= 0:
                called, position = decode_delimited(MethodHeader, frame, position)
                method = METHODS[called.method]
                found.append((method.name, decode_delimited(method.request, frame, position)[0]))
        return found


def exchanges() -> list[Exchange]:
    return [
        Exchange(
            entry["protocol"],
            _identity(entry["identity"]),
            tuple(bytes.fromhex(each) for each in entry["random"]),
            tuple((who, bytes.fromhex(data)) for who, data in entry["bytes"]),
        )
        for entry in json.loads(FILE.read_text(encoding="utf-8"))
    ]


def _identity(entry: dict[str, str]) -> Identity:
    if "user" in entry:
        return User(entry["user"])
    raw = (bytes.fromhex(entry["identifier"]), bytes.fromhex(entry["password"]))
    return Token(*raw, entry["kind"], entry["service"])


def drain(client: RpcClientProtocol) -> list[LoggedIn | CallAnswered | CallFailed]:
    found = []
    while (event := client.next_event()) is not None:
        found.append(event)
    return found
