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
from yarn_accel.adapters.hadoop_rpc.tokens import Token
from yarn_accel.errors import LocalProtocolError, RemoteProtocolError

DESCRIPTORS = Path(__file__).parent / "data" / "descriptors-3.5.0.txt"
MODULES = (framing, methods, records, sasl, tokens)
NO_MESSAGES = {"User", "LoggedIn", "CallAnswered", "CallFailed", "Method", "TokenFile", "TokenOwner"}
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
    if cls is not sasl.Protection  # RFC 4752's bits
]


def renamed(table):
    """Our names -> Hadoop's."""
    return dict(each.split("=") for each in table.split())


OTHER_NAMES = renamed("""
    YarnContainer=Container YarnResource=Resource
    ApplicationSubmission=ApplicationSubmissionContext AttemptId=ApplicationAttemptId
    ConnectionContext=IpcConnectionContext ContainerException=ContainerExceptionMap
    FinishRequest=FinishApplicationMasterRequest
    FinishResponse=FinishApplicationMasterResponse LaunchContext=ContainerLaunchContext
    MapAttributesRequest=NodesToAttributesMappingRequest
    MapAttributesResponse=NodesToAttributesMappingResponse MethodHeader=RequestHeader
    NamedResource=StringLocalResourceMap NamedText=StringStringMap NodeAttributes=NodeToAttributes
    NodeResource=NodeResourceMap NodeToken=NMToken RegisterRequest=RegisterApplicationMasterRequest
    RegisterResponse=RegisterApplicationMasterResponse RequestHeader=RpcRequestHeader
    ResourceAmount=ResourceInformation ResourceType=ResourceTypeInfo ResponseHeader=RpcResponseHeader
    RetryContext=ContainerRetryContext SaslMessage=RpcSasl Url=URL
""")
OTHER_ENUMS = renamed("""
    ApplicationState=YarnApplicationStateProto AttributeOperation=AttributeMappingOperationTypeProto
    FinalStatus=FinalApplicationStatusProto MasterCommand=AMCommandProto
    ResourceTypeKind=ResourceTypesProto RetryPolicy=ContainerRetryPolicyProto RpcOperation=OperationProto
    SaslState=SaslState
""")
# Absent only where Hadoop's own code never leaves it out, and where without it nothing can be done.
FIELD = re.compile(r"  (\d+) (optional|required|repeated) (\S+) (\S+)")


def defined():
    """Messages (number -> label, type, name) and enums (name -> value) by their simple names."""
    messages = {}
    enums = {}
    for line in DESCRIPTORS.read_text(encoding="utf-8").splitlines():
        if line.startswith("message "):
            fields = {}
            messages[line.split(".")[-1]] = fields
        elif line.startswith("enum "):
            head, values = line.split(": ", 1)
            enums[head.split(".")[-1]] = {n: int(v) for n, v in (each.split("=") for each in values.split())}
        elif found := FIELD.match(line):
            number, *rest = found.groups()
            fields[int(number)] = (rest[0], rest[1], rest[2])
    return messages, enums


def plain(name):
    return name.replace("_", "").lower()


def proto_type(spec):
    if spec.type is None:
        return spec.kind.value
    if spec.kind is protobuf.FieldType.ENUM:
        name = spec.type.__name__
        return OTHER_ENUMS.get(name, name + "Proto")
    name = spec.type.__name__
    return name if name == "SaslAuth" else OTHER_NAMES.get(name, name) + "Proto"


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_every_field_is_as_hadoop_defines_it(cls):
    messages, _ = defined()
    name = cls.__name__
    fields = messages[name if name == "SaslAuth" else OTHER_NAMES.get(name, name) + "Proto"]
    for attribute, spec in protobuf.schema_of(cls).items():
        label, kind, name = fields[spec.number]
        assert plain(spec.proto_name or attribute) == plain(name)
        assert proto_type(spec) == kind
        assert spec.is_repeated == (label == "repeated")
        if label == "required":
            assert spec.is_required
    needed = {number for number, (label, _, _) in fields.items() if label == "required"}
    assert needed <= {spec.number for spec in protobuf.schema_of(cls).values()}


@pytest.mark.parametrize("cls", ENUMS, ids=lambda cls: cls.__name__)
def test_every_enum_is_as_hadoop_defines_it(cls):
    _, enums = defined()
    name = cls.__name__
    if name == "ExitStatus":  # a Java class of constants, see test_records
        return
    values = enums[OTHER_ENUMS.get(name, name + "Proto")]
    assert {member.value for member in cls} == set(values.values())
    for member in cls:
        theirs = next(key for key, value in values.items() if value == member.value)
        assert theirs.endswith(member.name)


def scalars(spec):
    if spec.kind is protobuf.FieldType.ENUM:
        assert spec.type is not None
        return st.sampled_from(list(spec.type))
    if spec.kind is protobuf.FieldType.MESSAGE:
        assert spec.type is not None
        return messages_of(spec.type)
    return {
        protobuf.FieldType.INT32: st.integers(-(1 << 31), (1 << 31) - 1),
        protobuf.FieldType.SINT32: st.integers(-(1 << 31), (1 << 31) - 1),
        protobuf.FieldType.INT64: st.integers(-(1 << 63), (1 << 63) - 1),
        protobuf.FieldType.UINT32: st.integers(0, (1 << 32) - 1),
        protobuf.FieldType.UINT64: st.integers(0, (1 << 64) - 1),
        protobuf.FieldType.BOOL: st.booleans(),
        protobuf.FieldType.FLOAT: st.floats(width=32, allow_nan=False),
        protobuf.FieldType.STRING: st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
        protobuf.FieldType.BYTES: st.binary(max_size=12),
    }[spec.kind]


def messages_of(cls):
    parts = {}
    for name, spec in protobuf.schema_of(cls).items():
        values = st.deferred(lambda spec=spec: scalars(spec))
        if spec.is_repeated:
            parts[name] = st.lists(values, max_size=2).map(tuple)
        elif spec.is_required or _default(cls, name) is not None:
            parts[name] = values
        else:
            parts[name] = st.none() | values
    return st.builds(cls, **parts)


def _default(cls, name):
    return next(each.default for each in dataclasses.fields(cls) if each.name == name)


EVERY = st.sampled_from(MESSAGES).flatmap(messages_of)


@given(EVERY)
def test_what_is_written_is_read(message):
    data = protobuf.encode(message)
    assert protobuf.decode(type(message), data) == message
    assert protobuf.decode_delimited(type(message), protobuf.delimited(data) + b"rest") == (
        message,
        len(protobuf.delimited(data)),
    )


@given(EVERY)
def test_the_protobuf_library_reads_and_writes_the_same(message):
    pytest.importorskip(
        "google.protobuf", reason="the protobuf library is not installed; it is only an oracle"
    )
    from tests.unit.adapters.hadoop_rpc.oracle import library_class

    data = protobuf.encode(message)
    theirs = library_class(type(message)).FromString(data)
    assert theirs.SerializeToString() == data


def test_none_is_absent_and_everything_else_is_written():
    assert protobuf.encode(methods.RegisterRequest("", 0, "")) == b"\x0a\x00\x10\x00\x1a\x00"
    assert (
        protobuf.encode(methods.AllocateRequest(response_id=0, progress=0.0))
        == b"\x20\x00\x2d\x00\x00\x00\x00"
    )
    assert b"\x28\x00" in protobuf.encode(
        records.ResourceRequest(records.Priority(1), "*", records.YarnResource(1, 1), relax_locality=False)
    )


def test_an_absent_command_is_none_although_its_enum_begins_with_resync():
    """Read as its default, every heartbeat would order the master to register again."""
    assert protobuf.decode(methods.AllocateResponse, b"").command is None
    assert protobuf.decode(methods.AllocateResponse, b"\x08\x01").command is methods.MasterCommand.RESYNC


def test_unknown_fields_are_stepped_over():
    known = protobuf.encode(records.NodeId("w1", 8041))
    unknown = (
        protobuf.varint(99 << 3) + protobuf.varint(1 << 63)
        + protobuf.varint(98 << 3 | 2) + protobuf.delimited(b"text")
        + protobuf.varint(97 << 3 | 1) + bytes(8)
        + protobuf.varint(96 << 3 | 5) + bytes(4)
    )  # fmt: skip
    assert protobuf.decode(records.NodeId, unknown + known + unknown) == records.NodeId("w1", 8041)


def test_unknown_enum_values_are_as_if_absent():
    report = protobuf.decode(
        records.NodeReport, protobuf.encode(records.NodeReport(records.NodeId("w", 1))) + b"\x38\x63"
    )
    assert report.state is None
    assert not report.is_usable
    assert protobuf.decode(methods.GetClusterNodesRequest, b"\x08\x02\x08\x63\x08\x05").states == (
        records.NodeState.RUNNING,
        records.NodeState.LOST,
    )


def test_packed_numbers_are_read_like_single_ones():
    assert protobuf.decode(records.RetryContext, b"\x12\x03\x01\x02\x03").error_codes == (1, 2, 3)
    assert protobuf.decode(records.RetryContext, b"\x10\x01\x10\x02").error_codes == (1, 2)


def test_text_that_is_not_utf8_is_repaired():
    assert protobuf.decode(records.NodeId, b"\x0a\x02\xff\xff\x10\x01").host == "\ufffd\ufffd"


def test_the_last_of_two_values_counts():
    assert protobuf.decode(
        records.NodeId, protobuf.encode(records.NodeId("a", 1)) + protobuf.encode(records.NodeId("b", 2))
    ) == records.NodeId("b", 2)


@pytest.mark.parametrize(
    ("cls", "data", "complaint"),
    [
        (records.NodeId, b"\x0a", "cut short"),
        (records.NodeId, b"\x0a\x05ab", "5 bytes announced, 2 are there"),
        (records.NodeId, b"\x0a\xff\xff\xff\xff\x0f", "bytes announced"),
        (records.NodeId, b"\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "longer than ten bytes"),
        (records.NodeId, b"\x00\x00", "field number 0"),
        (records.NodeId, b"\x0b", "wire type 3"),
        (records.NodeId, b"\x0f", "wire type 7"),
        (records.NodeId, b"\x0a\x01a", "port is missing"),
        (ResponseHeader, b"\x08\x01", "status is missing"),
        (Token, b"", "identifier is missing"),
    ],
)
def test_damaged_bytes_are_refused(cls, data, complaint):
    with pytest.raises(RemoteProtocolError, match=complaint):
        protobuf.decode(cls, data)


def test_a_length_before_too_few_bytes_is_refused():
    with pytest.raises(RemoteProtocolError, match="9 bytes announced, 2 are there"):
        protobuf.decode_delimited(records.NodeId, b"\x09ab")


def test_many_tiny_fields_end_in_an_error_and_not_in_all_memory(monkeypatch):
    monkeypatch.setattr(protobuf, "MAX_FIELDS", 100)
    assert len(protobuf.decode(methods.GetClusterNodesRequest, b"\x08\x02" * 50).states) == 50
    with pytest.raises(RemoteProtocolError, match="more than 100 fields"):
        protobuf.decode(methods.GetClusterNodesRequest, b"\x0a\x65" + b"\x02" * 101)
    with pytest.raises(RemoteProtocolError, match="more than 100 fields"):
        protobuf.decode(records.NodeId, b"\x78\x00" * 101)


def test_nesting_ends():
    @dataclasses.dataclass(frozen=True)
    class Box:
        inner: Any = None

    spec = protobuf.FieldSpec(1, protobuf.FieldType.MESSAGE, type=Box, wire_type=2)
    Box.__dataclass_fields__["inner"].metadata = {"proto": spec}

    def nested(depth):
        data = b""
        for _ in range(depth):
            data = b"\x0a" + protobuf.delimited(data)
        return data

    protobuf.decode(Box, nested(protobuf.MAX_DEPTH))
    with pytest.raises(RemoteProtocolError, match=f"more than {protobuf.MAX_DEPTH} levels"):
        protobuf.decode(Box, nested(protobuf.MAX_DEPTH + 1))


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (records.NodeId("w1", 1 << 31), "NodeId.port: 2147483648 is no int32"),
        (records.NodeId("w1", "1"), "NodeId.port: '1' is no int32"),
        (records.NodeId(None, 1), "NodeId.host: missing"),
        (records.NodeId(3, 1), "NodeId.host"),
        (records.NodeId("\ud800", 1), "NodeId.host"),
        (records.ApplicationId(-(1 << 63) - 1, 1), "ApplicationId.cluster_timestamp"),
        (RequestHeader(call_id=1, client_id="text"), "RequestHeader.client_id"),
        (records.YarnResource(1, 1, (records.NodeId("a", 1),)), "ResourceAmount expected, not NodeId"),
        (methods.AllocateRequest(progress=1e300), "AllocateRequest.progress"),
    ],
)
def test_what_does_not_fit_is_not_written(message, complaint):
    with pytest.raises(LocalProtocolError, match=re.escape(complaint)):
        protobuf.encode(message)


def test_ten_thousand_nodes_fit():
    amounts = tuple(records.ResourceAmount(name, 7, "") for name in ("memory-mb", "vcores", "acct/slot"))
    node = records.NodeReport(
        records.NodeId("node-1", 8041),
        "node-1:8042",
        "/r",
        records.YarnResource(0, 0, amounts),
        records.YarnResource(1, 1, amounts),
    )
    data = protobuf.encode(methods.GetClusterNodesResponse((node,) * 10_000))
    assert len(protobuf.decode(methods.GetClusterNodesResponse, data).reports) == 10_000
