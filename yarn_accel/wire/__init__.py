"""The protocol between a client and a pipeline server, without sockets: bytes in, events out (SPEC.md).

Standard library only, Python 3.8: it travels inside a mapper.
"""

from yarn_accel.wire.checksums import CHECKSUMS, Buffer, Checksum, available_checksums
from yarn_accel.wire.codec import as_received
from yarn_accel.wire.connection import Connection
from yarn_accel.wire.credential import SECRET_ALIAS, Credential
from yarn_accel.wire.digest import payload_digest
from yarn_accel.wire.ends import ClientConnection, ServerConnection
from yarn_accel.wire.events import NEED_DATA, Closed, Event, NeedData, Opened, PayloadComplete, State
from yarn_accel.wire.frames import Limits
from yarn_accel.wire.handshake import (
    MEMFD,
    NONCE_BYTES,
    PACKING,
    PROGRESS,
    PROGRESS_INTERVAL_S,
    VERSION,
    Welcome,
)
from yarn_accel.wire.messages import (
    ALIGNMENT_BYTES,
    PRIORITIES,
    Busy,
    Cancel,
    Cancelled,
    Drain,
    Failed,
    GiveBack,
    Goodbye,
    Lend,
    Lent,
    Message,
    NamedTensor,
    Ping,
    Placement,
    Pong,
    Progress,
    RemoteInput,
    Request,
    Result,
    Stats,
    StatsRequest,
    payload_bytes,
)
from yarn_accel.wire.tensors import ITEM_BYTES, TensorSpec
from yarn_accel.wire.varying import MAX_KEY_BYTES

__all__ = [
    "ALIGNMENT_BYTES",
    "CHECKSUMS",
    "ITEM_BYTES",
    "MAX_KEY_BYTES",
    "MEMFD",
    "NEED_DATA",
    "NONCE_BYTES",
    "PACKING",
    "PRIORITIES",
    "PROGRESS",
    "PROGRESS_INTERVAL_S",
    "SECRET_ALIAS",
    "VERSION",
    "Buffer",
    "Busy",
    "Cancel",
    "Cancelled",
    "Checksum",
    "ClientConnection",
    "Closed",
    "Connection",
    "Credential",
    "Drain",
    "Event",
    "Failed",
    "GiveBack",
    "Goodbye",
    "Lend",
    "Lent",
    "Limits",
    "Message",
    "NamedTensor",
    "NeedData",
    "Opened",
    "PayloadComplete",
    "Ping",
    "Placement",
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
    "Welcome",
    "as_received",
    "available_checksums",
    "payload_bytes",
    "payload_digest",
]
