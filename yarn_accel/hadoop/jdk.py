"""Where the Java virtual machine is, and how old."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from yarn_accel.adapters.commands import run
from yarn_accel.errors import StartupError

OLDEST_JAVA = 17
"""Hadoop 3.5 is Java 17 byte code."""

JAVA_CURE = "apt-get install -y openjdk-17-jdk-headless (or set JAVA_HOME to a JDK 17 or newer)"
_INSTALLED = Path("/usr/lib/jvm")


def find_java(environ: Mapping[str, str] | None = None, installed: Path = _INSTALLED) -> Path:
    """The ``java`` program, with links resolved.

    JAVA_HOME decides. Otherwise the one on PATH is taken, unless it is too old and ``installed``, where
    distributions put their JDKs, has one that is not.

    Raises:
        StartupError: there is none.
    """
    environ = os.environ if environ is None else environ
    home = environ.get("JAVA_HOME", "")
    if home:
        java = Path(home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise StartupError(f"JAVA_HOME={home} has no bin/java", cure=JAVA_CURE)
        return java.resolve()
    candidates = list(_candidates(environ, installed))
    if not candidates:
        raise StartupError("Java is not on this machine", cure=JAVA_CURE)
    return next((java for java in candidates if not _is_too_old(java)), candidates[0])


def _candidates(environ: Mapping[str, str], installed: Path) -> Iterator[Path]:
    found = shutil.which("java", path=environ.get("PATH"))
    if found is not None:
        yield Path(found).resolve()
    for java in sorted(installed.glob(f"*{OLDEST_JAVA}*/bin/java")):
        yield java.resolve()


def _is_too_old(java: Path) -> bool:
    """By the ``release`` file of its JDK; a JDK without one gets the benefit of the doubt."""
    try:
        release = (java.parents[1] / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    match = re.search(r'^JAVA_VERSION="(\d+)', release, re.MULTILINE)
    return match is not None and int(match.group(1)) < OLDEST_JAVA


def java_version(java: Path) -> tuple[int, str]:
    """Major version and the full version text of a ``java`` program (about 0.1 s).

    Raises:
        StartupError: it does not run, or it is older than 17.
    """
    done = run([str(java), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-version"], 60)
    match = re.search(r'version "(\d+)[^"]*"', done.stderr)
    if not done.ok or match is None:
        raise StartupError(f"{java} -version failed: {done.last_line()}", cure=JAVA_CURE)
    major = int(match.group(1))
    if major < OLDEST_JAVA:
        raise StartupError(f"{java} is version {major}, Hadoop 3.5 needs {OLDEST_JAVA}", cure=JAVA_CURE)
    return major, done.stderr.strip()
