from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yarn_accel.adapters.hadoop_rpc.protobuf import decode, encode
from yarn_accel.adapters.hadoop_rpc.records import (
    ApplicationState,
    ExitStatus,
    LaunchContext,
    LocalResource,
    LocalResourceType,
    NodeAttribute,
    NodeState,
    ResourceAmount,
    RetryContext,
    RetryPolicy,
    Url,
    YarnResource,
    pinned,
)
from yarn_accel.errors import ConfigError

FROM_A_NODE = YarnResource(
    4096,
    8,
    (
        ResourceAmount("memory-mb", 4096, "Mi"),
        ResourceAmount("vcores", 8, ""),
        ResourceAmount("yarn.io/gpu", 2, ""),
        ResourceAmount("acct/slot", 2, ""),
    ),
)


def test_only_the_named_type_changes() -> None:
    """An administrator's change of memory or gpu survives a change of slots."""
    changed = FROM_A_NODE.with_amount("acct/slot", 5)
    assert changed.other == {"yarn.io/gpu": 2, "acct/slot": 5}
    assert changed.with_amount("acct/slot", 2) == FROM_A_NODE
    assert (changed.memory_mib, changed.vcores, changed.amounts[:3]) == (4096, 8, FROM_A_NODE.amounts[:3])


@given(
    st.dictionaries(st.sampled_from(["a", "b/c", "yarn.io/gpu"]), st.integers(0, 1 << 40)), st.integers(0, 9)
)
def test_a_missing_type_is_added(other: dict[str, int], amount: int) -> None:
    resource = YarnResource.of(1024, 2, other)
    assert resource.other == other
    assert resource.with_amount("acct/slot", amount).other == {**other, "acct/slot": amount}


def test_a_pinned_request_is_three() -> None:
    requests = pinned("w1", "/rack1", 4, YarnResource.of(512, 1), 2, allocation_request_id=9)
    assert [(each.place, each.relax_locality) for each in requests] == [
        ("w1", True),
        ("/rack1", False),
        ("*", False),
    ]
    assert {(each.n_containers, each.priority.value, each.allocation_request_id) for each in requests} == {
        (2, 4, 9)
    }


@pytest.mark.parametrize(
    ("uri", "parts"),
    [
        ("hdfs://nn:8020/a/b%20c.zip", ("hdfs", "nn", 8020, "/a/b%20c.zip", None)),
        ("hdfs:///a", ("hdfs", None, -1, "/a", None)),
        ("file:///a", ("file", None, -1, "/a", None)),
        ("hdfs://NS1/a#b?c", ("hdfs", "NS1", -1, "/a#b?c", None)),
    ],
)
def test_uris_are_taken_apart(uri: str, parts: tuple[object, ...]) -> None:
    url = Url.of(uri)
    assert (url.scheme, url.host, url.port, url.file, url.user) == parts


@pytest.mark.parametrize(
    "uri", ["", "/a", "hdfs:", "hdfs://nn", "hdfs:a/b", "hdfs://nn:x/a", "hdfs://[/a", "s3a://b/a"]
)
def test_half_uris_are_refused(uri: str) -> None:
    with pytest.raises(ConfigError):
        Url.of(uri)


def test_a_launch_context_from_mappings() -> None:
    file = LocalResource.of("hdfs://nn:8020/app.zip", 10, 1000)
    retry = RetryContext(
        RetryPolicy.RETRY_ON_SPECIFIC_ERROR_CODES, (1, 134), max_retries=-1, retry_interval_ms=1000
    )
    launch = LaunchContext.of(["exec", "python3"], {"A": "b"}, {"app.zip": file}, b"HDTS", retry)
    assert decode(LaunchContext, encode(launch)) == launch
    assert launch.files[0].value.type is LocalResourceType.FILE
    assert "HDTS" not in repr(launch)


def test_states_know_what_they_mean() -> None:
    assert [each.name for each in ApplicationState if each.is_final] == ["FINISHED", "FAILED", "KILLED"]
    assert [each.name for each in NodeState if each.is_usable] == ["NEW", "RUNNING"]


def test_exit_statuses_are_yarns() -> None:
    """From org.apache.hadoop.yarn.api.records.ContainerExitStatus of 3.5.0."""
    assert {each.name: each.value for each in ExitStatus} == {
        "INVALID": -1000,
        "ABORTED": -100,
        "DISKS_FAILED": -101,
        "PREEMPTED": -102,
        "KILLED_EXCEEDED_VMEM": -103,
        "KILLED_EXCEEDED_PMEM": -104,
        "KILLED_BY_APPMASTER": -105,
        "KILLED_BY_RESOURCEMANAGER": -106,
        "KILLED_AFTER_APP_COMPLETION": -107,
        "KILLED_BY_CONTAINER_SCHEDULER": -108,
        "KILLED_FOR_EXCESS_LOGS": -109,
    }


def test_attributes_are_the_operators_unless_said_otherwise() -> None:
    assert NodeAttribute.of("accel-bind", "w1").key.prefix == "rm.yarn.io"
