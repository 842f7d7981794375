"""Names as Hadoop prints them, and the values that are not plain fields."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yarn_accel.adapters.hadoop_rpc import records
from yarn_accel.adapters.hadoop_rpc.protobuf import decode, encode
from yarn_accel.errors import ConfigError

APPLICATIONS = st.builds(records.ApplicationId, st.integers(0, (1 << 63) - 1), st.integers(0, (1 << 31) - 1))
ATTEMPTS = st.builds(records.AttemptId, APPLICATIONS, st.integers(0, (1 << 31) - 1))
CONTAINERS = st.builds(records.ContainerId, ATTEMPTS, st.integers(0, (1 << 63) - 1))


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (5, "container_1410901177871_0001_01_000005"),
        ((17 << 40) | 2, "container_e17_1410901177871_0001_01_000002"),
        (1099511627777, "container_e01_1410901177871_0001_01_000001"),
        (1234567, "container_1410901177871_0001_01_1234567"),
    ],
)
def test_containers_are_written_as_hadoop_does(number, text):
    container = records.ContainerId(records.AttemptId(records.ApplicationId(1410901177871, 1), 1), number)
    assert str(container) == text
    assert records.ContainerId.parse(text) == container
    assert container.epoch == number >> 40


def test_the_others():
    application = records.ApplicationId(1410901177871, 12)
    assert str(application) == "application_1410901177871_0012"
    assert str(records.AttemptId(application, 3)) == "appattempt_1410901177871_0012_000003"
    assert str(records.NodeId("w1", 8041)) == "w1:8041"


@given(APPLICATIONS, ATTEMPTS, CONTAINERS)
def test_what_is_written_is_read(application, attempt, container):
    assert records.ApplicationId.parse(str(application)) == application
    assert records.AttemptId.parse(str(attempt)) == attempt
    assert records.ContainerId.parse(str(container)) == container


@pytest.mark.parametrize(
    "text",
    [
        *("", "container_", "container_1_2_3", "container_e_1_1_1_1", "container_1_1_1_1_1"),
        *("container_1_1_1_1\n", "container_-1_1_1_1", "container_1_2147483648_1_1"),
        *("container_9223372036854775808_1_1_1", "container_e9999999_1_1_1_1"),
        *("container_1_1_1_٣", "application_1_1"),
    ],
)
def test_other_text_is_refused(text):
    with pytest.raises(ConfigError, match="is no container id"):
        records.ContainerId.parse(text)


@pytest.mark.parametrize("parse", [records.ApplicationId.parse, records.AttemptId.parse])
def test_other_ids_are_refused(parse):
    with pytest.raises(ConfigError, match=r"is no \w+ id"):
        parse("container_1410901177871_0001_01_000005")


FROM_A_NODE = records.YarnResource(
    4096,
    8,
    (
        records.ResourceAmount("memory-mb", 4096, "Mi"),
        records.ResourceAmount("vcores", 8, ""),
        records.ResourceAmount("yarn.io/gpu", 2, ""),
        records.ResourceAmount("acct/slot", 2, ""),
    ),
)


def test_only_the_named_type_changes():
    """An administrator's change of memory or gpu survives a change of slots."""
    changed = FROM_A_NODE.with_amount("acct/slot", 5)
    assert changed.other == {"yarn.io/gpu": 2, "acct/slot": 5}
    assert changed.with_amount("acct/slot", 2) == FROM_A_NODE
    assert (changed.memory_mib, changed.vcores, changed.amounts[:3]) == (4096, 8, FROM_A_NODE.amounts[:3])


@given(
    st.dictionaries(st.sampled_from(["a", "b/c", "yarn.io/gpu"]), st.integers(0, 1 << 40)), st.integers(0, 9)
)
def test_a_missing_type_is_added(other, amount):
    resource = records.YarnResource.of(1024, 2, other)
    assert resource.other == other
    assert resource.with_amount("acct/slot", amount).other == {**other, "acct/slot": amount}


def test_a_pinned_request_is_three():
    requests = records.pinned("w1", "/rack1", 4, records.YarnResource.of(512, 1), 2, allocation_request_id=9)
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
def test_uris_are_taken_apart(uri, parts):
    url = records.Url.of(uri)
    assert (url.scheme, url.host, url.port, url.file, url.user) == parts


@pytest.mark.parametrize(
    "uri", ["", "/a", "hdfs:", "hdfs://nn", "hdfs:a/b", "hdfs://nn:x/a", "hdfs://[/a", "s3a://b/a"]
)
def test_half_uris_are_refused(uri):
    with pytest.raises(ConfigError):
        records.Url.of(uri)


def test_a_launch_context_from_mappings():
    file = records.LocalResource.of("hdfs://nn:8020/app.zip", 10, 1000)
    retry = records.RetryContext(
        records.RetryPolicy.RETRY_ON_SPECIFIC_ERROR_CODES, (1, 134), max_retries=-1, retry_interval_ms=1000
    )
    launch = records.LaunchContext.of(["exec", "python3"], {"A": "b"}, {"app.zip": file}, b"HDTS", retry)
    assert decode(records.LaunchContext, encode(launch)) == launch
    assert launch.files[0].value.type is records.LocalResourceType.FILE
    assert "HDTS" not in repr(launch)


def test_states_know_what_they_mean():
    assert [each.name for each in records.ApplicationState if each.is_final] == [
        "FINISHED",
        "FAILED",
        "KILLED",
    ]
    assert [each.name for each in records.NodeState if each.is_usable] == ["NEW", "RUNNING"]
