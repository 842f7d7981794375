"""Torque's programs on this machine: where they are, which version, which home is compiled into them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PREFIX_VARIABLE", "PRIVATE", "Absent", "Binaries", "found"]

PREFIX_VARIABLE = "TORQUE_PREFIX"
"""Environment variable that names the folder Torque is installed in; without it PATH is searched."""

PRIVATE = ("/tmp", "/run")
"""Folders that each host of the cluster has for itself."""

_DAEMONS = ("pbs_server", "pbs_mom", "trqauthd")
_CLIENTS = ("qsub", "qstat", "qrun", "qalter", "qdel", "qmgr", "qhold", "qrls", "pbsnodes")
_TOOLS = ("ip", "unshare", "nsenter", "setpriv", "mount")
_HOME = re.compile(r"^serverhome:\s*(\S+)", re.IGNORECASE | re.MULTILINE)
_VERSION = re.compile(r"^version:\s*(\S+)", re.IGNORECASE | re.MULTILINE)


class Absent(Exception):
    """There is no Torque that could be run here; the text says why and what would help."""


@dataclass(frozen=True)
class Binaries:
    """An installed Torque.

    Attributes:
        folders: where its programs are, for PATH.
        libraries: where its libraries may be, for LD_LIBRARY_PATH.
        home: the PBS home compiled into them.
        version: such as ``6.1.3.h5``.
        pbs_sched: the C scheduler, if it is installed.
    """

    folders: tuple[Path, ...]
    libraries: tuple[Path, ...]
    home: Path
    version: str
    pbs_sched: Path | None

    @property
    def path(self) -> str:
        """PATH for programs that are to find them."""
        return os.pathsep.join([*map(str, self.folders), "/usr/sbin", "/usr/bin", "/sbin", "/bin"])


def found() -> Binaries:
    """The Torque named by `PREFIX_VARIABLE`, else the one on PATH.

    Raises:
        Absent: there is none, it is not whole, or this user or machine cannot run it.
    """
    prefix = os.environ.get(PREFIX_VARIABLE, "")
    search = f"{prefix}/sbin{os.pathsep}{prefix}/bin" if prefix else os.environ.get("PATH", "")
    where = {name: shutil.which(name, path=search) for name in (*_DAEMONS, *_CLIENTS)}
    missing = [name for name, path in where.items() if path is None]
    if missing:
        place = f"below {prefix}" if prefix else "on PATH"
        cure = f"{PREFIX_VARIABLE} may name its prefix"
        raise Absent(f"no real Torque: {', '.join(missing)} not {place}; {cure}")
    if os.geteuid() != 0:
        raise Absent("needs root: pbs_server and pbs_mom run as root, in namespaces of their own")
    tools = [name for name in _TOOLS if shutil.which(name) is None]
    if tools:
        raise Absent(f"needs {', '.join(tools)} (of util-linux, iproute2) to wall a real Torque in")
    folders = dict.fromkeys(Path(path).parent for path in where.values() if path is not None)
    hidden = [folder for folder in folders if any(folder.is_relative_to(each) for each in PRIVATE)]
    if hidden:
        raise Absent(f"{hidden[0]} lies where each host of the cluster has a folder of its own; move it")
    libraries = [folder.parent / name for folder in folders for name in ("lib", "lib64")]
    about = _about(str(where["pbs_server"]), libraries)
    home, version = _HOME.search(about), _VERSION.search(about)
    if home is None or version is None:
        raise Absent("pbs_server --about names no Serverhome: a Torque of version 2.5 or later is needed")
    if not Path(home[1]).is_dir():
        raise Absent(f"the PBS home of these binaries, {home[1]}, is not there; an empty folder will do")
    c_scheduler = shutil.which("pbs_sched", path=search)
    return Binaries(
        tuple(folders),
        tuple(each for each in dict.fromkeys(libraries) if each.is_dir() and each.parent != Path("/usr")),
        Path(home[1]),
        version[1],
        Path(c_scheduler) if c_scheduler else None,
    )


def _about(pbs_server: str, libraries: list[Path]) -> str:
    env = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries))}
    try:
        done = subprocess.run(
            [pbs_server, "--about"], env=env, capture_output=True, text=True, check=False, timeout=20
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise Absent(f"{pbs_server} cannot be run: {error}") from error
    return done.stdout + done.stderr
