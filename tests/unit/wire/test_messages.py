"""Every message survives encode and decode; every broken field is named."""

import dataclasses
import json

import pytest

from yarn_accel.errors import LocalProtocolError, RemoteProtocolError
from yarn_accel.wire import messages as msg
from yarn_accel.wire.tensors import ITEM_BYTES, TensorSpec

SPEC = TensorSpec("<f8", (3, 4), "F")
EXAMPLES = [
    msg.Request(
        7,
        "job/1",
        "lu",
        {"a": [1, {"b": None}]},
        (SPEC, msg.RemoteInput("hdfs:///x"), msg.RemoteInput("hdfs:///y", SPEC)),
    ),
    msg.Request(0, "k", "echo", {}, (), "hdfs:///out.npz", 2.5),
    msg.Result(7, {"n": 3}, (msg.NamedTensor("q", SPEC),), "w1", "cpu", {"total": 0.5}, 96, 96),
    msg.Failed(7, "rejected", "not-positive-definite", "order 3", "cure", True),
    msg.Busy(7, 0.5, "shutting down"),
    msg.Progress(7, "compute", 12.5),
    msg.Cancel(7),
    msg.Cancelled(7),
    msg.Ping(1),
    msg.Pong(1),
    msg.Drain("bye"),
    msg.StatsRequest(3),
    msg.Stats(3, {"done": 1}),
    msg.Goodbye("protocol-error", "why"),
]


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_decode_gives_back_what_encode_took(message):
    assert msg.decode(*msg.encode(message)) == message


def test_there_is_an_example_of_every_kind():
    assert {type(message) for message in EXAMPLES} == set(msg.KINDS.values())


def _request_header(**changes):
    header = json.loads(msg.encode(EXAMPLES[0])[1])
    header.update(changes)
    return json.dumps({name: value for name, value in header.items() if value is not ...}).encode()


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"id": "7"}, "Request.id"),
        ({"id": True}, "Request.id"),
        ({"id": -1}, "Request.id"),
        ({"key": ""}, "Request.key"),
        ({"key": "x" * 257}, "Request.key"),
        ({"key": "a\u0000b"}, "Request.key"),
        ({"key": "\ud800"}, "Request.key"),
        ({"operation": "rm -rf"}, "Request.operation"),
        ({"params": []}, "Request.params"),
        ({"inputs": {}}, "Request.inputs"),
        ({"inputs": [1]}, r"Request.inputs\[0\]"),
        ({"inputs": [{"dtype": "<f8", "shape": [-1], "order": "C"}]}, r"Request.inputs\[0\].shape\[0\]"),
        ({"inputs": [{"dtype": "|O", "shape": [1], "order": "C"}]}, r"Request.inputs\[0\]: dtype"),
        ({"inputs": [{"dtype": ">f8", "shape": [1], "order": "C"}]}, r"Request.inputs\[0\]: dtype"),
        ({"inputs": [{"dtype": "<f8", "shape": [1] * 9, "order": "C"}]}, r"Request.inputs\[0\].shape"),
        ({"inputs": [{"dtype": "<f8", "shape": [1], "order": "K"}]}, r"Request.inputs\[0\]: order"),
        ({"inputs": [{"uri": ""}]}, r"Request.inputs\[0\].uri"),
        ({"inputs": [{"uri": "hdfs:///x", "extra": 1}]}, r"Request.inputs\[0\].extra"),
        ({"inputs": [{"uri": "hdfs:///x"}] * 65}, "Request.inputs"),
        ({"deadline_s": -1}, "Request.deadline_s"),
        ({"tenant": "root"}, "Request.tenant: unknown field; known: deadline_s, id"),
        ({"operation": ...}, "Request.operation: missing"),
    ],
)
def test_a_broken_field_is_named(changes, place):
    with pytest.raises(RemoteProtocolError, match=place):
        msg.decode(16, _request_header(**changes))


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"nonsense",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"token":NaN}',
        b'{"token":' + b"9" * 10_000 + b"}",
    ],
)
def test_a_header_that_is_no_bounded_json_object_is_refused(header):
    with pytest.raises(RemoteProtocolError):
        msg.decode(23, header)


def test_an_unknown_kind_is_refused():
    with pytest.raises(RemoteProtocolError, match="99"):
        msg.decode(99, b"{}")


def test_our_own_mistakes_are_found_before_they_leave():
    with pytest.raises(LocalProtocolError, match=r"Ping\.token"):
        msg.encode(msg.Ping(-1))
    with pytest.raises(LocalProtocolError, match="JSON"):
        msg.encode(dataclasses.replace(EXAMPLES[0], params={"x": float("nan")}))
    with pytest.raises(LocalProtocolError, match="JSON"):
        msg.encode(dataclasses.replace(EXAMPLES[0], params={"x": object()}))
    with pytest.raises(LocalProtocolError, match="not a message"):
        msg.encode("hello")


def test_payload_bytes_counts_what_comes_by_value_only():
    assert msg.payload_bytes(EXAMPLES[0]) == 96
    assert msg.payload_bytes(EXAMPLES[2]) == 96
    assert msg.payload_bytes(EXAMPLES[4]) == 0


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
