"""Two protocol objects talking to each other through lists of bytes."""

import pytest

from yarn_accel.wire import NEED_DATA, ClientConnection, Opened, ServerConnection
from yarn_accel.wire.credential import issue

MASTER = bytes(range(32))
NOW_S = 1_000_000.0


class Pair:
    """A client and a server connection, and everything each of them has sent."""

    def __init__(
        self,
        *,
        credential=None,
        nonces=(b"c" * 32, b"s" * 32),
        now_s=NOW_S,
        client_options=None,
        server_options=None,
    ):
        self.credential = credential or issue(MASTER, "alice", int(NOW_S) + 100, "k1")
        self.client = ClientConnection(self.credential, nonces[0], **(client_options or {}))
        self.server = ServerConnection(MASTER, nonces[1], now_s, "w1", **(server_options or {}))
        self.sent = {self.client: b"", self.server: b""}

    def move(self, sender, receiver, change=bytes):
        """Pass the bytes of the sender's handshake on to the receiver; returns the receiver's event."""
        data = change(b"".join(sender.data_to_send()))
        self.sent[sender] += data
        if data:
            receiver.receive_data(data)
        return receiver.next_event()

    def say(self, sender, message, payload=()):
        """The bytes of a message."""
        return b"".join(bytes(part) for part in sender.send(message, payload))

    def forge(self, sender, kind, header, payload_bytes=0, varying_bytes=0):
        """The bytes of a frame that `send` would not make, with the right tag."""
        return sender._tagged(kind, varying_bytes, header, payload_bytes)

    def tell(self, sender, receiver, message, payload=()):
        """The receiver's event when the sender says something."""
        receiver.receive_data(self.say(sender, message, payload))
        return receiver.next_event()

    def open(self):
        assert self.move(self.client, self.server) is NEED_DATA
        assert self.move(self.server, self.client) is NEED_DATA
        assert isinstance(self.move(self.client, self.server), Opened)
        assert isinstance(self.move(self.server, self.client), Opened)
        return self


@pytest.fixture
def make_pair():
    return Pair


@pytest.fixture
def pair():
    return Pair().open()
