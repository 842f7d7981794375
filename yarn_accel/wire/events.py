"""What a connection reports, the states it goes through, and which messages are accepted in them."""

import enum
from typing import Dict, FrozenSet, Tuple, Type, Union

from yarn_accel.wire import handshake as hs
from yarn_accel.wire import messages as msg


class NeedData(enum.Enum):
    """Nothing to report until more bytes arrive."""

    NEED_DATA = "NEED_DATA"


NEED_DATA = NeedData.NEED_DATA


class Opened:
    """The handshake is over: both ends have proved the credential."""


class PayloadComplete:
    """The payload of the message before is in the owner's buffers (or thrown away)."""


class Closed:
    """The peer closed the connection between two frames."""


Event = Union[NeedData, Opened, PayloadComplete, Closed, msg.Message]


class State(enum.Enum):
    """Where a connection stands; the first four belong to the handshake."""

    AWAIT_HELLO = "await-hello"
    AWAIT_CHALLENGE = "await-challenge"
    AWAIT_PROOF = "await-proof"
    AWAIT_WELCOME = "await-welcome"
    OPEN = "open"
    CLOSED = "closed"


_BOTH = frozenset({msg.Ping, msg.Pong, msg.Goodbye})
_FROM_CLIENT = _BOTH | {msg.Request, msg.Cancel, msg.StatsRequest, msg.Lend, msg.GiveBack}
_FROM_SERVER = _BOTH | {
    msg.Result,
    msg.Failed,
    msg.Busy,
    msg.Progress,
    msg.Cancelled,
    msg.Drain,
    msg.Stats,
    msg.Lent,
}
#: (whose end, state) -> message classes accepted there.
ACCEPTED: Dict[Tuple[str, State], FrozenSet[Type[object]]] = {
    ("server", State.AWAIT_HELLO): frozenset({hs.Hello}),
    ("server", State.AWAIT_PROOF): frozenset({hs.Proof}),
    ("server", State.OPEN): frozenset(_FROM_CLIENT),
    ("client", State.AWAIT_CHALLENGE): frozenset({hs.Challenge, hs.Refused}),
    ("client", State.AWAIT_WELCOME): frozenset({hs.Welcome, hs.Refused}),
    ("client", State.OPEN): frozenset(_FROM_SERVER),
}
