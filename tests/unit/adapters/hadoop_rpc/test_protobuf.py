"""The codec against Hadoop's own definitions, against the protobuf library, and against damaged bytes."""

from __future__ import annotations

import dataclasses
import re
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yarn_accel.adapters.hadoop_rpc import framing, methods, protobuf, records, sasl, tokens
from yarn_accel.adapters.hadoop_rpc.framing import RequestHeader, ResponseHeader
from yarn_accel.adapters.hadoop_rpc.methods import (
    AllocateRequest,
    AllocateResponse,
    GetClusterNodesRequest,
    GetClusterNodesResponse,
    RegisterRequest,
)
from yarn_accel.adapters.hadoop_rpc.protobuf import (
    MAX_DEPTH,
    FieldSpec,
    FieldType,
    decode,
    decode_delimited,
    delimited,
    encode,
    schema_of,
    varint,
)
from yarn_accel.adapters.hadoop_rpc.records import (
    ApplicationId,
    NodeId,
    NodeReport,
    NodeState,
    ResourceAmount,
    RetryContext,
    YarnResource,
)
from yarn_accel.adapters.hadoop_rpc.tokens import Token
from yarn_accel.errors import LocalProtocolError, RemoteProtocolError

DESCRIPTORS = Path(__file__).parent / "data" / "descriptors-3.5.0.txt"
MODULES = (framing, methods, records, sasl, tokens)
NO_MESSAGES = {"User", "LoggedIn", "CallAnswered", "CallFailed", "Method", "TokenFile"}
MESSAGES = [
    cls
    for module in MODULES
    for cls in vars(module).values()
    if dataclasses.is_dataclass(cls) and isinstance(cls, type) and cls.__module__ == module.__name__
    if cls.__name__ not in NO_MESSAGES
]
ENUMS = [
    cls
    for module in MODULES
    for cls in vars(module).values()
    if isinstance(cls, type) and issubclass(cls, IntEnum) and cls.__module__ == module.__name__
]
OTHER_NAMES = {
    "StoredCredentials": "Credentials",
    "YarnContainer": "Container",
    "YarnResource": "Resource",
    "ApplicationSubmission": "ApplicationSubmissionContext",
    "AttemptId": "ApplicationAttemptId",
    "ConnectionContext": "IpcConnectionContext",
    "ContainerException": "ContainerExceptionMap",
    "CredentialsEntry": "CredentialsKV",
    "FinishRequest": "FinishApplicationMasterRequest",
    "FinishResponse": "FinishApplicationMasterResponse",
    "LaunchContext": "ContainerLaunchContext",
    "MapAttributesRequest": "NodesToAttributesMappingRequest",
    "MapAttributesResponse": "NodesToAttributesMappingResponse",
    "MethodHeader": "RequestHeader",
    "NamedResource": "StringLocalResourceMap",
    "NamedText": "StringStringMap",
    "NodeAttributes": "NodeToAttributes",
    "NodeResource": "NodeResourceMap",
    "NodeToken": "NMToken",
    "RegisterRequest": "RegisterApplicationMasterRequest",
    "RegisterResponse": "RegisterApplicationMasterResponse",
    "RequestHeader": "RpcRequestHeader",
    "ResourceAmount": "ResourceInformation",
    "ResourceType": "ResourceTypeInfo",
    "ResponseHeader": "RpcResponseHeader",
    "RetryContext": "ContainerRetryContext",
    "SaslMessage": "RpcSasl",
    "Url": "URL",
}
OTHER_ENUMS = {
    "ApplicationState": "YarnApplicationStateProto",
    "AttributeOperation": "AttributeMappingOperationTypeProto",
    "FinalStatus": "FinalApplicationStatusProto",
    "MasterCommand": "AMCommandProto",
    "ResourceTypeKind": "ResourceTypesProto",
    "RetryPolicy": "ContainerRetryPolicyProto",
    "RpcOperation": "OperationProto",
    "SaslState": "SaslState",
}
# Absent only where Hadoop's own code never leaves it out, and where without it nothing can be done.
FIELD = re.compile(r"  (\d+) (optional|required|repeated) (\S+) (\S+)")


def defined() -> tuple[dict[str, dict[int, tuple[str, str, str]]], dict[str, dict[str, int]]]:
    """Messages (number -> label, type, name) and enums (name -> value) by their simple names."""
    messages: dict[str, dict[int, tuple[str, str, str]]] = {}
    enums: dict[str, dict[str, int]] = {}
    for line in DESCRIPTORS.read_text(encoding="utf-8").splitlines():
        if line.startswith("message "):
            fields: dict[int, tuple[str, str, str]] = {}
            messages[line.split(".")[-1]] = fields
        elif line.startswith("enum "):
            head, values = line.split(": ", 1)
            enums[head.split(".")[-1]] = {n: int(v) for n, v in (each.split("=") for each in values.split())}
        elif found := FIELD.match(line):
            number, *rest = found.groups()
            fields[int(number)] = (rest[0], rest[1], rest[2])
    return messages, enums


def plain(name: str) -> str:
    return name.replace("_", "").lower()


def proto_type(spec: FieldSpec) -> str:
    if spec.type is None:
        return spec.kind.value
    if spec.kind is FieldType.ENUM:
        name = spec.type.__name__
        return OTHER_ENUMS.get(name, name + "Proto")
    name = spec.type.__name__
    return name if name == "SaslAuth" else OTHER_NAMES.get(name, name) + "Proto"


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_every_field_is_as_hadoop_defines_it(cls: type[Any]) -> None:
    messages, _ = defined()
    name = cls.__name__
    fields = messages[name if name == "SaslAuth" else OTHER_NAMES.get(name, name) + "Proto"]
    for attribute, spec in schema_of(cls).items():
        label, kind, name = fields[spec.number]
        assert plain(spec.proto_name or attribute) == plain(name)
        assert proto_type(spec) == kind
        assert spec.is_repeated == (label == "repeated")
        if label == "required":
            assert spec.is_required
    needed = {number for number, (label, _, _) in fields.items() if label == "required"}
    assert needed <= {spec.number for spec in schema_of(cls).values()}


@pytest.mark.parametrize("cls", ENUMS, ids=lambda cls: cls.__name__)
def test_every_enum_is_as_hadoop_defines_it(cls: type[IntEnum]) -> None:
    _, enums = defined()
    name = cls.__name__
    if name == "ExitStatus":  # a Java class of constants, see test_records
        return
    values = enums[OTHER_ENUMS.get(name, name + "Proto")]
    assert {member.value for member in cls} == set(values.values())
    for member in cls:
        theirs = next(key for key, value in values.items() if value == member.value)
        assert theirs.endswith(member.name)


def scalars(spec: FieldSpec) -> st.SearchStrategy[Any]:
    if spec.kind is FieldType.ENUM:
        assert spec.type is not None
        return st.sampled_from(list(spec.type))
    if spec.kind is FieldType.MESSAGE:
        assert spec.type is not None
        return messages_of(spec.type)
    return {
        FieldType.INT32: st.integers(-(1 << 31), (1 << 31) - 1),
        FieldType.SINT32: st.integers(-(1 << 31), (1 << 31) - 1),
        FieldType.INT64: st.integers(-(1 << 63), (1 << 63) - 1),
        FieldType.UINT32: st.integers(0, (1 << 32) - 1),
        FieldType.UINT64: st.integers(0, (1 << 64) - 1),
        FieldType.BOOL: st.booleans(),
        FieldType.FLOAT: st.floats(width=32, allow_nan=False),
        FieldType.STRING: st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
        FieldType.BYTES: st.binary(max_size=12),
    }[spec.kind]


def messages_of(cls: type[Any]) -> st.SearchStrategy[Any]:
    parts = {}
    for name, spec in schema_of(cls).items():
        values = st.deferred(lambda spec=spec: scalars(spec))  # type: ignore[misc]
        if spec.is_repeated:
            parts[name] = st.lists(values, max_size=2).map(tuple)
        elif spec.is_required or _default(cls, name) is not None:
            parts[name] = values
        else:
            parts[name] = st.none() | values
    return st.builds(cls, **parts)


def _default(cls: type[Any], name: str) -> Any:
    return next(each.default for each in dataclasses.fields(cls) if each.name == name)


EVERY = st.sampled_from(MESSAGES).flatmap(messages_of)


@given(EVERY)
def test_what_is_written_is_read(message: Any) -> None:
    data = encode(message)
    assert decode(type(message), data) == message
    assert decode_delimited(type(message), delimited(data) + b"rest") == (message, len(delimited(data)))


@given(EVERY)
def test_the_protobuf_library_reads_and_writes_the_same(message: Any) -> None:
    pytest.importorskip(
        "google.protobuf", reason="the protobuf library is not installed; it is only an oracle"
    )
    from tests.unit.adapters.hadoop_rpc.oracle import library_class

    data = encode(message)
    theirs = library_class(type(message)).FromString(data)
    assert theirs.SerializeToString() == data


def test_none_is_absent_and_everything_else_is_written() -> None:
    assert encode(RegisterRequest("", 0, "")) == b"\x0a\x00\x10\x00\x1a\x00"
    assert encode(AllocateRequest(response_id=0, progress=0.0)) == b"\x20\x00\x2d\x00\x00\x00\x00"
    assert b"\x28\x00" in encode(
        records.ResourceRequest(records.Priority(1), "*", YarnResource(1, 1), relax_locality=False)
    )


def test_an_absent_command_is_none_although_its_enum_begins_with_resync() -> None:
    """Read as its default, every heartbeat would order the master to register again."""
    assert decode(AllocateResponse, b"").command is None
    assert decode(AllocateResponse, b"\x08\x01").command is methods.MasterCommand.RESYNC


def test_unknown_fields_are_stepped_over() -> None:
    known = encode(NodeId("w1", 8041))
    unknown = (
        varint(99 << 3) + varint(1 << 63)
        + varint(98 << 3 | 2) + delimited(b"text")
        + varint(97 << 3 | 1) + bytes(8)
        + varint(96 << 3 | 5) + bytes(4)
    )  # fmt: skip
    assert decode(NodeId, unknown + known + unknown) == NodeId("w1", 8041)


def test_unknown_enum_values_are_as_if_absent() -> None:
    report = decode(NodeReport, encode(NodeReport(NodeId("w", 1))) + b"\x38\x63")
    assert report.state is None
    assert not report.is_usable
    assert decode(GetClusterNodesRequest, b"\x08\x02\x08\x63\x08\x05").states == (
        NodeState.RUNNING,
        NodeState.LOST,
    )


def test_packed_numbers_are_read_like_single_ones() -> None:
    assert decode(RetryContext, b"\x12\x03\x01\x02\x03").error_codes == (1, 2, 3)
    assert decode(RetryContext, b"\x10\x01\x10\x02").error_codes == (1, 2)


def test_text_that_is_not_utf8_is_repaired() -> None:
    assert decode(NodeId, b"\x0a\x02\xff\xff\x10\x01").host == "\ufffd\ufffd"


def test_the_last_of_two_values_counts() -> None:
    assert decode(NodeId, encode(NodeId("a", 1)) + encode(NodeId("b", 2))) == NodeId("b", 2)


@pytest.mark.parametrize(
    ("cls", "data", "complaint"),
    [
        (NodeId, b"\x0a", "cut short"),
        (NodeId, b"\x0a\x05ab", "5 bytes announced, 2 are there"),
        (NodeId, b"\x0a\xff\xff\xff\xff\x0f", "bytes announced"),
        (NodeId, b"\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "longer than ten bytes"),
        (NodeId, b"\x00\x00", "field number 0"),
        (NodeId, b"\x0b", "wire type 3"),
        (NodeId, b"\x0f", "wire type 7"),
        (NodeId, b"\x0a\x01a", "port is missing"),
        (ResponseHeader, b"\x08\x01", "status is missing"),
        (Token, b"", "identifier is missing"),
    ],
)
def test_damaged_bytes_are_refused(cls: type[Any], data: bytes, complaint: str) -> None:
    with pytest.raises(RemoteProtocolError, match=complaint):
        decode(cls, data)


def test_a_length_before_too_few_bytes_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="9 bytes announced, 2 are there"):
        decode_delimited(NodeId, b"\x09ab")


def test_many_tiny_fields_end_in_an_error_and_not_in_all_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf, "MAX_FIELDS", 100)
    assert len(decode(GetClusterNodesRequest, b"\x08\x02" * 50).states) == 50
    with pytest.raises(RemoteProtocolError, match="more than 100 fields"):
        decode(GetClusterNodesRequest, b"\x0a\x65" + b"\x02" * 101)
    with pytest.raises(RemoteProtocolError, match="more than 100 fields"):
        decode(NodeId, b"\x78\x00" * 101)


def test_nesting_ends() -> None:
    @dataclasses.dataclass(frozen=True)
    class Box:
        inner: Any = None

    spec = FieldSpec(1, FieldType.MESSAGE, type=Box, wire_type=2)
    Box.__dataclass_fields__["inner"].metadata = {"proto": spec}  # type: ignore[misc,assignment]

    def nested(depth: int) -> bytes:
        data = b""
        for _ in range(depth):
            data = b"\x0a" + delimited(data)
        return data

    decode(Box, nested(MAX_DEPTH))
    with pytest.raises(RemoteProtocolError, match=f"more than {MAX_DEPTH} levels"):
        decode(Box, nested(MAX_DEPTH + 1))


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (NodeId("w1", 1 << 31), "NodeId.port: 2147483648 is no int32"),
        (NodeId("w1", "1"), "NodeId.port: '1' is no int32"),  # type: ignore[arg-type]
        (NodeId(None, 1), "NodeId.host: missing"),  # type: ignore[arg-type]
        (NodeId(3, 1), "NodeId.host"),  # type: ignore[arg-type]
        (NodeId("\ud800", 1), "NodeId.host"),
        (ApplicationId(-(1 << 63) - 1, 1), "ApplicationId.cluster_timestamp"),
        (RequestHeader(call_id=1, client_id="text"), "RequestHeader.client_id"),  # type: ignore[arg-type]
        (YarnResource(1, 1, (NodeId("a", 1),)), "ResourceAmount expected, not NodeId"),  # type: ignore[arg-type]
        (AllocateRequest(progress=1e300), "AllocateRequest.progress"),
    ],
)
def test_what_does_not_fit_is_not_written(message: Any, complaint: str) -> None:
    with pytest.raises(LocalProtocolError, match=re.escape(complaint)):
        encode(message)


def test_ten_thousand_nodes_fit() -> None:
    amounts = tuple(ResourceAmount(name, 7, "") for name in ("memory-mb", "vcores", "acct/slot"))
    node = NodeReport(
        NodeId("node-1", 8041), "node-1:8042", "/r", YarnResource(0, 0, amounts), YarnResource(1, 1, amounts)
    )
    data = encode(GetClusterNodesResponse((node,) * 10_000))
    assert len(decode(GetClusterNodesResponse, data).reports) == 10_000
