"""Exchanges recorded from real daemons (`data/origin.md`), and how they are played again."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.unit.adapters.hadoop_rpc.fake_hadoop import METHODS
from yarn_accel.adapters.hadoop_rpc import framing
from yarn_accel.adapters.hadoop_rpc.kerberos import KerberosLogin, Security
from yarn_accel.adapters.hadoop_rpc.methods import NAMENODE_CLIENT
from yarn_accel.adapters.hadoop_rpc.protobuf import decode_delimited
from yarn_accel.adapters.hadoop_rpc.sasl import Protection
from yarn_accel.adapters.hadoop_rpc.tokens import Token

DATA = Path(__file__).parent / "data"
FILE = DATA / "exchanges-3.5.0.json"
LOGINS = DATA / "logins-3.5.0.json"


@dataclass(frozen=True)
class Exchange:
    """One connection: who used which protocol, with which random numbers, and the bytes in order."""

    protocol: str
    identity: framing.Identity
    random: tuple[bytes, ...]
    turns: tuple[tuple[str, bytes], ...]

    @property
    def sent(self) -> bytes:
        return b"".join(data for who, data in self.turns if who == "sent")

    @property
    def received(self) -> bytes:
        return b"".join(data for who, data in self.turns if who == "received")

    def client(self) -> framing.RpcClientProtocol:
        """A client with the random numbers of then."""
        numbers = iter(self.random)
        return framing.RpcClientProtocol(self.protocol, self.identity, random_bytes=lambda _n: next(numbers))

    def calls(self) -> list[tuple[str, object]]:
        """(method, request) of every call, read from the bytes sent."""
        found = []
        at = 7
        while at < len(self.sent):
            length = int.from_bytes(self.sent[at : at + 4], "big")
            frame = self.sent[at + 4 : at + 4 + length]
            at += 4 + length
            header, position = decode_delimited(framing.RequestHeader, frame)
            if header.call_id >= 0:
                called, position = decode_delimited(framing.MethodHeader, frame, position)
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


class ReplayedLibrary:
    """Gives what the Kerberos library gave then, if it is given the same."""

    def __init__(self, notes: list[Any]) -> None:
        self._notes = iter(notes)
        self.is_complete = False

    def __getattr__(self, name: str) -> Any:
        def called(*given: Any, **how: Any) -> Any:
            recorded, plain, options, gave, self.is_complete = next(self._notes)
            given_now = [each.hex() if isinstance(each, bytes) else each for each in given]
            assert (name, given_now, how) == (recorded, plain, options)
            return bytes.fromhex(gave) if name in ("step", "wrap", "unwrap") else gave

        return called


@dataclass(frozen=True)
class RecordedLogin:
    """One login to a service with Kerberos, and the calls after it."""

    service: str
    way: str
    protection: Protection
    entry: dict[str, Any]

    @property
    def turns(self) -> list[tuple[str, bytes]]:
        return [(who, bytes.fromhex(data)) for who, data in self.entry["bytes"]]

    def client(self) -> framing.RpcClientProtocol:
        """A client with the random numbers, and the Kerberos library, of then."""
        numbers = iter(bytes.fromhex(each) for each in self.entry["random"])
        site = self.entry["site"]
        security = Security(True, (self.protection,), site["principals"])
        login, identity = None, framing.Kerberos()
        if self.way == "ticket":
            library = ReplayedLibrary(self.entry["library"])
            login = KerberosLogin(
                identity, security, self.entry["protocol"], site["address"], lambda *_: library
            )
        return framing.RpcClientProtocol(
            self.entry["protocol"],
            identity if login is not None else _identity(self.entry["identity"]),
            site["address"],
            random_bytes=lambda _n: next(numbers),
            security=security,
            login=login,
        )


def recorded_logins() -> list[RecordedLogin]:
    return [
        RecordedLogin(
            "NameNode" if entry["protocol"] == NAMENODE_CLIENT else "ResourceManager",
            "ticket" if "library" in entry else "token",
            Protection[entry["site"]["protections"][0]],
            entry,
        )
        for entry in json.loads(LOGINS.read_text(encoding="utf-8"))
    ]


def _identity(entry: dict[str, str]) -> framing.Identity:
    if "user" in entry:
        return framing.User(entry["user"])
    raw = (bytes.fromhex(entry["identifier"]), bytes.fromhex(entry["password"]))
    return Token(*raw, entry["kind"], entry["service"])


def drain(
    client: framing.RpcClientProtocol,
) -> list[framing.LoggedIn | framing.CallAnswered | framing.CallFailed]:
    found = []
    while (event := client.next_event()) is not None:
        found.append(event)
    return found


def mutated(data: bytes, rng: random.Random) -> bytes:
    """The bytes with one to five random damages."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(len(out)) if out else 0
        choice = rng.randrange(6)
        if choice == 0 and out:
            out[at] ^= 1 << rng.randrange(8)
        elif choice == 1 and out:
            out[at] = rng.choice((0, 0x7F, 0x80, 0xFF))
        elif choice == 2:
            out[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif choice == 3:
            del out[at : at + rng.randrange(1, 9)]
        elif choice == 4:
            out[at : at + 4] = rng.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x00\x00\x00\x00"))
        else:
            out[at:at] = out[at : at + rng.randrange(1, 200)]
    return bytes(out)
