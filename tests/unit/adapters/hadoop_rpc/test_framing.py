"""The connection without a socket: what it sends first, what it refuses."""

import pytest

from yarn_accel.adapters.hadoop_rpc import framing
from yarn_accel.adapters.hadoop_rpc.protobuf import decode_delimited, delimited, encode
from yarn_accel.adapters.hadoop_rpc.rpc_errors import StandbyError
from yarn_accel.adapters.hadoop_rpc.sasl import SaslMessage, SaslState
from yarn_accel.adapters.hadoop_rpc.tokens import Token
from yarn_accel.errors import LocalProtocolError, RemoteProtocolError

PROTOCOL = "org.example.ProtocolPB"


def frame(*parts):
    content = b"".join(delimited(part) for part in parts)
    return len(content).to_bytes(4, "big") + content


def answer(call_id, content=b""):
    return frame(encode(framing.ResponseHeader(call_id & 0xFFFFFFFF, framing.RpcStatus.SUCCESS)), content)


def refusal(call_id, name, text="", status=framing.RpcStatus.ERROR):
    return frame(encode(framing.ResponseHeader(call_id & 0xFFFFFFFF, status, 9, name, text)))


def opened():
    client = framing.RpcClientProtocol(PROTOCOL, framing.User("ann"))
    assert client.begin() == [framing.LoggedIn()]
    client.data_to_send()
    return client


def test_a_token_asks_for_a_login_first():
    client = framing.RpcClientProtocol(PROTOCOL, Token(b"id", b"pw", "K", ""))
    assert client.begin() == []
    assert not client.is_open
    with pytest.raises(LocalProtocolError, match="call of ping in state login"):
        client.call("ping", b"")


def test_answers_come_in_any_order():
    client = opened()
    first, second, third = (client.call("m", b"") for _ in range(3))
    assert len({first, second, third}) == 3
    client.receive_data(
        answer(third, b"3") + refusal(first, "org.example.OddException", "odd") + answer(second)
    )
    assert client.next_event() == framing.CallAnswered(third, delimited(b"3"))
    event = client.next_event()
    assert isinstance(event, framing.CallFailed)
    assert (event.call_id, event.error.args) == (first, ("server: OddException: odd",))
    assert client.next_event() == framing.CallAnswered(second, delimited(b""))
    assert client.next_event() is None


def test_what_came_before_the_end_is_still_reported():
    client = opened()
    first, _second = client.call("m", b""), client.call("m", b"")
    client.receive_data(
        answer(first) + refusal(-1, "org.apache.hadoop.ipc.StandbyException", status=framing.RpcStatus.FATAL)
    )
    assert client.next_event() == framing.CallAnswered(first, delimited(b""))
    with pytest.raises(StandbyError):
        client.next_event()
    assert not client.is_open
    assert client.next_event() is None


@pytest.mark.parametrize("call_id", [1, -1, -33, 0x7FFFFFFF])
def test_an_answer_nobody_asked_for_closes(call_id):
    client = opened()
    client.call("m", b"")
    client.receive_data(answer(call_id))
    with pytest.raises(RemoteProtocolError, match=f"answers call {call_id}"):
        client.next_event()
    with pytest.raises(LocalProtocolError, match="state closed"):
        client.call("m", b"")


def test_another_service_is_recognised_by_its_length():
    client = opened()
    client.receive_data(b"HTTP/1.1 400 Bad Request\r\n")
    with pytest.raises(RemoteProtocolError, match="port of a Hadoop RPC service"):
        client.next_event()


def test_a_long_frame_is_refused_before_it_comes():
    client = framing.RpcClientProtocol(PROTOCOL, framing.User("ann"), max_frame_bytes=1000)
    client.begin()
    client.receive_data((1001).to_bytes(4, "big"))
    with pytest.raises(RemoteProtocolError, match="1001 bytes, the limit is 1000"):
        client.next_event()


def test_misuse_is_our_own_error():
    client = opened()
    with pytest.raises(LocalProtocolError, match="begin"):
        client.begin()
    client.receive_data(answer(99))
    with pytest.raises(RemoteProtocolError):
        client.next_event()
    with pytest.raises(LocalProtocolError, match="closed connection"):
        client.receive_data(b"x")


class Reversal:
    """A protection that anybody can make: 7 bytes at a time, each message the other way round."""

    plain_bytes = 7

    def wrap(self, data):
        return data[::-1]

    unwrap = wrap


class ReversalLogin:
    """A login that the server ends at once."""

    is_blocking = False
    layer = Reversal()

    def begin(self):
        return SaslMessage(state=SaslState.NEGOTIATE)

    def receive(self, message):
        return None


def sasl(state=SaslState.WRAP, token=None):
    return answer(-33, encode(SaslMessage(state=state, token=token)))


def protected():
    client = framing.RpcClientProtocol(PROTOCOL, Token(b"", b"", "", ""), login=ReversalLogin())
    client.begin()
    client.receive_data(sasl(SaslState.SUCCESS))
    assert client.next_event() == framing.LoggedIn()
    client.data_to_send()
    return client


def contents(sent):
    """The tokens of protected frames."""
    found = []
    while sent:
        end = 4 + int.from_bytes(sent[:4], "big")
        header, at = decode_delimited(framing.RequestHeader, sent, 4)
        message, at = decode_delimited(SaslMessage, sent, at)
        assert (header.call_id, message.state, at) == (-33, SaslState.WRAP, end)
        found.append(message.token)
        sent = sent[end:]
    return found


def test_a_protected_frame_is_split_at_what_the_server_takes():
    client = protected()
    client.call("method", b"arguments")
    tokens = contents(client.data_to_send())
    assert all(1 <= len(token) <= 7 for token in tokens)
    whole = b"".join(token[::-1] for token in tokens)
    assert int.from_bytes(whole[:4], "big") == len(whole) - 4
    header, _ = decode_delimited(framing.RequestHeader, whole, 4)
    assert header.call_id == 0
    assert whole.endswith(delimited(b"arguments"))


@pytest.mark.parametrize("n_bytes", [1, 3, 1000])
def test_protected_messages_are_a_stream_of_frames(n_bytes):
    client = protected()
    first, second = client.call("m", b""), client.call("m", b"")
    stream = answer(first, b"1") + refusal(second, "org.example.OddException", "odd")
    for at in range(0, len(stream), n_bytes):
        client.receive_data(sasl(token=stream[at : at + n_bytes][::-1]))
    assert client.next_event() == framing.CallAnswered(first, delimited(b"1"))
    assert client.next_event().call_id == second
    assert client.next_event() is None


@pytest.mark.parametrize(
    "data",
    [
        answer(0, b"forged"),
        refusal(0, "org.apache.hadoop.yarn.exceptions.ApplicationAttemptNotFoundException"),
        refusal(-1, "org.apache.hadoop.ipc.StandbyException", status=framing.RpcStatus.FATAL),
        *(sasl(SaslState.SUCCESS), sasl(SaslState.CHALLENGE, b"x"), sasl(SaslState.WRAP)),
        answer(-33, encode(SaslMessage(state=SaslState.WRAP, token=b"x"))[:-1]),
        sasl(token=b"\xff\xff\xff\xff"),
        (1 << 31).to_bytes(4, "big"),
    ],
)
def test_nothing_unprotected_is_believed_after_a_protected_login(data):
    client = protected()
    client.call("m", b"")
    client.receive_data(data)
    with pytest.raises(RemoteProtocolError):
        client.next_event()
    assert not client.is_open


def test_a_message_of_a_login_is_short():
    client = framing.RpcClientProtocol(PROTOCOL, Token(b"id", b"pw", "K", ""))
    client.begin()
    client.receive_data((2 << 20).to_bytes(4, "big"))
    with pytest.raises(RemoteProtocolError, match="the limit is 1048576"):
        client.next_event()
