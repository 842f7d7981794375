"""The demo's commands, where there is no cluster."""

from __future__ import annotations

import pytest

from jobs.demo.cluster import cluster_down, cluster_status, server_stats
from yarn_accel.errors import ConfigError


@pytest.fixture(autouse=True)
def nobodys_state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def test_a_cluster_that_is_not_there_has_no_status_and_is_down_already():
    lines = []
    assert cluster_status("nobody") is None
    cluster_down("nobody", lines.append)
    assert lines == ["there is no cluster nobody; nothing to do"]


def test_the_error_of_a_command_is_its_last_line(tmp_path):
    with pytest.raises(ConfigError, match=r"^[^:]*none\.yaml: No such file"):
        server_stats([tmp_path / "none.yaml"])
