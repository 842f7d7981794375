from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from yarn_accel import __version__
from yarn_accel.launch import bootstrap
from yarn_accel.launch.config import LaunchConfig
from yarn_accel.launch.container_entry import SERVE, keep_kernels
from yarn_accel.launch.device_lock import EXIT_DEVICES
from yarn_accel.launch.staging import server_document

ROOT = Path(__file__).parents[3]


def entered(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "yarn_accel.launch.container_entry", *words],
        cwd=ROOT,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_is_the_command() -> None:
    completed = entered("--version")
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout == f"yarn-accel, version {__version__}\n"


def test_its_exit_code_is_the_commands() -> None:
    assert entered("no-such-command").returncode == 2


def test_a_server_starts_in_a_container_only(tmp_path) -> None:
    document = server_document(LaunchConfig.model_validate({}))
    (tmp_path / "pipeline.json").write_text(json.dumps(document))
    refused = entered(*SERVE, str(tmp_path / "pipeline.json"), NM_HOST="", CONTAINER_ID="")
    assert refused.returncode == 2
    assert "only containers of YARN" in refused.stderr


@pytest.mark.parametrize("text", [None, "[1]", "a: [", "{}", '{"server": 1, "agent": {}}'])
def test_settings_that_start_did_not_write_are_named(tmp_path, text) -> None:
    path = tmp_path / "pipeline.json"
    if text is not None:
        path.write_text(text)
    refused = entered(*SERVE, str(path))
    assert refused.returncode == 2
    assert f"{path}: " in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_servers_first_worker_waits_for_no_library() -> None:
    program = (
        "import sys, yarn_accel.launch.container_entry\n"
        "slow = {'pydantic', 'yaml', 'click', 'numpy', 'prometheus_client', 'aiohttp'}\n"
        "print(*sorted(slow & set(sys.modules)))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert loaded.stdout.split() == []


def test_devices_held_by_another_end_it_with_a_code_of_its_own(tmp_path) -> None:
    completed = entered("--version", ACCEL_DEVICES="99", ACCEL_DEVICES_DIR=str(tmp_path))
    assert completed.returncode == EXIT_DEVICES
    assert "99 devices wanted" in completed.stderr
    assert EXIT_DEVICES not in [
        getattr(bootstrap, name) for name in dir(bootstrap) if name.startswith("EXIT_")
    ]


def test_kernels_are_kept_in_the_containers_folder_unless_the_site_says_where(tmp_path) -> None:
    environ: dict[str, str] = {}
    keep_kernels(environ, tmp_path)
    assert environ == {"CUPY_CACHE_DIR": str(tmp_path / "cupy-kernels")}
    keep_kernels(environ, tmp_path / "other")
    assert environ == {"CUPY_CACHE_DIR": str(tmp_path / "cupy-kernels")}
