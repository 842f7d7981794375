"""Every message survives encode and decode; every broken field is named."""

import json
import struct
from typing import Any

import pytest

from yarn_accel.errors import LocalProtocolError, RemoteProtocolError
from yarn_accel.wire import ITEM_BYTES, TensorSpec
from yarn_accel.wire import messages as msg
from yarn_accel.wire.schema import dump_header, json_encoder, load_header

SPEC = TensorSpec("<f8", (3, 4), "F")
INPUTS = (SPEC, msg.RemoteInput("hdfs:///x"), msg.RemoteInput("hdfs:///y", SPEC))
REQUEST = msg.Request(7, "job/1", "lu", {"a": [1, {"b": None}]}, INPUTS)
RESULT = msg.Result(7, {"n": 3}, (msg.NamedTensor("q", SPEC),), "w1", "cpu", {"total": 0.5}, 96, 96)
EXAMPLES = [
    REQUEST,
    msg.Request(0, "k", "echo", {}, (), "hdfs:///out.npz", 2.5, -8),
    msg.Request(1, "ключ", "echo", {}, (SPEC, SPEC), "", 0.0, 7, msg.Placement(3, (0, 128)), True),
    RESULT,
    RESULT._replace(placement=msg.Placement(3, (64,)), seconds={"read": 0.0, "total": 1.0}),
    msg.Failed(7, "rejected", "not-positive-definite", "order 3", "cure", True),
    msg.Busy(7, 0.5, "again: worker 1 died"),
    msg.Progress(7, "compute", 12.5),
    msg.Cancel(7),
    msg.Cancelled(2**53),
    msg.Lend(4, 1 << 20),
    msg.Lent(4, 9, 1 << 20),
    msg.GiveBack(9),
    msg.Ping(1),
    msg.Pong(1),
    msg.Drain("bye"),
    msg.StatsRequest(3),
    msg.Stats(3, {"done": 1}),
    msg.Goodbye("protocol-error", "why"),
    msg.UserTokens(1, (msg.HdfsToken(b"identifier", b"password", "ha-hdfs:ns1"),), "application_1_2"),
    msg.UserAccepted(1, "alice@KRB.TEST"),
]


def again(message):
    kind, varying_bytes, header, n_bytes = msg.encode(message)
    decoded, reported = msg.decode(kind, varying_bytes, header)
    assert reported == n_bytes
    return decoded


def parts_of(message):
    """kind, number, varying part, fixed part as a dict, open part."""
    kind, varying_bytes, header, _ = msg.encode(message)
    fixed, _, opened = header[8 + varying_bytes :].partition(b"\n")
    return kind, header[:8], header[8 : 8 + varying_bytes], json.loads(fixed), opened


def decode_parts(kind, number, varying, fixed, opened):
    header = number + varying + json.dumps(fixed).encode() + b"\n" + opened
    return msg.decode(kind, len(varying), header)


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_decode_gives_back_what_encode_took(message):
    assert again(message) == again(message) == message


def test_there_is_an_example_of_every_kind():
    assert {type(message) for message in EXAMPLES} == {layout.make for layout in msg.BY_KIND.values()}


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"operation": "rm -rf"}, "Request.operation"),
        ({"operation": "a\ud800"}, "half|surrogate|JSON"),
        ({"inputs": {}}, "Request.inputs"),
        ({"inputs": [1]}, r"Request.inputs\[0\]"),
        ({"inputs": [{"dtype": "<f8", "shape": [-1], "order": "C"}]}, r"Request.inputs\[0\].shape\[0\]"),
        ({"inputs": [{"dtype": "|O", "shape": [1], "order": "C"}]}, r"Request.inputs\[0\]: dtype"),
        ({"inputs": [{"dtype": ">f8", "shape": [1], "order": "C"}]}, r"Request.inputs\[0\]: dtype"),
        ({"inputs": [{"dtype": "<f8", "shape": [1] * 9, "order": "C"}]}, r"Request.inputs\[0\].shape"),
        ({"inputs": [{"dtype": "<f8", "shape": [1], "order": "K"}]}, r"Request.inputs\[0\]: order"),
        ({"inputs": [{"uri": "", "spec": None}]}, r"Request.inputs\[0\].uri"),
        ({"inputs": [{"uri": "hdfs:///x", "spec": None, "extra": 1}]}, r"Request.inputs\[0\].extra"),
        ({"inputs": [{"uri": "hdfs:///x", "spec": None}] * 65}, "Request.inputs"),
        ({"output_uri": "hdfs:///a\u0000"}, "Request.output_uri"),
        ({"priority": 8}, "Request.priority"),
        ({"priority": True}, "Request.priority"),
        ({"priority": 0.5}, "Request.priority"),
        ({"keep_inputs": 1}, "Request.keep_inputs"),
        ({"placement": {"segment": 1, "offsets": [0, 64]}}, "Request.placement: 2 offsets for 1 tensors"),
        ({"placement": {"segment": 1, "offsets": [32]}}, r"Request.placement.offsets\[0\]: 32"),
        ({"placement": {"segment": 1, "offsets": [-64]}}, r"Request.placement.offsets\[0\]"),
        ({"placement": {"segment": -1, "offsets": [0]}}, "Request.placement.segment"),
        ({"placement": {"offsets": [0]}}, "Request.placement.segment: missing"),
        ({"tenant": "root"}, "Request.tenant: unknown field; known: inputs, keep_inputs"),
        ({"operation": ...}, "Request.operation: missing"),
    ],
)
def test_a_broken_field_is_named(changes, place):
    kind, number, varying, fixed, opened = parts_of(REQUEST)
    fixed.update(changes)
    fixed = {name: value for name, value in fixed.items() if value is not ...}
    with pytest.raises(RemoteProtocolError, match=place):
        decode_parts(kind, number, varying, fixed, opened)


@pytest.mark.parametrize(
    ("varying", "place"),
    [
        (b"", "Request.deadline_s: missing"),
        (bytes(8), "Request.key"),
        (bytes(8) + b"\xff", "Request.key: not UTF-8"),
        (bytes(8) + b"a\0b", "Request.key"),
        (struct.pack("!d", -1.0) + b"k", "Request.deadline_s"),
        (struct.pack("!d", float("nan")) + b"k", "Request.deadline_s"),
        (struct.pack("!d", float("inf")) + b"k", "Request.deadline_s"),
    ],
)
def test_a_broken_varying_part_is_named(varying, place):
    kind, number, _, fixed, opened = parts_of(REQUEST)
    with pytest.raises(RemoteProtocolError, match=place):
        decode_parts(kind, number, varying, fixed, opened)


@pytest.mark.parametrize("varying", [b"", bytes(7), bytes(16), struct.pack("!d", float("nan"))])
def test_the_seconds_of_a_result_are_as_many_times_as_names(varying):
    kind, number, _, fixed, opened = parts_of(RESULT)
    with pytest.raises(RemoteProtocolError, match=r"Result\.seconds"):
        decode_parts(kind, number, varying, fixed, opened)


@pytest.mark.parametrize(
    ("kind", "varying_bytes", "header", "what"),
    [
        (23, 0, bytes(7), "shorter"),
        (23, 1, bytes(8), "shorter"),
        (23, 0, bytes(8) + b"{}", "fixed part"),
        (23, 1, bytes(9), "varying part"),
        (23, 0, bytes(8) + b"\n{}", "open part"),
        (27, 0, bytes(8), "open part"),
        (16, 9, bytes(16) + b"k{}", "missing"),
        (99, 0, bytes(8), "99"),
        (23, 0, b"\xff" * 8, r"Ping\.token"),
        (28, 0, bytes(7) + b'\1{"code":"x","message":""}', "Goodbye"),
    ],
)
def test_numbers_and_parts_that_a_message_cannot_have_are_refused(kind, varying_bytes, header, what):
    with pytest.raises(RemoteProtocolError, match=what):
        msg.decode(kind, varying_bytes, header)


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"[]", b"nonsense", b"\xff\xfe", b"[" * 100_000),
        *(b'{"x":NaN}', b'{"x":-Infinity}', b'{"x":1e999}', b'{"x":"\\ud800"}'),
        b'{"x":' + b"9" * 10_000 + b"}",
        b'{"x":' + b"[" * 32 + b"]" * 32 + b"}",
    ],
)
def test_an_open_part_that_is_no_bounded_json_object_is_refused(text):
    with pytest.raises(RemoteProtocolError):
        msg.decode(27, 0, bytes(8) + b"\n" + text)


@pytest.mark.parametrize(
    ("message", "what"),
    [
        (msg.Ping(-1), r"Ping\.token"),
        (msg.Ping(2**53 + 1), r"Ping\.token"),
        (msg.Ping("1"), r"Ping\.token"),
        (msg.GiveBack(None), r"GiveBack\.segment"),
        *((REQUEST._replace(params={"x": x}), "JSON") for x in (float("nan"), object(), "\ud800")),
        (REQUEST._replace(params={"x": 10**20}), "digits"),
        (REQUEST._replace(params=[]), "Request"),
        (REQUEST._replace(inputs=[SPEC]), "Request"),
        (REQUEST._replace(inputs=None), "Request"),
        (REQUEST._replace(key=""), r"Request\.key"),
        (REQUEST._replace(key="é" * 121), r"Request\.key"),
        (REQUEST._replace(key=b"k"), r"Request\.key"),
        (REQUEST._replace(deadline_s=-1.0), r"Request\.deadline_s"),
        (REQUEST._replace(deadline_s="soon"), "Request"),
        (REQUEST._replace(placement=msg.Placement(1, ())), "offsets"),
        (RESULT._replace(seconds={"total": float("nan")}), r"Result\.seconds"),
        (RESULT._replace(seconds={"x" * 33: 0.0}), r"Result\.seconds"),
        (RESULT._replace(seconds=None), "Result"),
        (msg.Busy(1, float("inf"), ""), "Busy"),
        (msg.Failed(1, "bad-kind", "code", ""), r"Failed\.kind"),
        ("hello", "not a message"),
    ],
)
def test_our_own_mistakes_are_found_before_they_leave(message, what):
    with pytest.raises(LocalProtocolError, match=what):
        msg.encode(message)


def deep(levels):
    value = 1
    for _ in range(levels):
        value = {"x": value}
    return value


def test_how_deep_json_may_nest_is_the_same_on_both_sides():
    message = REQUEST._replace(params=deep(32))
    assert again(message) == message
    with pytest.raises(LocalProtocolError, match="levels"):
        msg.encode(REQUEST._replace(params=deep(33)))


def test_what_is_remembered_belongs_to_nobody():
    """Equal headers are decoded once, yet each receiver may change what it got."""
    message = RESULT._replace(info={"k": [1]}, seconds={"total": 1.0})
    first = again(message)
    first.info["k"].append(2)
    first.seconds["total"] = 9.0
    assert again(message) == message


def test_numbers_that_compare_equal_are_not_mixed_up_in_params():
    for params in ({"x": 1}, {"x": True}, {"x": 1.0}, {"x": -0.0}, {"x": 0}):
        decoded = again(REQUEST._replace(params=params))
        assert repr(decoded.params) == repr(params)


def test_what_is_remembered_is_bounded():
    for index in range(2000):
        again(REQUEST._replace(inputs=(TensorSpec("|u1", (index,)),)))
    for remembered in (msg._remembered_text, msg._remembered_values):
        assert remembered.cache_info().currsize <= 512


def test_payload_bytes_counts_what_comes_by_value_only():
    assert [msg.encode(message)[3] for message in EXAMPLES[:6]] == [96, 0, 0, 96, 0, 0]


def test_element_sizes_are_numpys():
    np = pytest.importorskip("numpy")
    assert {name: np.dtype(name).itemsize for name in ITEM_BYTES} == ITEM_BYTES
    assert all(np.dtype(name).str == name for name in ITEM_BYTES)


def test_a_spec_knows_its_bytes():
    assert SPEC.nbytes == 96
    assert TensorSpec("<f4", ()).nbytes == 4
    assert TensorSpec("<f4", (0, 5)).nbytes == 0
    with pytest.raises(ValueError, match="shape"):
        TensorSpec("<f4", (2.0,))


@pytest.mark.parametrize("has_c", [True, False])
@pytest.mark.parametrize("sort_keys", [True, False])
def test_json_is_written_as_the_standard_library_does(monkeypatch, has_c, sort_keys):
    if not has_c:
        monkeypatch.setattr(json.encoder, "c_make_encoder", None)
    encode = json_encoder(sort_keys=sort_keys)
    value = {"b": [1, -0.0, 1e300, None, True, '\u00e9\n"', {}], "a": {"x": [[]], "1": 2**60}, "": ()}
    assert encode(value) == json.dumps(value, sort_keys=sort_keys, separators=(",", ":"))
    assert encode("text") == '"text"'
    for wrong in (float("nan"), [float("-inf")], {"a": object()}, {(1,): 2}):
        with pytest.raises((TypeError, ValueError)):
            encode(wrong)
    endless = []
    endless.append(endless)
    with pytest.raises((ValueError, RecursionError)):
        encode(endless)
    assert encode([]) == "[]"


@pytest.mark.parametrize("kind", [ValueError, TypeError, RecursionError, RemoteProtocolError])
def test_what_a_signal_handler_raises_meanwhile_is_not_taken_for_bad_json(kind: type[Exception]) -> None:
    class Interrupted(bytearray):
        def decode(self, *args: object) -> str:
            raise kind("mine")

    class InterruptedHeader(dict):
        def items(self) -> Any:
            raise kind("mine")

    with pytest.raises(kind, match=r"^mine$"):
        load_header(Interrupted(b"{}"), "Request")
    with pytest.raises(kind, match=r"^mine$"):
        dump_header(InterruptedHeader(a=1), "Request")
