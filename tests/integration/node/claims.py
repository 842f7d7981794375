"""Mappers as processes that claim places of an agent, and what a test sees of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from yarn_accel.adapters.credentials import issue_token_file

ROOT = Path(__file__).resolve().parents[3]
#: Claims a place, says what it got, and then obeys lines: compute, end, fail.
_PROGRAM = """
import json, sys
from yarn_accel.client import claim_device
forms = sys.argv[1].split(",")
try:
    with claim_device(forms) as device:
        print(json.dumps([device.form, device.gpus, device.is_decided, device.reason]), flush=True)
        for line in sys.stdin:
            if line == "compute\\n":
                device.computing(10**6)
            elif line == "fail\\n":
                raise ValueError("failed, as it was asked to")
            else:
                break
except ValueError:
    pass
print("ended", flush=True)
"""


class ClaimingProcess:
    """A mapper in a process of its own; `got` waits for its answer."""

    def __init__(self, environ: Mapping[str, str], forms: str = "cpu,gpu") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, forms],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
            cwd="/",
        )

    def got(self) -> tuple[str, list[int], bool, str]:
        """Form, GPUs, whether an agent decided, and the reason."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()
        form, gpus, is_decided, reason = json.loads(line)
        return form, gpus, is_decided, reason

    def say(self, word: str) -> None:
        """Have it do something."""
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def end(self, word: str = "end") -> str:
        """Have it end; what it wrote on standard error."""
        out, err = self.process.communicate(word + "\n", timeout=60)
        assert "ended" in out, err
        return err

    def kill(self) -> None:
        """With SIGKILL."""
        self.process.kill()
        self.process.communicate()


def environ_of_mapper(
    run_dir: Path, attempt: int, job: str = "job_1_0001", name: str = "knn", token_file: Path | None = None
) -> dict[str, str]:
    """What Hadoop Streaming gives a mapper."""
    environ: dict[str, Any] = {
        "ACCEL_AGENT": str(run_dir / "agent.sock"),
        "NM_HOST": "w1",
        "mapreduce_job_id": job,
        "mapreduce_job_name": name,
        "mapreduce_task_attempt_id": f"attempt_{job[4:]}_m_{attempt:06d}_0",
    }
    if token_file is not None:
        environ["HADOOP_TOKEN_FILE_LOCATION"] = str(token_file)
    return environ


def token_of(folder: Path, secret: bytes, tenant: str, lifetime_s: float = 3600.0) -> Path:
    """A new token file of a tenant."""
    return issue_token_file(folder / f"token-{tenant}", secret, lifetime_s, tenant=tenant)
