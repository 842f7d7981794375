"""The content of the identifiers of tokens that an application master holds.

Servers interpret it.  Here it tells whose token this is and which key of the server made it: a rolled token
has another key than the one before.
"""

# ruff: noqa: RUF009 - `enum` and `message` declare fields, as dataclasses.field does
from __future__ import annotations

from dataclasses import dataclass

from yarn_accel.adapters.hadoop_rpc.identifiers import AttemptId, NodeId
from yarn_accel.adapters.hadoop_rpc.protobuf import int32, message, string


@dataclass(frozen=True, slots=True)
class AmRmIdentifier:
    """In a ``YARN_AM_RM_TOKEN``: the attempt, and the number of the ResourceManager's key."""

    attempt: AttemptId | None = message(1, AttemptId, name="appAttemptId")
    key_id: int = int32(2, -1, name="keyId")


@dataclass(frozen=True, slots=True)
class NodeIdentifier:
    """In an ``NMToken``: attempt, node, who submitted the application, and the number of the key."""

    attempt: AttemptId | None = message(1, AttemptId, name="appAttemptId")
    node: NodeId | None = message(2, NodeId, name="nodeId")
    submitter: str = string(3, "", name="appSubmitter")
    key_id: int = int32(4, -1, name="keyId")
