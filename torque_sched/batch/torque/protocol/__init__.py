"""Torque's own batch protocol, as bytes and values, without socket or clock.

A client or a server needs from here::

    encode_request(request) -> bytes           RequestDecoder().receive(data) ... .next() -> Request | None
    encode_reply(reply) -> bytes               ReplyDecoder(build).receive(data) ... .next() -> Reply | None
    encode_authorisation(asked) -> bytes       decode_authorisation(line) -> Authorisation | None
    encode_answer(answer) -> bytes             decode_answer(data) -> AuthorisationAnswer | None

A request is a `Status`, `SelectStatus`, `SelectJobs`, `RunJob`, `ModifyJob`, `DeleteJob`, `AuthenticateUser`
or `Disconnect`; ``.type`` is its number, a `RequestType`. A `Reply` has a code, a `ReplyKind`, and a text,
job ids or status objects. A decoder takes bytes in any pieces; what is no message raises `ProtocolError`
(`ForeignProtocolError`: another protocol; `UnknownRequestError`: ``.number``), which names byte and field. It
goes on raising it until ``discard()``. ``is_between_messages`` tells whether a message has begun.

Rules that hold for every user of the protocol:

* One request at a time on a connection: what a client sends behind a request is thrown away without a word.
* A request that is not understood may get no answer, so every wait needs a time limit.
* After a time-out or a `ProtocolError` the connection is closed: a late reply would be taken for the next.
* AsyncModifyJob (28) is not here on purpose: Torque 6.1.3 answers it twice and modifies nothing.
"""

from torque_sched.batch.torque.protocol.authorisation import (
    ACTIVE_SERVER_QUESTION,
    MOST_LINE_BYTES,
    Authorisation,
    AuthorisationAnswer,
    decode_answer,
    decode_authorisation,
    encode_answer,
    encode_authorisation,
)
from torque_sched.batch.torque.protocol.decoding import (
    REPLY_BOUNDS,
    REQUEST_BOUNDS,
    KnownObjects,
    MessageBounds,
    ReplyDecoder,
    RequestDecoder,
    as_they_are,
)
from torque_sched.batch.torque.protocol.messages import (
    Attribute,
    AuthenticateUser,
    DeleteJob,
    Disconnect,
    ErrorCode,
    ModifyJob,
    ObjectType,
    Operator,
    Reply,
    ReplyKind,
    Request,
    RequestType,
    RunJob,
    SelectJobs,
    SelectStatus,
    Status,
    StatusObject,
    encode_reply,
    encode_request,
    wanted,
)

__all__ = [
    "ACTIVE_SERVER_QUESTION",
    "MOST_LINE_BYTES",
    "REPLY_BOUNDS",
    "REQUEST_BOUNDS",
    "Attribute",
    "AuthenticateUser",
    "Authorisation",
    "AuthorisationAnswer",
    "DeleteJob",
    "Disconnect",
    "ErrorCode",
    "KnownObjects",
    "MessageBounds",
    "ModifyJob",
    "ObjectType",
    "Operator",
    "Reply",
    "ReplyDecoder",
    "ReplyKind",
    "Request",
    "RequestDecoder",
    "RequestType",
    "RunJob",
    "SelectJobs",
    "SelectStatus",
    "Status",
    "StatusObject",
    "as_they_are",
    "decode_answer",
    "decode_authorisation",
    "encode_answer",
    "encode_authorisation",
    "encode_reply",
    "encode_request",
    "wanted",
]
