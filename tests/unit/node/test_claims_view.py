"""What `yarn-accel node claims` shows."""

from __future__ import annotations

import pytest

from yarn_accel.errors import UnavailableError
from yarn_accel.node.claims_view import claims_text, request_claims

CLAIM = {
    "attempt": "attempt_1",
    "user": "alice",
    "name": "k\x1b[31mnn",
    "form": "gpu",
    "gpus": [0],
    "age_s": 3.0,
    "renewed_s_ago": 0.4,
    "is_reading": True,
}
DECISION = {
    "age_s": 3.0,
    "attempt": "attempt_1",
    "job": "alice/job_1",
    "form": "gpu",
    "waited_s": 1.5,
    "reason": "(a) least delay 1.2",
    "candidates": {
        "gpu": [
            {"job": "alice/job_1", "predicted_delay": 1.2, "excluded": ""},
            {"job": "bob/job_2", "predicted_delay": None, "excluded": "its form gpu was not measured yet"},
        ],
        "cpu": [],
    },
}
FOUND = {
    "node": "w1",
    "policy": "hdas",
    "cores": 4,
    "gpus": [0, 1],
    "counts_age_s": 12.0,
    "are_counts_used": False,
    "claims": [CLAIM],
    "decisions": [DECISION],
}


def test_holders_decisions_and_all_candidates_are_shown_without_commands_to_the_terminal():
    text = claims_text(FOUND)
    assert "counts of the cluster: 12.0 s old, too old to be used" in text
    assert "attempt_1 of alice (k?[31mnn): gpu [0] since 3.0 s, reads" in text
    assert "gpu after 1.5 s: (a) least delay 1.2" in text
    assert "gpu alice/job_1: delay 1.2" in text
    assert "gpu bob/job_2: not measured; its form gpu was not measured yet" in text


def test_a_node_that_nobody_asked_says_so():
    assert "no mapper has asked yet" in claims_text({"node": "w1", "policy": "hdas", "claims": []})


def test_where_no_agent_listens_the_socket_is_named(tmp_path):
    with pytest.raises(UnavailableError, match=r"agent\.sock: no such file.*--run-dir"):
        request_claims(tmp_path / "agent.sock")
