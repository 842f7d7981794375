"""What attacks need: a client that decides which bytes go, a mutator of fixed seed, a look at a process."""

import array
import contextlib
import os
import random
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from yarn_accel import wire
from yarn_accel.client.calls import Call, Tensor
from yarn_accel.client.client import Client
from yarn_accel.errors import ProtocolError
from yarn_accel.wire.connection import UNTAGGED_BYTES

_TIMEOUT_S = 60.0
#: A server that waits for more bytes is given so long before its peer closes.
_HANG_S = 0.02


class RawClient:
    """The protocol object on a plain socket; `frame` and `tagged` make bytes, `push` sends any."""

    def __init__(
        self,
        endpoint,
        credential,
        *,
        unix=False,
        checksum=None,
        capabilities=(),
        lending=False,
        connection=None,
    ):
        if unix:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.connect(endpoint.unix_path)
        else:
            self.sock = socket.create_connection((endpoint.host, endpoint.port))
        self.sock.settimeout(_TIMEOUT_S)
        checksums = (checksum or ("none" if unix else "crc32"),)
        capabilities = (wire.MEMFD,) if lending else capabilities
        self.connection = connection or wire.ClientConnection(
            credential, os.urandom(32), checksums, capabilities=capabilities
        )
        self.fds = []
        self.next_id = 1
        try:
            while self.connection.welcome is None:
                self.flush()
                self.read()
                self.connection.next_event()
            self.flush()
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()

    def close(self):
        self.sock.close()
        while self.fds:
            os.close(self.fds.pop())

    def flush(self):
        for part in self.connection.data_to_send():
            self.sock.sendall(part)

    def frame(self, message, payload=()):
        return b"".join(bytes(part) for part in self.connection.send(message, payload))

    def tagged(self, prefix, header, rest=b""):
        """A frame of any prefix and header with the tag of somebody who knows the key."""
        return prefix + self.connection._send_tags.next_tag(prefix, header) + header + rest

    def push(self, data):
        """Send; False when the server has gone meanwhile."""
        try:
            self.sock.sendall(data)
        except OSError:
            return False
        return True

    def send(self, message, payload=()):
        return self.push(self.frame(message, payload))

    def read(self):
        """Take some bytes, and descriptors; False at the end."""
        data, ancillary, _, _ = self.sock.recvmsg(1 << 20, socket.CMSG_SPACE(64))
        for _, _, raw in ancillary:
            self.fds.extend(array.array("i", raw[: len(raw) // 4 * 4]))
        self.connection.receive_data(data)
        return bool(data)

    def event(self):
        """The next event; a result comes with its payload as `payload`.  `Closed` also for a broken end."""
        try:
            while (event := self.connection.next_event()) is wire.NEED_DATA:
                self.read()
        except (ProtocolError, ConnectionError):
            return wire.Closed()
        self.payload = b""
        if isinstance(event, wire.Result) and self.connection.payload_left:
            buffer = bytearray(self.connection.payload_left)
            self.connection.take_payload([memoryview(buffer)])
            self.event_after_payload()
            self.payload = bytes(buffer)
        return event

    def event_after_payload(self):
        while self.connection.next_event() is wire.NEED_DATA:
            self.read()

    def answer(self, message, payload=()):
        """Send, and wait for what is no `Pong`."""
        self.send(message, payload)
        return self.event()

    def lend(self, n_bytes):
        """Ask for shared memory: the segment's number, its descriptor and its size."""
        event = self.answer(wire.Lend(self.new_id(), n_bytes))
        assert isinstance(event, wire.Lent), event
        return event.segment, self.fds.pop(), event.n_bytes

    def new_id(self):
        self.next_id += 1
        return self.next_id

    def ends(self):
        """The events until the server closes."""
        events = []
        with contextlib.suppress(OSError):
            while not isinstance(event := self.event(), wire.Closed):
                events.append(event)
        return events


def read_to_the_end(sock):
    """All bytes until the peer closes, however it does."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while part := sock.recv(65536):
            data += part
    return data


@dataclass(frozen=True)
class Footprint:
    """What a process and its children use; `own_bytes` is what lies in no file and no memfd."""

    rss_bytes: int
    own_bytes: int
    children_bytes: int
    n_fds: int
    n_threads: int
    n_children: int


def footprint(pid):
    """Look at a process now."""
    tasks, children = list(Path(f"/proc/{pid}/task").iterdir()), children_of(pid)
    return Footprint(
        _status_bytes(pid, "VmRSS:"),
        _status_bytes(pid, "RssAnon:"),
        sum(_status_bytes(child, "RssAnon:") for child in children),
        len(list(Path(f"/proc/{pid}/fd").iterdir())),
        len(tasks),
        len(children),
    )


def _status_bytes(pid, name):
    lines = _text(Path(f"/proc/{pid}/status")).splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def children_of(pid):
    """The processes that a process has started."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(word) for task in tasks for word in _text(task / "children").split()]


def is_alive(pid):
    """Whether there is such a process, and it has not ended."""
    state = _text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return bool(state) and state[0] not in "ZX"


def _text(path):
    """Empty when what it tells of has just ended."""
    try:
        return path.read_text()
    except OSError:
        return ""


def not_at_rest(stats):
    """What a server still holds, or has miscounted, though nobody asks for anything; empty: all is well."""
    pool, queues = stats["pool"], stats["queues"]
    ends = ("done", "rejected", "failed", "busy", "cancelled", "abandoned")
    found = {
        "in flight": stats["in_flight"],
        "read queue": queues["read"]["bytes"],
        "write queue": queues["write"]["bytes"],
        "pool in use": pool["used_bytes"] - pool.get("kept_bytes", pool["used_bytes"]),
        "granted": pool["shared_bytes"],
        "waiting for memory": pool["waiting"],
        "connections": max(0, sum(stats["open_connections"].values()) - 1),
        "requests without an end": stats["requests"] - sum(stats[name] for name in ends),
    }
    return {name: value for name, value in found.items() if value}


def statistics(server, credential):
    with Client(server.endpoint, credential) as client:
        return client.stats()


def settled(server, credential, timeout_s=60.0):
    """The statistics, once nothing is held any more."""
    until_s = time.monotonic() + timeout_s
    while True:
        stats = statistics(server, credential)
        held = not_at_rest(stats)
        if not held:
            return stats
        assert time.monotonic() < until_s, f"still held: {held}"
        time.sleep(0.1)


def assert_serves(server, credential):
    with Client(server.endpoint, credential) as client:
        reply = client.call(Call(f"life-{time.monotonic_ns()}", "lu", {}, (Tensor.of(np.eye(4)),)))
    assert reply.info["n"] == 4


_F8 = wire.TensorSpec("<f8", (4, 4))
_U1 = wire.TensorSpec("|u1", (64,))
_NUMBERS = (*b'0 -1 1e308 4294967296 18446744073709551616 null "x" [] {}'.split(), b"9" * 30)


class Mutator:
    """Damaged frames from good ones; the same seed gives the same damage (but for nonces and tags)."""

    KINDS = ("payload", "payload", "header", "words", "words", "prefix", "raw", "truncated")

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def message(self, client, number):
        """A good message with its payload."""
        rng = self.rng
        key = f"{id(client)}-{number}-{rng.getrandbits(32)}"
        choice = rng.randrange(8 if client.connection.capabilities else 6)
        if choice < 2:
            return wire.Request(number, key, "echo", {"p": [1, {"q": "r"}]}, (_U1,)), [rng.randbytes(64)]
        if choice < 4:
            operation = rng.choice(("lu", "qr", "cholesky", "gemm", "kmeans", "colour"))
            return wire.Request(number, key, operation, {}, (_F8,)), [rng.randbytes(128)]
        if choice == 4:
            return wire.StatsRequest(number), []
        if choice == 5:
            return wire.Cancel(number - 1), []
        if choice == 6:
            return rng.choice((wire.Lend(number, 1 << 16), wire.GiveBack(rng.randrange(20)))), []
        segment = wire.Placement(rng.randrange(40), (64 * rng.randrange(2000),))
        return wire.Request(number, key, "echo", {}, (_U1,), placement=segment), []

    def damaged(self, client, number):
        """A damaged frame: its bytes, its kind, and for ``payload`` what an echo must give back."""
        rng = self.rng
        message, payload = self.message(client, number)
        kind = rng.choice(self.KINDS)
        frame = client.frame(message, payload)
        # Where a tag must be made anew, it is made in place of the one just made.
        client.connection._send_tags._sequence -= kind in {"header", "words", "prefix"}
        n_header = int.from_bytes(frame[4:8], "big")
        prefix, tail = frame[:UNTAGGED_BYTES], frame[UNTAGGED_BYTES + 16 + n_header :]
        header = frame[UNTAGGED_BYTES + 16 : UNTAGGED_BYTES + 16 + n_header]
        if kind == "payload":
            is_echo = isinstance(message, wire.Request) and message.operation == "echo" and payload
            return frame, kind, payload[0] if is_echo else None
        if kind == "header":
            header = self._edited(header)
        elif kind == "words":
            header = self._reworded(header)
        elif kind == "prefix":
            prefix = self._flipped(prefix)
        elif kind == "raw":
            return self._flipped(frame), kind, None
        else:
            return frame[: rng.randrange(1, len(frame))], kind, None
        if kind != "prefix":
            prefix = prefix[:4] + len(header).to_bytes(4, "big") + prefix[8:]
        return client.tagged(prefix, header, tail), kind, None

    def _flipped(self, data):
        data = bytearray(data)
        for _ in range(self.rng.choice((1, 1, 2, 8))):
            data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
        return bytes(data)

    def _edited(self, data):
        rng = self.rng
        at, to = sorted(rng.randrange(len(data) + 1) for _ in range(2))
        choice = rng.randrange(5)
        if choice == 0:
            return data[:at] + data[to:]
        if choice == 1:
            return data[:at] + data[at:to] * rng.randrange(2, 60) + data[to:]
        if choice == 2:
            return data[:at] + rng.randbytes(rng.randrange(1, 40)) + data[at:]
        if choice == 3:
            return data[:at] + b"[" * rng.choice((5, 40, 5000)) + data[at:]
        return self._flipped(data)

    def _reworded(self, data):
        """Put another value where a number or a word is in the JSON part."""
        start = data.find(b"{")
        places = [at for at in range(max(0, start), len(data)) if data[at : at + 1].isdigit()]
        if start < 0 or not places:
            return self._edited(data)
        at = self.rng.choice(places)
        return data[:at] + self.rng.choice(_NUMBERS) + data[at + 1 :]


@dataclass
class Tally:
    """What came of the damaged frames that a live connection really took."""

    n_frames: int = 0
    n_connections: int = 0
    answered: int = 0
    ended: int = 0
    echoes_right: int = 0
    wrong: list = field(default_factory=list)
    by_kind: dict = field(default_factory=dict)


def bombard(endpoint, credential, mutator, n_frames, per_connection=8, **options):
    """Send damaged frames, each over a connection that still lives.  The tally of it."""
    tally = Tally()
    while tally.n_frames < n_frames:
        with RawClient(endpoint, credential, **options) as client:
            tally.n_connections += 1
            expected = {}
            for number in range(1, per_connection + 1):
                data, kind, echo = mutator.damaged(client, number)
                tally.n_frames += 1
                tally.by_kind[kind] = tally.by_kind.get(kind, 0) + 1
                if echo is not None:
                    expected[number] = echo
                if kind == "truncated":
                    _leave_after(client, data)
                    tally.ended += 1
                    break
                if not _is_alive_after(client, data, number, expected, tally):
                    tally.ended += 1
                    break
    return tally


def _leave_after(client, data):
    client.push(data)
    with contextlib.suppress(OSError):
        client.sock.shutdown(socket.SHUT_WR)
    client.ends()


def _is_alive_after(client, data, number, expected, tally):
    """Send, ask whether the server still listens, and take what comes."""
    client.sock.settimeout(_HANG_S)
    token = 1_000_000 + number
    is_open = client.push(data + client.frame(wire.Ping(token)))
    is_leaving = False
    until_s = time.monotonic() + _TIMEOUT_S
    while is_open and time.monotonic() < until_s:
        try:
            event = client.event()
        except TimeoutError:
            # It waits for the rest of a frame that is longer than what was sent, or is only slow: its answers
            # count all the same.
            if is_leaving:
                return False
            is_leaving = True
            client.sock.settimeout(_TIMEOUT_S)
            with contextlib.suppress(OSError):
                client.sock.shutdown(socket.SHUT_WR)
            continue
        if isinstance(event, wire.Closed | wire.Goodbye):
            return False
        if not isinstance(event, wire.Pong):
            tally.answered += 1
            _check(event, client.payload, expected, tally)
        elif not is_leaving:
            return True
    return False


def _check(event, payload, expected, tally):
    wanted = expected.pop(getattr(event, "id", None), None)
    if isinstance(event, wire.Result) and wanted is not None:
        if payload == wanted:
            tally.echoes_right += 1
        else:
            tally.wrong.append((event, payload, wanted))
