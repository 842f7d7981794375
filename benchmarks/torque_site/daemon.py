"""``torque-sched serve`` at the head of a real Torque."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.torque_site.host import child_of
from benchmarks.torque_site.site import TorqueSite, eventually

__all__ = ["Daemon"]


class Daemon:
    """Our daemon as a process; it has the scheduler's own port and lock as pbs_sched would.

    Args:
        site: the cluster.
        options: of ``serve``.
        user: who runs it.
        settings: for ``torque_sched.yaml``.
    """

    def __init__(self, site: TorqueSite, *options: str, user: str = "root", **settings: Any) -> None:
        self.site = site
        self.options = options
        self.user = user
        self.settings = settings
        self.process: subprocess.Popen[bytes] | None = None
        self._errors = site.folder / "daemon.err"

    @property
    def own(self) -> Path:
        """Its private folder."""
        return self.site.home / "sched_priv" / ("shadow" if "--shadow" in self.options else "")

    @property
    def pid(self) -> int:
        """Its process number, outside of the namespaces."""
        assert self.process is not None
        return child_of(self.process.pid)

    def start(self) -> float:
        """Start it; returns the seconds until it was up."""
        config = self.site.home / "sched_priv" / "torque_sched.yaml"
        config.write_text(json.dumps(self.settings), encoding="utf-8")
        argv = [
            *self.site.python,
            "-m",
            "torque_sched",
            "serve",
            "-d",
            str(self.site.torque.home),
            *self.options,
        ]
        began_s, before = time.monotonic(), self.log().count("pbs_sched startup pid")
        with self._errors.open("ab") as errors:
            self.process = subprocess.Popen(
                self.site.argv(*argv, user=self.user), env=self.site.env, cwd="/", stdin=subprocess.DEVNULL,
                stderr=errors, stdout=errors,
            )  # fmt: skip

        def is_up() -> bool:
            assert self.process is not None
            return self.log().count("pbs_sched startup pid") > before or self.process.poll() is not None

        eventually("the daemon is up", is_up)
        if self.process.poll() is not None:
            raise RuntimeError(f"the daemon ended at once: {self.told()}")
        return time.monotonic() - began_s

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send it a signal and wait for its end; returns its exit code."""
        process = self.process
        if process is None:
            return 0
        self.process = None
        if process.poll() is None:
            os.kill(child_of(process.pid), number)
        return process.wait(30)

    def log(self) -> str:
        """Its log."""
        folder = self.own / "logs" if "--shadow" in self.options else self.site.home / "sched_logs"
        files = sorted(folder.iterdir()) if folder.is_dir() else []
        return "".join(path.read_text(encoding="utf-8", errors="replace") for path in files)

    def told(self) -> str:
        """Everything it said anywhere."""
        return self._errors.read_text(encoding="utf-8", errors="replace") + self.log()

    def status(self) -> dict[str, Any]:
        """What its last cycle did."""
        path = self.own / "torque_sched_state.json"
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return found
