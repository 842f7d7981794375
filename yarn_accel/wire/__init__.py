"""The protocol between a client and a pipeline server, without sockets: bytes in, events out (SPEC.md).

Standard library only, Python 3.8: it travels inside a mapper.
"""

from yarn_accel.wire.connection import (
    NEED_DATA,
    ClientConnection,
    Closed,
    Connection,
    Event,
    NeedData,
    Opened,
    PayloadComplete,
    ServerConnection,
    State,
)
from yarn_accel.wire.credential import SECRET_ALIAS, Credential
from yarn_accel.wire.frames import CHECKSUMS, Buffer, Limits
from yarn_accel.wire.handshake import NONCE_BYTES, VERSION
from yarn_accel.wire.messages import (
    Busy,
    Cancel,
    Cancelled,
    Drain,
    Failed,
    Goodbye,
    Message,
    NamedTensor,
    Ping,
    Pong,
    Progress,
    RemoteInput,
    Request,
    Result,
    Stats,
    StatsRequest,
)
from yarn_accel.wire.tensors import ITEM_BYTES, TensorSpec

__all__ = [
    "CHECKSUMS",
    "ITEM_BYTES",
    "NEED_DATA",
    "NONCE_BYTES",
    "SECRET_ALIAS",
    "VERSION",
    "Buffer",
    "Busy",
    "Cancel",
    "Cancelled",
    "ClientConnection",
    "Closed",
    "Connection",
    "Credential",
    "Drain",
    "Event",
    "Failed",
    "Goodbye",
    "Limits",
    "Message",
    "NamedTensor",
    "NeedData",
    "Opened",
    "PayloadComplete",
    "Ping",
    "Pong",
    "Progress",
    "RemoteInput",
    "Request",
    "Result",
    "ServerConnection",
    "State",
    "Stats",
    "StatsRequest",
    "TensorSpec",
]
