"""The connection without a socket: what it sends first, what it refuses."""

from __future__ import annotations

import pytest

from yarn_accel.adapters.hadoop_rpc.framing import (
    CallAnswered,
    CallFailed,
    ConnectionContext,
    LoggedIn,
    RequestHeader,
    ResponseHeader,
    RpcClientProtocol,
    RpcStatus,
    User,
)
from yarn_accel.adapters.hadoop_rpc.protobuf import decode_delimited, delimited, encode
from yarn_accel.adapters.hadoop_rpc.rpc_errors import StandbyError, UnsupportedLoginError
from yarn_accel.adapters.hadoop_rpc.tokens import Token
from yarn_accel.errors import LocalProtocolError, RemoteProtocolError

PROTOCOL = "org.example.ProtocolPB"


def frame(*parts: bytes) -> bytes:
    content = b"".join(delimited(part) for part in parts)
    return len(content).to_bytes(4, "big") + content


def answer(call_id: int, content: bytes = b"") -> bytes:
    return frame(encode(ResponseHeader(call_id & 0xFFFFFFFF, RpcStatus.SUCCESS)), content)


def refusal(call_id: int, name: str, text: str = "", status: RpcStatus = RpcStatus.ERROR) -> bytes:
    return frame(encode(ResponseHeader(call_id & 0xFFFFFFFF, status, 9, name, text)))


def opened() -> RpcClientProtocol:
    client = RpcClientProtocol(PROTOCOL, User("ann"))
    assert client.begin() == [LoggedIn()]
    client.data_to_send()
    return client


def test_a_user_enters_without_a_login() -> None:
    client = RpcClientProtocol(PROTOCOL, User("ann"), random_bytes=bytes)
    assert client.begin() == [LoggedIn()]
    sent = client.data_to_send()
    assert sent[:7] == b"hrpc\x09\x00\x00"
    assert int.from_bytes(sent[7:11], "big") == len(sent) - 11
    header, at = decode_delimited(RequestHeader, sent, 11)
    assert (header.call_id, header.retry_count, header.client_id) == (-3, -1, bytes(16))
    context, at = decode_delimited(ConnectionContext, sent, at)
    assert at == len(sent)
    assert context.user is not None
    assert (context.user.effective_user, context.protocol) == ("ann", PROTOCOL)
    assert client.data_to_send() == b""


def test_a_token_asks_for_a_login_first() -> None:
    client = RpcClientProtocol(PROTOCOL, Token(b"id", b"pw", "K", ""))
    assert client.begin() == []
    assert client.data_to_send()[:7] == b"hrpc\x09\x00\xdf"
    assert not client.is_open
    with pytest.raises(LocalProtocolError, match="call of ping in state login"):
        client.call("ping", b"")


def test_answers_come_in_any_order() -> None:
    client = opened()
    first, second, third = (client.call("m", b"") for _ in range(3))
    assert len({first, second, third}) == 3
    client.receive_data(
        answer(third, b"3") + refusal(first, "org.example.OddException", "odd") + answer(second)
    )
    assert client.next_event() == CallAnswered(third, delimited(b"3"))
    event = client.next_event()
    assert isinstance(event, CallFailed)
    assert (event.call_id, event.error.args) == (first, ("server: OddException: odd",))
    assert client.next_event() == CallAnswered(second, delimited(b""))
    assert client.next_event() is None


def test_what_came_before_the_end_is_still_reported() -> None:
    client = opened()
    first, _second = client.call("m", b""), client.call("m", b"")
    client.receive_data(
        answer(first) + refusal(-1, "org.apache.hadoop.ipc.StandbyException", status=RpcStatus.FATAL)
    )
    assert client.next_event() == CallAnswered(first, delimited(b""))
    with pytest.raises(StandbyError):
        client.next_event()
    assert not client.is_open
    assert client.next_event() is None


@pytest.mark.parametrize("call_id", [1, -1, -33, 0x7FFFFFFF])
def test_an_answer_nobody_asked_for_closes(call_id: int) -> None:
    client = opened()
    client.call("m", b"")
    client.receive_data(answer(call_id))
    with pytest.raises(RemoteProtocolError, match=f"answers call {call_id}"):
        client.next_event()
    with pytest.raises(LocalProtocolError, match="state closed"):
        client.call("m", b"")


def test_another_service_is_recognised_by_its_length() -> None:
    client = opened()
    client.receive_data(b"HTTP/1.1 400 Bad Request\r\n")
    with pytest.raises(RemoteProtocolError, match="port of a Hadoop RPC service"):
        client.next_event()


def test_a_long_frame_is_refused_before_it_comes() -> None:
    client = RpcClientProtocol(PROTOCOL, User("ann"), max_frame_bytes=1000)
    client.begin()
    client.receive_data((1001).to_bytes(4, "big"))
    with pytest.raises(RemoteProtocolError, match="1001 bytes, the limit is 1000"):
        client.next_event()


def test_a_secure_cluster_is_pointed_out_with_the_cure() -> None:
    client = opened()
    text = "SIMPLE authentication is not enabled.  Available:[TOKEN, KERBEROS]"
    client.receive_data(
        refusal(-1, "org.apache.hadoop.security.AccessControlException", text, RpcStatus.FATAL)
    )
    needed = r"needs hadoop\.security\.authentication: simple.*Kerberos.* not supported"
    with pytest.raises(UnsupportedLoginError, match=needed):
        client.next_event()


def test_misuse_is_our_own_error() -> None:
    client = opened()
    with pytest.raises(LocalProtocolError, match="begin"):
        client.begin()
    client.receive_data(answer(99))
    with pytest.raises(RemoteProtocolError):
        client.next_event()
    with pytest.raises(LocalProtocolError, match="closed connection"):
        client.receive_data(b"x")
