"""The batch protocol's bytes, against recordings of a real Torque."""

from __future__ import annotations

import pytest

from tests.fixtures.torque_captures import recorded, recorded_replies, recorded_requests
from torque_sched.core.batch_protocol import (
    Attribute,
    AuthenticateUser,
    Authorisation,
    AuthorisationAnswer,
    DeleteJob,
    Disconnect,
    KnownObjects,
    MessageBounds,
    ModifyJob,
    Operator,
    Reply,
    ReplyDecoder,
    ReplyKind,
    Request,
    RequestDecoder,
    RequestType,
    RunJob,
    SelectStatus,
    Status,
    StatusObject,
    as_they_are,
    decode_answer,
    decode_authorisation,
    encode_answer,
    encode_authorisation,
    encode_reply,
    encode_request,
    wanted,
)
from torque_sched.core.batch_protocol.dis import (
    Garbled,
    Incomplete,
    encode_number,
    encode_string,
    read_number,
    read_string,
)
from torque_sched.errors import ForeignProtocolError, ProtocolError, UnknownRequestError

OPERATOR = "torquesched"
REQUESTS = recorded_requests()
REPLIES = recorded_replies()


def request_of(data: bytes) -> Request:
    decoder = RequestDecoder()
    decoder.receive(data)
    request = decoder.next()
    assert request is not None
    assert decoder.is_between_messages
    return request


def reply_of(data: bytes) -> Reply[StatusObject]:
    decoder = ReplyDecoder(as_they_are)
    decoder.receive(data)
    reply = decoder.next()
    assert reply is not None
    assert decoder.is_between_messages
    return reply


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


def test_a_count_of_one_is_read_as_trqauthd_writes_it() -> None:
    assert read_number(b"1+5", 0) == (5, 3)


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
    assert encode_request(request_of(REQUESTS[name])) == REQUESTS[name]


def test_requests_are_those_of_torque_itself() -> None:
    qrun, disconnect = (part.data for part in recorded("21") if part.sender == "client")
    assert encode_request(RunJob(OPERATOR, "421.head", "node1:ppn=1")) == qrun
    assert encode_request(Disconnect(OPERATOR)) == disconnect


def test_what_the_recorded_requests_mean() -> None:
    def of(number: str) -> Request:
        return request_of(recorded(number)[0].data)

    assert of("04") == Status(RequestType.STATUS_QUEUE, OPERATOR)
    assert of("05") == Status(RequestType.STATUS_NODE, OPERATOR, "", wanted(["state", "np", "jobs"]))
    assert of("09") == Status(RequestType.STATUS_JOB, OPERATOR, "", wanted(["job_state"]), "summarize_arrays")
    assert of("10") == SelectStatus(
        OPERATOR, (Attribute("job_state", None, "C", Operator.NOT_EQUAL),), wanted(["job_state", "queue"])
    )
    comment = Attribute("comment", None, "Not Running: später, Grüße & <x>")
    assert of("11") == ModifyJob(OPERATOR, "4.head", (comment,))
    assert of("12") == RunJob(OPERATOR, "4.head", "node1:ppn=2+node2", is_async=False)
    assert of("14") == RunJob(OPERATOR, "5.head", "node2:ppn=1")


def test_trqauthd_counts_single_digits() -> None:
    authenticate, disconnect = (part.data for part in recorded("01") if part.sender == "trqauthd"
                                and part.receiver == "server")  # fmt: skip
    assert request_of(authenticate) == AuthenticateUser("alice", 57642)
    assert request_of(disconnect) == Disconnect("alice")
    assert encode_request(AuthenticateUser("alice", 57642)) == authenticate.replace(b"1+5alice", b"+5alice")


def test_a_deletion() -> None:
    data = b"+2+2+62+11torquesched+1+2+64.head+0+1+8why not?"
    assert request_of(data) == DeleteJob(OPERATOR, "4.head", extension="why not?")
    assert encode_request(request_of(data)) == data


@pytest.mark.parametrize("name", REPLIES)
def test_every_recorded_reply_comes_back_byte_by_byte(name: str) -> None:
    decoder = ReplyDecoder(as_they_are)
    decoder.receive(REPLIES[name])
    reply = decoder.next()
    assert reply is not None
    assert encode_reply(reply) == REPLIES[name]


def test_what_the_recorded_replies_mean() -> None:
    done = reply_of(recorded("12")[1].data)
    assert done == Reply()
    refused = reply_of(recorded("16")[1].data)
    assert (refused.code, refused.kind, refused.text) == (15064, ReplyKind.TEXT, "Unknown node ")
    running = reply_of(recorded("13")[1].data).objects[0]
    assert (running.type, running.name) == (2, "4.head")
    assert running.attributes[-2:] == (
        Attribute("exec_host", None, "node1/1-2+node2/0"), Attribute("Walltime", "Remaining", "3600"),
    )  # fmt: skip


def test_two_replies_are_two_messages() -> None:
    decoder = ReplyDecoder(as_they_are)
    for part in recorded("20")[1:]:
        decoder.receive(part.data)
    assert decoder.next() == Reply()
    assert not decoder.is_between_messages
    assert decoder.next() == Reply()
    assert decoder.next() is None
    assert decoder.is_between_messages


@pytest.mark.parametrize("name", REPLIES)
def test_a_reply_may_be_cut_anywhere(name: str) -> None:
    data = REPLIES[name]
    whole = reply_of(data)
    for cut in range(1, len(data)):
        decoder = ReplyDecoder(as_they_are)
        decoder.receive(data[:cut])
        assert decoder.next() is None
        assert not decoder.is_between_messages
        decoder.receive(data[cut:])
        assert decoder.next() == whole


@pytest.mark.parametrize("name", [*REQUESTS, *REPLIES])
def test_a_message_may_come_byte_by_byte(name: str) -> None:
    data = REQUESTS.get(name) or REPLIES[name]
    decoder = RequestDecoder() if name in REQUESTS else ReplyDecoder(as_they_are)
    for at in range(len(data)):
        assert decoder.next() is None
        decoder.receive(data[at : at + 1])
    assert decoder.next() == (request_of(data) if name in REQUESTS else reply_of(data))


def test_requests_together_are_one_after_the_other_or_are_thrown_away() -> None:
    decoder = RequestDecoder()
    decoder.receive(REQUESTS["14-async-run 0"] + REQUESTS["03-status-server 0"])
    assert decoder.next() == request_of(REQUESTS["14-async-run 0"])
    assert decoder.discard() == len(REQUESTS["03-status-server 0"])
    assert decoder.is_between_messages


def test_another_protocol_is_told_from_a_garbled_message() -> None:
    for data in (b"+9+2", b"+4+1"):
        decoder = RequestDecoder()
        decoder.receive(data)
        with pytest.raises(ForeignProtocolError, match="protocol type"):
            decoder.next()


def test_an_unknown_request_has_its_number() -> None:
    decoder = RequestDecoder()
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
    decoder = ReplyDecoder(as_they_are)
    decoder.receive(b"+2+2+0+0" + encode_number(number) + b"+0")
    with pytest.raises(ProtocolError, match=rf"kind {number} \(\w+\)"):
        decoder.next()


def test_an_error_names_the_place() -> None:
    data = REPLIES["06-status-job-3 1"].replace(b"+5100mb+0", b"+5100mb?0")
    decoder = ReplyDecoder(as_they_are)
    decoder.receive(data)
    with pytest.raises(ProtocolError, match=r"byte 8\d, object 0 \(4\.head\)"):
        decoder.next()


def test_counts_are_bounded() -> None:
    tight = MessageBounds(message_bytes=140, string_bytes=50, n_attributes=2, n_objects=2)
    for data, words in (
        (b"+2+2+0+0+6+3", "more than 2"),
        (b"+2+2+0+0+6-1", "more than 2"),
        (b"+2+2+0+0+6+1+2+64.head+3", "more than 2"),
        (b"+2+2+0+0+72+51", "more than 50"),
        (b"+2+2+0+0+5+3", "more than 2"),
        (b"+2+2+0+0+6+1+2+64.head+2" + 2 * (b"+0+1n+02+50" + b"b" * 50 + b"+0"), "140 bytes"),
    ):  # fmt: skip
        decoder = ReplyDecoder(as_they_are, bounds=tight)
        decoder.receive(data)
        with pytest.raises(ProtocolError, match=words):
            decoder.next()


def job(number: int, state: str = "Q") -> StatusObject:
    return StatusObject(2, f"{number}.head", (Attribute("job_state", None, state),))


def listed(*jobs: StatusObject) -> bytes:
    return encode_reply(Reply(kind=ReplyKind.OBJECTS, objects=jobs))


def test_unchanged_objects_are_not_built_again() -> None:
    built: list[str] = []

    def build(each: StatusObject) -> tuple[str, str]:
        built.append(each.name)
        return each.name, each.attributes[0].value

    known: KnownObjects[tuple[str, str]] = KnownObjects()
    decoder = ReplyDecoder(build, known)

    def look(*jobs: StatusObject) -> list[str]:
        built.clear()
        decoder.receive(listed(*jobs))
        reply = decoder.next()
        assert reply is not None
        assert reply.objects == tuple((each.name, each.attributes[0].value) for each in jobs)
        return list(built)

    jobs = [job(n) for n in range(10)]
    assert len(look(*jobs)) == 10
    assert look(*jobs) == []
    assert look(*jobs[:4], job(4, "R"), *jobs[5:]) == ["4.head"]
    assert look(*jobs[:3], *jobs[6:]) == ["6.head"], "where some are gone, one is read to find the place"
    assert look(*jobs[:3], *jobs[6:], job(20), job(21)) == ["20.head", "21.head"]
    known.clear()
    assert len(look(*jobs)) == 10


def test_a_reply_that_breaks_off_leaves_what_is_known() -> None:
    known: KnownObjects[StatusObject] = KnownObjects()
    decoder = ReplyDecoder(as_they_are, known)
    decoder.receive(listed(job(1), job(2)))
    assert decoder.next() is not None
    decoder.receive(listed(job(3), job(4))[:-3])
    assert decoder.next() is None
    assert [name for _, name, _ in known.entries] == ["1.head", "2.head"]


def test_a_reply_has_only_what_its_kind_has() -> None:
    with pytest.raises(ProtocolError):
        encode_reply(Reply(text="done"))


def test_the_line_to_trqauthd() -> None:
    line, answer = recorded("01")[0].data, recorded("01")[-1].data
    asked = Authorisation("head", 15001, "alice", 4523, 57642)
    assert encode_authorisation(asked) == line
    assert decode_authorisation(line) == asked
    assert decode_answer(answer) == AuthorisationAnswer(0)
    assert encode_answer(AuthorisationAnswer(0)) == answer


def test_a_refusal_by_trqauthd() -> None:
    data = recorded("02")[1].data
    refused = decode_answer(data)
    assert refused is not None
    assert refused.code == 15008
    assert refused.text.startswith("trqauthd unable to authenticate.")
    assert encode_answer(refused) == data


def test_the_active_server() -> None:
    answer = decode_answer(b"0|4|head|15001|", has_port=True)
    assert answer == AuthorisationAnswer(0, "head", 15001)
    assert encode_answer(answer) == b"0|4|head|15001|"


@pytest.mark.parametrize("data", [recorded("01")[-1].data, recorded("02")[1].data])
def test_an_answer_of_trqauthd_may_be_cut_anywhere(data: bytes) -> None:
    assert [decode_answer(data[:cut]) for cut in range(len(data))] == [None] * len(data)
    line = recorded("01")[0].data
    assert [decode_authorisation(line[:cut]) for cut in range(len(line))] == [None] * len(line)


def test_lengths_to_trqauthd_are_of_bytes() -> None:
    assert encode_authorisation(Authorisation("kö", 1, "jürgen", 2, 3)) == "1|3|kö|1|1|7|jürgen|2|3|".encode()


@pytest.mark.parametrize(
    "asked",
    [
        Authorisation("", 15001, "a", 1, 1), Authorisation("h|d", 15001, "a", 1, 1),
        Authorisation("h", 0, "a", 1, 1), Authorisation("h", 15001, "a b", 1, 1),
        Authorisation("h", 15001, "a", 0, 1), Authorisation("h", 15001, "a", 1, 65536),
        Authorisation("h", 15001, "a\n", 1, 1), Authorisation("h" * 256, 15001, "a", 1, 1),
    ],
)  # fmt: skip
def test_what_would_garble_the_line_is_not_sent(asked: Authorisation) -> None:
    with pytest.raises(ProtocolError):
        encode_authorisation(asked)


@pytest.mark.parametrize(
    "data", [b"HTTP/1.1 400", b"x|0||", b"0|3|abcd|", b"0|99999|", b"0|1|a" + b"x" * 5000, b"12345678901|0||"]
)
def test_what_is_no_answer_of_trqauthd(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_answer(data)


@pytest.mark.parametrize("data", [b"1|5|head|15001|1|5|alice|4523|57642|", b"3|4|head|"])
def test_a_line_with_a_wrong_length_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_authorisation(data)
