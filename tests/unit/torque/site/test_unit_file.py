"""The file for systemd: documented keys, a command line that exists, and systemd's own opinion."""

from __future__ import annotations

import configparser
import shlex
import shutil
import subprocess
from importlib import resources
from pathlib import Path

import pytest

from torque_sched.cli import main
from torque_sched.commands.site import site
from torque_sched.site.ending import FORCED

DOCUMENTED = {
    "Unit": {"Description", "After", "Wants"},
    "Service": {
        *("ExecStartPre", "ExecStart", "Restart", "RestartSec", "TimeoutStopSec", "SuccessExitStatus"),
        *("LimitNOFILE", "ProtectSystem", "PrivateDevices", "ProtectKernelTunables", "ProtectKernelModules"),
        "ProtectControlGroups",
    },
    "Install": {"WantedBy"},
}
"""Of systemd.unit(5), systemd.service(5) and systemd.exec(5); all are of version 232 or earlier."""
GRACE_S = 3.0
"""So long the service takes to end at most."""


@pytest.fixture
def text() -> str:
    return resources.files("torque_sched.site").joinpath("torque-sched-site.service").read_text()


@pytest.fixture
def unit(text: str) -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read_string(text)
    return parsed


def test_every_key_is_a_documented_one(unit: configparser.ConfigParser) -> None:
    assert set(unit.sections()) == set(DOCUMENTED)
    for section, known in DOCUMENTED.items():
        assert set(unit[section]) <= known


def test_its_commands_exist(unit: configparser.ConfigParser) -> None:
    for key, verb in (("ExecStartPre", "check-config"), ("ExecStart", "serve")):
        words = shlex.split(unit["Service"][key])
        assert words[:3] == ["/usr/bin/env", "torque-sched", "site"]
        context = site.make_context("site", words[3:], resilient_parsing=True)
        assert context.params["home"] == Path("/var/spool/torque")
        assert words[-1] == verb
        assert verb in site.commands
    assert "site" in main.list_commands(context)


def test_it_leaves_time_to_end_and_a_forced_end_is_no_failure(unit: configparser.ConfigParser) -> None:
    service = unit["Service"]
    assert float(service["TimeoutStopSec"]) > GRACE_S
    assert service["SuccessExitStatus"] == str(FORCED)
    assert service["Restart"] == "always"
    assert "User" not in service, "it becomes the mapped users, which takes root"


def test_systemd_finds_nothing_wrong(text: str, tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd-analyze on this machine")
    path = tmp_path / "torque-sched-site.service"
    path.write_text(text)
    well = subprocess.run([program, "verify", path], capture_output=True, text=True, check=False)
    assert (well.returncode, str(path) in well.stderr) == (0, False), well.stderr
    path.write_text(text.replace("Restart=always", "Restart=perhaps").replace("LimitNOFILE", "LimitNOTHING"))
    wrong = subprocess.run([program, "verify", path], capture_output=True, text=True, check=False)
    assert "perhaps" in wrong.stderr
    assert "LimitNOTHING" in wrong.stderr
