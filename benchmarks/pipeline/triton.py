"""The virtual environment of PyTriton, which cannot share ours: it needs numpy below 2."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Mapping
from pathlib import Path

from yarn_accel.errors import StartupError

_INSTALL_LIMIT_S = 600
_PACKAGES = ("nvidia-pytriton==0.7.0", "numpy<2")


def _home() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "cluster-accel" / "triton-venv"


def python() -> Path | None:
    """Its interpreter; None when it was not installed."""
    marker = _home() / "installed"
    return _home() / "bin" / "python" if marker.exists() else None


def environ() -> Mapping[str, str]:
    """What its processes need besides: Triton's embedded Python must be the library of this interpreter."""
    return {"LD_LIBRARY_PATH": str(sysconfig.get_config_var("LIBDIR"))}


def install(report: Callable[[str], None]) -> None:
    """Make it, or make it anew.

    Raises:
        StartupError: pip failed; the message has its last line.
    """
    home = _home()
    report(f"installing {' '.join(_PACKAGES)} into {home}")
    venv.create(home, clear=True, with_pip=True)
    done = subprocess.run(
        [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", *_PACKAGES],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=_INSTALL_LIMIT_S,
        check=False,
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise StartupError(f"PyTriton cannot be installed: {lines[-1] if lines else 'pip says nothing'}")
    (home / "installed").write_text(f"{sys.version}\n", encoding="utf-8")
