"""The batch protocol's bytes, against recordings of a real Torque."""

from __future__ import annotations

import re
from typing import Any, TypeAlias

import pytest

from tests.fixtures.torque_captures import recorded, recorded_replies, recorded_requests
from torque_sched.batch.torque import protocol as wire
from torque_sched.batch.torque.protocol.dis import (
    Garbled,
    Incomplete,
    encode_number,
    encode_string,
    read_number,
    read_string,
)
from torque_sched.errors import ForeignProtocolError, ProtocolError, UnknownRequestError

OPERATOR = "torquesched"
Decoder: TypeAlias = wire.RequestDecoder | wire.ReplyDecoder[wire.StatusObject]
REQUESTS = recorded_requests()
REPLIES = recorded_replies()


def of(decoder: Decoder, data: bytes) -> Any:
    """The one message of these bytes."""
    decoder.receive(data)
    message = decoder.next()
    assert message is not None
    assert decoder.is_between_messages
    return message


def request_of(data: bytes) -> wire.Request:
    return of(wire.RequestDecoder(), data)  # type: ignore[no-any-return]


def reply_of(data: bytes) -> wire.Reply[wire.StatusObject]:
    return of(wire.ReplyDecoder(wire.as_they_are), data)  # type: ignore[no-any-return]


def refused(decoder: Decoder, data: bytes, error: type[ProtocolError] = ProtocolError) -> str:
    """What is said of bytes that are no message."""
    decoder.receive(data)
    with pytest.raises(error) as caught:
        decoder.next()
    return str(caught.value)


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (0, b"+0"), (5, b"+5"), (-5, b"-5"), (12, b"2+12"), (123, b"3+123"), (-123, b"3-123"),
        (1234567890, b"210+1234567890"), (2**64 - 1, b"220+18446744073709551615"),
    ],
)  # fmt: skip
def test_a_number(value: int, data: bytes) -> None:
    assert encode_number(value) == data
    assert read_number(data, 0) == (value, len(data))


@pytest.mark.parametrize(
    "data", [b"x", b"+x", b"0+1", b"2+1x", b"1111111+1", b"3999+1", b"221+1", b" +1", b"2 +"]
)
def test_no_number(data: bytes) -> None:
    with pytest.raises(Garbled):
        read_number(data, 0)


def test_a_number_of_too_many_digits_is_not_written() -> None:
    with pytest.raises(ProtocolError):
        encode_number(10**20)


@pytest.mark.parametrize("text", ["", "queue", "torquesched", "Grüße & <x>\n\t\0", "\udcff\udc80"])
def test_a_string(text: str) -> None:
    data = encode_string(text)
    assert read_string(data, 0, 100) == (text, len(data))


def test_a_string_longer_than_the_bound_takes_no_memory() -> None:
    with pytest.raises(Garbled):
        read_string(b"9+999999999", 0, 1000)
    with pytest.raises(Garbled):
        read_string(b"-1", 0, 1000)
    with pytest.raises(Incomplete) as more:
        read_string(b"3+999abc", 0, 1000)
    assert more.value.end == 5 + 999


@pytest.mark.parametrize("name", [name for name in REQUESTS if not name.startswith("01")])
def test_every_recorded_request_comes_back_byte_by_byte(name: str) -> None:
    assert wire.encode_request(request_of(REQUESTS[name])) == REQUESTS[name]


def test_requests_are_those_of_torque_itself() -> None:
    qrun, disconnect = (part.data for part in recorded("21") if part.sender == "client")
    assert wire.encode_request(wire.RunJob(OPERATOR, "421.head", "node1:ppn=1")) == qrun
    assert wire.encode_request(wire.Disconnect(OPERATOR)) == disconnect


def test_what_the_recorded_requests_mean() -> None:
    def of(number: str) -> wire.Request:
        return request_of(recorded(number)[0].data)

    assert of("04") == wire.Status(wire.RequestType.STATUS_QUEUE, OPERATOR)
    assert of("05") == wire.Status(
        wire.RequestType.STATUS_NODE, OPERATOR, "", wire.wanted(["state", "np", "jobs"])
    )
    assert of("09") == wire.Status(
        wire.RequestType.STATUS_JOB, OPERATOR, "", wire.wanted(["job_state"]), "summarize_arrays"
    )
    assert of("10") == wire.SelectStatus(
        OPERATOR,
        (wire.Attribute("job_state", None, "C", wire.Operator.NOT_EQUAL),),
        wire.wanted(["job_state", "queue"]),
    )
    comment = wire.Attribute("comment", None, "Not Running: später, Grüße & <x>")
    assert of("11") == wire.ModifyJob(OPERATOR, "4.head", (comment,))
    assert of("12") == wire.RunJob(OPERATOR, "4.head", "node1:ppn=2+node2", is_async=False)
    assert of("14") == wire.RunJob(OPERATOR, "5.head", "node2:ppn=1")


def test_trqauthd_counts_single_digits() -> None:
    authenticate, disconnect = (part.data for part in recorded("01") if part.sender == "trqauthd"
                                and part.receiver == "server")  # fmt: skip
    assert request_of(authenticate) == wire.AuthenticateUser("alice", 57642)
    assert request_of(disconnect) == wire.Disconnect("alice")
    assert wire.encode_request(wire.AuthenticateUser("alice", 57642)) == authenticate.replace(
        b"1+5alice", b"+5alice"
    )


@pytest.mark.parametrize("name", REPLIES)
def test_every_recorded_reply_comes_back_byte_by_byte(name: str) -> None:
    assert wire.encode_reply(reply_of(REPLIES[name])) == REPLIES[name]


def test_what_the_recorded_replies_mean() -> None:
    done = reply_of(recorded("12")[1].data)
    assert done == wire.Reply()
    refused = reply_of(recorded("16")[1].data)
    assert (refused.code, refused.kind, refused.text) == (15064, wire.ReplyKind.TEXT, "Unknown node ")
    running = reply_of(recorded("13")[1].data).objects[0]
    assert (running.type, running.name) == (2, "4.head")
    host = wire.Attribute("exec_host", None, "node1/1-2+node2/0")
    assert running.attributes[-2:] == (host, wire.Attribute("Walltime", "Remaining", "3600"))


def test_two_replies_are_two_messages() -> None:
    decoder = wire.ReplyDecoder(wire.as_they_are)
    for part in recorded("20")[1:]:
        decoder.receive(part.data)
    assert decoder.next() == wire.Reply()
    assert not decoder.is_between_messages
    assert decoder.next() == wire.Reply()
    assert decoder.next() is None
    assert decoder.is_between_messages


def test_requests_together_are_one_after_the_other_or_are_thrown_away() -> None:
    decoder = wire.RequestDecoder()
    decoder.receive(REQUESTS["14-async-run 0"] + REQUESTS["03-status-server 0"])
    assert decoder.next() == request_of(REQUESTS["14-async-run 0"])
    assert decoder.discard() == len(REQUESTS["03-status-server 0"])
    assert decoder.is_between_messages


def test_another_protocol_is_told_from_a_garbled_message() -> None:
    for data in (b"+9+2", b"+4+1"):
        assert "protocol type" in refused(wire.RequestDecoder(), data, ForeignProtocolError)


def test_an_unknown_request_has_its_number() -> None:
    decoder = wire.RequestDecoder()
    decoder.receive(recorded("20")[0].data)
    with pytest.raises(UnknownRequestError, match="request 28") as unknown:
        decoder.next()
    assert unknown.value.number == 28
    with pytest.raises(UnknownRequestError):
        decoder.next()
    decoder.discard()
    decoder.receive(REQUESTS["14-async-run 0"])
    assert decoder.next() == request_of(REQUESTS["14-async-run 0"])


@pytest.mark.parametrize("number", [2, 3, 4, 8, 9])
def test_a_reply_of_another_kind_is_refused_by_its_name(number: int) -> None:
    told = refused(wire.ReplyDecoder(wire.as_they_are), b"+2+2+0+0" + encode_number(number) + b"+0")
    assert re.search(rf"kind {number} \(\w+\)", told)


def test_an_error_names_the_place() -> None:
    data = REPLIES["06-status-job-3 1"].replace(b"+5100mb+0", b"+5100mb?0")
    told = refused(wire.ReplyDecoder(wire.as_they_are), data)
    assert re.search(r"byte 8\d, object 0 \(4\.head\)", told)


def test_counts_are_bounded() -> None:
    tight = wire.MessageBounds(message_bytes=140, string_bytes=50, n_attributes=2, n_objects=2)
    for data, words in (
        (b"+2+2+0+0+6+3", "more than 2"),
        (b"+2+2+0+0+6-1", "more than 2"),
        (b"+2+2+0+0+6+1+2+64.head+3", "more than 2"),
        (b"+2+2+0+0+72+51", "more than 50"),
        (b"+2+2+0+0+5+3", "more than 2"),
        (b"+2+2+0+0+6+1+2+64.head+2" + 2 * (b"+0+1n+02+50" + b"b" * 50 + b"+0"), "140 bytes"),
    ):  # fmt: skip
        assert words in refused(wire.ReplyDecoder(wire.as_they_are, bounds=tight), data)


def test_a_reply_has_only_what_its_kind_has() -> None:
    with pytest.raises(ProtocolError):
        wire.encode_reply(wire.Reply(text="done"))


def test_the_line_to_trqauthd() -> None:
    line, answer = recorded("01")[0].data, recorded("01")[-1].data
    asked = wire.Authorisation("head", 15001, "alice", 4523, 57642)
    assert wire.encode_authorisation(asked) == line
    assert wire.decode_authorisation(line) == asked
    assert wire.decode_answer(answer) == wire.AuthorisationAnswer(0)
    assert wire.encode_answer(wire.AuthorisationAnswer(0)) == answer


def test_a_refusal_by_trqauthd() -> None:
    data = recorded("02")[1].data
    refused = wire.decode_answer(data)
    assert refused is not None
    assert refused.code == 15008
    assert refused.text.startswith("trqauthd unable to authenticate.")
    assert wire.encode_answer(refused) == data


def test_the_active_server() -> None:
    answer = wire.decode_answer(b"0|4|head|15001|", has_port=True)
    assert answer == wire.AuthorisationAnswer(0, "head", 15001)
    assert wire.encode_answer(answer) == b"0|4|head|15001|"


@pytest.mark.parametrize("data", [recorded("01")[-1].data, recorded("02")[1].data])
def test_an_answer_of_trqauthd_may_be_cut_anywhere(data: bytes) -> None:
    assert [wire.decode_answer(data[:cut]) for cut in range(len(data))] == [None] * len(data)
    line = recorded("01")[0].data
    assert [wire.decode_authorisation(line[:cut]) for cut in range(len(line))] == [None] * len(line)


@pytest.mark.parametrize(
    "asked",
    [
        wire.Authorisation("", 15001, "a", 1, 1), wire.Authorisation("h|d", 15001, "a", 1, 1),
        wire.Authorisation("h", 0, "a", 1, 1), wire.Authorisation("h", 15001, "a b", 1, 1),
        wire.Authorisation("h", 15001, "a", 0, 1), wire.Authorisation("h", 15001, "a", 1, 65536),
        wire.Authorisation("h", 15001, "a\n", 1, 1), wire.Authorisation("h" * 256, 15001, "a", 1, 1),
    ],
)  # fmt: skip
def test_what_would_garble_the_line_is_not_sent(asked: wire.Authorisation) -> None:
    with pytest.raises(ProtocolError):
        wire.encode_authorisation(asked)


@pytest.mark.parametrize(
    "data", [b"HTTP/1.1 400", b"x|0||", b"0|3|abcd|", b"0|99999|", b"0|1|a" + b"x" * 5000, b"12345678901|0||"]
)
def test_what_is_no_answer_of_trqauthd(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        wire.decode_answer(data)


@pytest.mark.parametrize("data", [b"1|5|head|15001|1|5|alice|4523|57642|", b"3|4|head|"])
def test_a_line_with_a_wrong_length_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        wire.decode_authorisation(data)
