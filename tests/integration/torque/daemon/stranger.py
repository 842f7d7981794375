"""Our program as an ordinary account, or as root beside one, with an emulated Torque that both can reach."""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import torque_sched
from torque_sched.emulation import EmulatedTorque

from .conftest import NODES

USER = "nobody"
NEEDS = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(
        shutil.which("setpriv") is None or shutil.which("unshare") is None, reason="util-linux is not here"
    ),
]
"""Marks of the tests that use it."""


@dataclass
class Stranger:
    """Runs our program as somebody who may neither read root's files nor write anywhere but his own."""

    place: Path
    torque: EmulatedTorque

    def argv(self, *words: str, as_root: bool = False) -> list[str]:
        """The interpreter may lie in a folder of root's alone: a mount of our own shows it to him, too."""
        program = Path(sys.executable).resolve().relative_to(Path(sys.base_prefix).resolve())
        shown = {
            "python": Path(sys.base_prefix),
            "site": Path(sysconfig.get_paths()["purelib"]),
            "ours": Path(torque_sched.__file__).parents[1],
        }
        lines = []
        for name, source in shown.items():
            (self.place / name).mkdir(exist_ok=True)
            lines.append(f"mount --bind {shlex.quote(str(source))} {self.place / name} || exit 99")
        group = pwd.getpwnam(USER).pw_gid
        become = "" if as_root else f"setpriv --reuid={USER} --regid={group} --clear-groups "
        lines.append(f'exec {become}"$@"')
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", "\n".join(lines), "as"]
        return [*command, str(self.place / "python" / program), "-m", "torque_sched", *words]

    @property
    def env(self) -> dict[str, str]:
        """The emulation must take him for who he is: nothing here names another user."""
        paths = f"{self.place / 'ours'}{os.pathsep}{self.place / 'site'}"
        kept = {name: text for name, text in self.torque.env.items() if not name.startswith("EMULATED_")}
        return {**kept, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}

    def run(self, *words: str, as_root: bool = False) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(*words, as_root=as_root),
            env=self.env, cwd="/", capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip

    def log(self) -> str:
        return "".join(
            each.read_text("utf-8") for each in sorted((self.torque.home / "sched_logs").iterdir())
        )


@contextmanager
def stranger_beside(port: int) -> Iterator[Stranger]:
    """One with ``sched_priv`` and ``sched_logs`` of his own."""
    # Not tmp_path: it lies below a folder that only its owner may enter.
    place = Path(tempfile.mkdtemp(prefix="torque-sched-"))
    place.chmod(0o755)
    try:
        made = EmulatedTorque.create(
            place / "cluster",
            nodes=NODES,
            event_target=f"127.0.0.1:{port}",
            server={"keep_completed": "300", "scheduler_iteration": "2"},
        )
        with made:
            for name in ("sched_priv", "sched_logs"):
                shutil.chown(made.home / name, USER)
            (made.home / "server_priv").chmod(0o750)
            (made.home / "socket").chmod(0o666)
            found = Stranger(place, made)
            probe = found.run("--version")
            if probe.returncode == 99 or "unshare" in probe.stderr:
                pytest.skip(f"needs root that may mount: {probe.stderr.strip()}")
            assert probe.returncode == 0, probe.stderr
            yield found
    finally:
        shutil.rmtree(place, ignore_errors=True)
