from __future__ import annotations

import pytest

from tests.unit.launch.test_plan import ENVIRONMENT, SCRIPT, planned
from tests.unit.launch.yarn import app, node
from yarn_accel.adapters.hadoop_rpc import read_token_file
from yarn_accel.adapters.hadoop_rpc.records import LocalResourceType, LocalResourceVisibility, YarnResource
from yarn_accel.errors import ConfigError
from yarn_accel.launch.config import LaunchConfig
from yarn_accel.launch.container_secrets import MASTER_ALIAS
from yarn_accel.launch.plan import ApplicationPlan, make_plan
from yarn_accel.launch.submission import check_sizes, make_submission
from yarn_accel.master.credentials import AGENTS_ALIAS, CONTROL_ALIAS, SERVER_ALIAS

CONTROL, PIPELINE = b"c" * 32, b"p" * 32


def made(agents: bytes = b"", **sections: object):
    config = LaunchConfig.model_validate(sections)
    plan = make_plan(config, ENVIRONMENT, SCRIPT)
    return make_submission(app(1), config, plan, CONTROL, PIPELINE, agents)


def test_the_site_s_rules_arrive() -> None:
    submission = made(
        app={
            "name": "mine",
            "queue": "gpu",
            "priority": 3,
            "node_label": "fast",
            "tags": ["a"],
            "max_attempts": 7,
            "attempt_failures_validity_interval_s": 60,
        },
        master={"memory_mib": 300, "vcores": 2},
    )
    assert (submission.name, submission.queue, submission.label) == ("mine", "gpu", "fast")
    assert submission.priority is not None
    assert submission.priority.value == 3
    assert (submission.type, submission.tags) == ("yarn-accel", ("a",))
    assert (submission.max_attempts, submission.attempt_failures_validity_ms) == (7, 60_000)
    assert submission.keep_containers
    assert (submission.resource.memory_mib, submission.resource.vcores) == (300, 2)


def test_without_a_label_the_queue_decides() -> None:
    assert made().label is None


def test_secrets_travel_in_the_credentials_and_nowhere_else() -> None:
    submission = made()
    launch = submission.launch
    assert launch.credentials is not None
    secrets = read_token_file(launch.credentials).secrets
    assert dict(secrets) == {CONTROL_ALIAS: CONTROL, SERVER_ALIAS: PIPELINE}
    assert read_token_file(made(b"a" * 32).launch.credentials).secrets[AGENTS_ALIAS] == b"a" * 32
    # Two packages name it: containers would find no secret if they differed.
    assert SERVER_ALIAS == MASTER_ALIAS
    shown = repr(launch.environment) + repr(launch.command) + repr(submission)
    assert "ccccc" not in shown
    assert "ppppp" not in shown


def test_files_are_files_of_the_user() -> None:
    files = {each.key: each.value for each in made().launch.files}
    assert set(files) == {ENVIRONMENT.name, SCRIPT.name}
    environment = files[ENVIRONMENT.name]
    assert environment.type is LocalResourceType.FILE
    assert environment.visibility is LocalResourceVisibility.PRIVATE
    assert (environment.size_bytes, environment.modified_ms) == (100, 1700000000000)


def plan_of(**server: object) -> ApplicationPlan:
    return planned(server=server)


def test_what_no_container_can_be_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"role server needs memory-mb 9000, the largest container has 8192"
    ):
        check_sizes(plan_of(memory_mib=9000), YarnResource.of(8192, 16), ())
    with pytest.raises(ConfigError, match=r"role server needs yarn\.io/gpu 2, the largest container has 0"):
        check_sizes(plan_of(gpus=2), YarnResource.of(81920, 16), ())


def test_what_no_node_has_yet_is_reported() -> None:
    (warning,) = check_sizes(plan_of(vcores=9), YarnResource.of(81920, 16), (node("w1"), node("w2")))
    assert "role server" in warning
    assert "vcores 9" in warning
    small = {"pool_bytes": 1 << 20, "queue_bytes": 1 << 20, "max_request_bytes": 1 << 20}
    assert check_sizes(planned(pipeline=small), YarnResource.of(8192, 16), (node("w1"),)) == []
