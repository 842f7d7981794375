from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yarn_accel.adapters.hadoop_rpc.identifiers import ApplicationId, AttemptId, ContainerId, NodeId
from yarn_accel.errors import ConfigError

APPLICATIONS = st.builds(ApplicationId, st.integers(0, (1 << 63) - 1), st.integers(0, (1 << 31) - 1))
ATTEMPTS = st.builds(AttemptId, APPLICATIONS, st.integers(0, (1 << 31) - 1))
CONTAINERS = st.builds(ContainerId, ATTEMPTS, st.integers(0, (1 << 63) - 1))


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (5, "container_1410901177871_0001_01_000005"),
        ((17 << 40) | 2, "container_e17_1410901177871_0001_01_000002"),
        (1099511627777, "container_e01_1410901177871_0001_01_000001"),
        (1234567, "container_1410901177871_0001_01_1234567"),
    ],
)
def test_containers_are_written_as_hadoop_does(number: int, text: str) -> None:
    container = ContainerId(AttemptId(ApplicationId(1410901177871, 1), 1), number)
    assert str(container) == text
    assert ContainerId.parse(text) == container
    assert container.epoch == number >> 40


def test_the_others() -> None:
    application = ApplicationId(1410901177871, 12)
    assert str(application) == "application_1410901177871_0012"
    assert str(AttemptId(application, 3)) == "appattempt_1410901177871_0012_000003"
    assert str(NodeId("w1", 8041)) == "w1:8041"


@given(APPLICATIONS, ATTEMPTS, CONTAINERS)
def test_what_is_written_is_read(
    application: ApplicationId, attempt: AttemptId, container: ContainerId
) -> None:
    assert ApplicationId.parse(str(application)) == application
    assert AttemptId.parse(str(attempt)) == attempt
    assert ContainerId.parse(str(container)) == container


@pytest.mark.parametrize(
    "text",
    [
        "",
        "container_",
        "container_1_2_3",
        "container_e_1_1_1_1",
        "container_1_1_1_1_1",
        "container_1_1_1_1\n",
        "container_-1_1_1_1",
        "container_1_2147483648_1_1",
        "container_9223372036854775808_1_1_1",
        "container_e9999999_1_1_1_1",
        "container_1_1_1_٣",
        "application_1_1",
    ],
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no container id"):
        ContainerId.parse(text)


@pytest.mark.parametrize("parse", [ApplicationId.parse, AttemptId.parse])
def test_other_ids_are_refused(parse: object) -> None:
    with pytest.raises(ConfigError, match=r"is no \w+ id"):
        parse("container_1410901177871_0001_01_000005")  # type: ignore[operator]
