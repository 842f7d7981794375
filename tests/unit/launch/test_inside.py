from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from yarn_accel import __version__
from yarn_accel.launch import bootstrap
from yarn_accel.launch.device_lock import EXIT_DEVICES
from yarn_accel.launch.inside import SERVE

ROOT = Path(__file__).parents[3]


def inside(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "yarn_accel.launch.inside", *words],
        cwd=ROOT,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_is_the_command() -> None:
    completed = inside("--version")
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout == f"yarn-accel, version {__version__}\n"


def test_its_exit_code_is_the_commands() -> None:
    assert inside("no-such-command").returncode == 2


def test_a_server_starts_in_a_container_only_and_loads_nothing_that_checks_settings(tmp_path) -> None:
    refused = inside(*SERVE, "pipeline.json", NM_HOST="", CONTAINER_ID="")
    assert refused.returncode == 2
    assert "only containers of YARN" in refused.stderr
    program = (
        "import sys, yarn_accel.launch.inside, yarn_accel.launch.serving, yarn_accel.pipeline.service\n"
        "slow = {'pydantic', 'yaml', 'click', 'numpy', 'prometheus_client', 'aiohttp'}\n"
        "print(*sorted(slow & set(sys.modules)))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert loaded.stdout.split() == []


def test_devices_held_by_another_end_it_with_a_code_of_its_own(tmp_path) -> None:
    completed = inside("--version", ACCEL_DEVICES="99", ACCEL_DEVICES_DIR=str(tmp_path))
    assert completed.returncode == EXIT_DEVICES
    assert "99 devices wanted" in completed.stderr
    assert EXIT_DEVICES not in [
        getattr(bootstrap, name) for name in dir(bootstrap) if name.startswith("EXIT_")
    ]
