"""A user's HDFS tokens travel only where both ends agreed, within bounds, and are never shown."""

import json

import pytest

from yarn_accel.errors import LocalProtocolError, RemoteProtocolError
from yarn_accel.wire import USER_TOKENS, HdfsToken, Ping, Request, UserAccepted, UserTokens
from yarn_accel.wire.messages import decode, encode

AGREED = {"capabilities": (USER_TOKENS,)}
TOKEN = HdfsToken(b"\0\x0ealice@KRB.TEST", b"\x11\x22SECRET", "10.247.0.1:8020")
TOKENS = UserTokens(1, (TOKEN,), "application_1764000000000_0007")
ACCEPTED = UserAccepted(1, "alice@KRB.TEST")
#: The frames of two connections whose nonces are ``cc...`` and ``ss...``, as the first release sent them.
GOLDEN = {
    "client": (
        "59412000000000a300000000000000009e9dbeae2208871efa4f3ca1dea2007a00000000000000017b226170706c6963"
        "6174696f6e223a226170706c69636174696f6e5f313736343030303030303030305f30303037222c22746f6b656e7322"
        "3a5b7b226964656e746966696572223a224141356862476c6a5a55424c556b49755645565456413d3d222c2270617373"
        "776f7264223a2245534a5452554e535256513d222c2273657276696365223a2231302e3234372e302e313a3830323022"
        "7d5d7d"
    ),
    "server": (
        "594121000000002600000000000000009428a06548ca142b42f257ab454f035600000000000000017b227072696e6369"
        "70616c223a22616c696365404b52422e54455354227d"
    ),
}


def agreed(make_pair):
    return make_pair(client_options={**AGREED, "checksums": ("crc32",)}, server_options=AGREED).open()


def test_tokens_are_handed_over_and_answered(make_pair):
    pair = agreed(make_pair)
    assert pair.tell(pair.client, pair.server, TOKENS) == TOKENS
    assert pair.tell(pair.server, pair.client, ACCEPTED) == ACCEPTED


@pytest.mark.parametrize("only", ["client", "server", "nobody"])
@pytest.mark.parametrize(("who", "message"), [("client", TOKENS), ("server", ACCEPTED)])
def test_without_agreement_no_tokens_are_said_or_heard(make_pair, only, who, message):
    """An end of an earlier release names no such capability."""
    options = {"client": {}, "server": {}, only: AGREED}
    pair = make_pair(client_options=options["client"], server_options=options["server"]).open()
    ends = (pair.client, pair.server)
    sender, receiver = ends if who == "client" else ends[::-1]
    with pytest.raises(LocalProtocolError, match="does not send"):
        sender.send(message)
    kind, varying_bytes, header, n_bytes = encode(message)
    receiver.receive_data(pair.forge(sender, kind, header, n_bytes, varying_bytes))
    with pytest.raises(RemoteProtocolError, match="not accepted"):
        receiver.next_event()


def test_frames_that_were_recorded_are_taken_by_nobody_else(make_pair):
    """The tag of a frame fits one connection: a message that was seen cannot be sent to another server."""
    recorded = agreed(make_pair)
    frame = recorded.say(recorded.client, TOKENS)
    other = make_pair(nonces=(b"c" * 32, b"t" * 32), client_options=AGREED, server_options=AGREED).open()
    other.server.receive_data(frame)
    with pytest.raises(RemoteProtocolError, match="replayed"):
        other.server.next_event()


@pytest.mark.parametrize(("who", "message"), [("client", TOKENS), ("server", ACCEPTED)])
def test_the_frames_stay_what_they_are(make_pair, who, message):
    pair = agreed(make_pair)
    assert pair.say(getattr(pair, who), message).hex() == GOLDEN[who]


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": []},
        {"tokens": ["U0VDUkVU"]},
        {"tokens": "U0VDUkVU"},
        {"tokens": [{"identifier": "U0VDUkVU", "password": "", "service": ""}]},
        {"tokens": [{"identifier": "", "password": "U0VDUkVU", "service": ""}]},
        {"tokens": [{"identifier": "U0VDUkVU", "password": "U0VDUkVU", "service": "x" * 257}]},
        {"tokens": [{"identifier": "U0VDUkVU", "password": "!U0VDUkVU", "service": ""}]},
        {"tokens": [{"identifier": "U0VDUkVU", "password": ["U0VDUkVU"], "service": ""}]},
        {"tokens": [{"identifier": "U0VDUkVU" * 683, "password": "U0VDUkVU", "service": ""}]},
        {"tokens": [{"identifier": "U0VDUkVU", "password": "U0VDUkVU" * 43, "service": ""}]},
        {"tokens": [{"identifier": "U0VDUkVU", "password": "U0VDUkVU", "service": ""}] * 17},
        {"tokens": [{"identifier": "U0VDUkVU", "password": "U0VDUkVU"}]},
        {"application": "application_1"},
        {"application": "U0VDUkVU" * 100},
    ],
)
def test_what_is_out_of_bounds_is_refused_without_being_repeated(change):
    fixed = {"tokens": [{"identifier": "aQ==", "password": "aQ==", "service": ""}], "application": ""}
    header = bytes(7) + b"\1" + json.dumps({**fixed, **change}).encode()
    with pytest.raises(RemoteProtocolError, match="UserTokens") as caught:
        decode(32, 0, header)
    assert "application" in change or "U0VDUkVU" not in str(caught.value)


@pytest.mark.parametrize("token", [HdfsToken(b"", b"p"), HdfsToken(b"i", b"p" * 257), HdfsToken(b"i", b"")])
def test_a_token_that_no_server_takes_does_not_leave(token):
    with pytest.raises(LocalProtocolError, match=r"UserTokens\.tokens"):
        encode(UserTokens(1, (token,)))


def test_nothing_secret_is_in_the_text_of_a_message():
    shown = f"{TOKENS!r}{TOKENS}{TOKEN!r}{[TOKEN]}"
    assert "SECRET" not in shown
    assert "alice@" not in shown


def test_other_messages_go_on_as_before(make_pair):
    pair = agreed(make_pair)
    request = Request(1, "k", "echo", {}, ())
    assert pair.tell(pair.client, pair.server, Ping(3)) == Ping(3)
    assert pair.tell(pair.client, pair.server, request) == request
