"""A project of ``docker compose`` from docker/compose.yaml, apart from one that a user here runs."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.fixtures.programs import ran
from yarn_accel import __version__

ROOT = Path(__file__).resolve().parents[3]
COMPOSE = ROOT / "docker" / "compose.yaml"
#: Of one command, and of each test with its set-up: for a machine that others keep busy.
COMMAND_LIMIT_S = 1500.0
WAIT_S = 900.0
TEST_LIMIT_S = 3600


def absent(*images: str) -> str:
    """Why these images cannot be run here with ``docker compose``; empty when they can."""
    if shutil.which("docker") is None:
        return "no containers: there is no docker client on PATH"
    engine = ran([str(ROOT / "docker" / "engine.sh"), "0", "compose"], timeout=60)
    if engine.returncode:
        return f"no containers: {engine.stderr.strip()}"
    for image in images:
        name = f"yarn-accel/{image}:{__version__}"
        if subprocess.run(["docker", "image", "inspect", name], capture_output=True, check=False).returncode:
            return f"no containers: there is no image {name}; `make docker-images` makes it"
    return ""


class Project:
    """Containers, networks and volumes of some services, under a name of their own.

    Args:
        services: of docker/compose.yaml; none: Hadoop's.
        data: what the containers see as /data.
        settings: further variables of docker/.env.example.
    """

    def __init__(self, services: Sequence[str], data: Path, **settings: str) -> None:
        self._services = services
        self.name = f"ya-compose-{secrets.token_hex(3)}"
        data.chmod(0o777)
        self._argv = ["docker", "compose", "--project-name", self.name, "--file", str(COMPOSE)]
        self._env = {**os.environ, "DATA": str(data), **settings}

    def compose(self, *words: str, input: str = "") -> subprocess.CompletedProcess[str]:
        """Run ``docker compose WORDS`` and return what it said."""
        return ran([*self._argv, *words], env=self._env, input=input, timeout=COMMAND_LIMIT_S)

    def said(self, *words: str, input: str = "") -> str:
        """As `compose`, which must succeed; its standard output."""
        done = self.compose(*words, input=input)
        assert done.returncode == 0, f"docker compose {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    def up(self) -> None:
        """Start everything and wait until all is healthy; shows the logs when it is not."""
        done = self.compose("up", "--detach", "--wait", *self._services)
        assert done.returncode == 0, (
            f"{done.stderr[-2000:]}\n{self.compose('logs', '--tail', '40').stdout[-8000:]}"
        )

    def down(self) -> None:
        """Remove all of it, volumes too."""
        self.compose("--profile", "*", "down", "--volumes", "--timeout", "5")

    def containers(self) -> list[str]:
        """The ids of its containers."""
        return self.said("ps", "--quiet").split()
