import pytest

from yarn_accel.hadoop.history import log_contents, parse_attempts, parse_counters

COUNTER = {"name": "done", "totalCounterValue": 8, "mapCounterValue": 0, "reduceCounterValue": 0}
ATTEMPT = {
    "id": "attempt_1_0001_m_000000_0",
    "type": "MAP",
    "rack": "/rack1",
    "state": "FAILED",
    "nodeHttpAddress": "w1:8042",
    "startTime": 1500,
    "finishTime": 4500,
    "assignedContainerId": "container_1",
    "diagnostics": "Error: x",
}
LOG = (
    "Container: container_1 on w1_8041\nLogAggregationType: AGGREGATED\n====\nLogType:stderr\n"
    "LogLastModifiedTime:Sat\nLogLength:{}\nLogContents:\n{}\nEnd of LogType:stderr\n*****\n\n"
)


@pytest.mark.parametrize("counter", [COUNTER, [COUNTER]])
@pytest.mark.parametrize("as_group", [lambda g: g, lambda g: [g]])
def test_counters_of_one_or_many(counter, as_group):
    group = {"counterGroupName": "yarn-accel", "counter": counter}
    assert parse_counters({"jobCounters": {"id": "job_1", "counterGroup": as_group(group)}}) == {
        "yarn-accel": {"done": 8}
    }


@pytest.mark.parametrize("answer", [{}, {"jobCounters": None}, {"jobCounters": {"counterGroup": None}}])
def test_no_counters(answer):
    assert parse_counters(answer) == {}


@pytest.mark.parametrize("sent", [ATTEMPT, [ATTEMPT]])
def test_an_attempt(sent):
    (attempt,) = parse_attempts({"taskAttempts": {"taskAttempt": sent}})
    assert (attempt.node, attempt.rack, attempt.kind, attempt.state) == ("w1", "/rack1", "MAP", "FAILED")
    assert (attempt.start_s, attempt.finish_s) == (1.5, 4.5)
    assert (attempt.container, attempt.node_web) == ("container_1", "w1:8042")


def test_an_attempt_that_never_got_a_container():
    bare = {"id": "attempt_1_0001_m_000000_0", "nodeHttpAddress": None, "startTime": -1, "finishTime": None}
    (attempt,) = parse_attempts({"taskAttempts": {"taskAttempt": bare}}, "MAP")
    assert (attempt.node, attempt.rack, attempt.kind) == ("", "", "MAP")
    assert (attempt.start_s, attempt.finish_s, attempt.container) == (0.0, 0.0, "")


@pytest.mark.parametrize("answer", [{}, {"taskAttempts": None}, {"taskAttempts": {"taskAttempt": None}}])
def test_no_attempts(answer):
    assert parse_attempts(answer) == []


@pytest.mark.parametrize("text", ["", "one\ntwo", "it says\nEnd of LogType:stderr\nitself"])
def test_a_log_comes_out_of_its_frame(text: str):
    assert log_contents(LOG.format(len(text), text)) == text


def test_no_log_and_a_log_that_was_cut():
    assert log_contents("Can not find logs for container:container_1") is None
    assert log_contents(LOG.format(9, "one\ntwo").partition("two")[0]) == "one\n"
