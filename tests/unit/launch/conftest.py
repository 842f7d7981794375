"""Small environments, made by hand, for what the bootstrap does with them; a master with a task service."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.unit.launch import yarn as fake
from tests.unit.launch.task_master import Master
from tests.unit.launch.yarn import Yarn, app, report
from yarn_accel.hadoop.control import RetainedApplication
from yarn_accel.hadoop.rm_client import RmClient
from yarn_accel.launch import application_cli, bootstrap
from yarn_accel.launch.packing import Environment, Requirement

SCRIPT = Path(bootstrap.__file__)
#: An interpreter that sees nothing of the environment the tests run in.
BARE_PYTHON = getattr(sys, "_base_executable", sys.executable)
#: Stands in for this package: what the bootstrap ends as.
ENTRY = """\
import json, os, sys
print(json.dumps({"words": sys.argv[1:], "path": sys.path, "environ": dict(os.environ), "pid": os.getpid()}))
sys.stdout.flush()
if "wait" in sys.argv:
    sys.stdin.read()
"""

Pack = Callable[..., Path]
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def packed(tmp_path: Path) -> Environment:
    """A packed environment, as far as uploads look at it."""
    path = tmp_path / f"accel-environment-{'0a' * 16}.zip"
    path.write_bytes(b"zip")
    return Environment(path, "0a" * 16, Requirement(**bootstrap.node_facts()), 3, 10, 1)


@pytest.fixture
def pack_small(tmp_path: Path) -> Pack:
    """Write an archive like a packed environment: of these files, needing this."""

    def pack(content: Mapping[str, bytes] | None = None, digest: str = "", **need: str) -> Path:
        files = {
            "yarn_accel/__init__.py": b"",
            "yarn_accel/launch/__init__.py": b"",
            "yarn_accel/launch/container_entry.py": ENTRY.encode(),
            bootstrap.REQUIREMENT: json.dumps({**bootstrap.node_facts(), **need}).encode(),
            **(content or {}),
        }
        entries = {name: (hashlib.sha256(data).hexdigest(), False) for name, data in files.items()}
        digest = digest or bootstrap.content_digest(entries)
        path = tmp_path / f"accel-environment-{digest}.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for name, data in files.items():
                archive.writestr(name, data)
        return path

    return pack


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start the bootstrap as a container does; everything still running is killed at the end."""
    processes = []

    def begin(archive: Path, *words: str, **environ: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [BARE_PYTHON, "-I", "-S", str(SCRIPT), str(archive), *words],
            env={"PATH": os.environ["PATH"], "ACCEL_CACHE_DIR": str(tmp_path / "cache"), **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Master:
    """Commands find this master."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made, yarn = Master(), Yarn()
    rm_client = fake.rm_client(tmp_path, yarn)
    monkeypatch.setattr(RmClient, "load", staticmethod(lambda: rm_client))

    async def ask(control: object, verb: str, document: object = None) -> dict[str, Any]:
        return await made.ask(verb, document)

    monkeypatch.setattr(application_cli.Control, "ask", ask)
    yarn.add(report(1))
    RetainedApplication.of(str(app(1))).create("")
    return made
