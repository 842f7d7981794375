"""The pbs_sched shim and the systemd unit, and putting them in place so that all can be undone.

What is replaced is kept beside itself with `KEPT` at the end of its name; a record says what was done, and
undoing follows it backwards. The record lies in a folder of root's alone: ``sched_priv`` may belong to an
ordinary account, which could otherwise have root move and remove any file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from torque_sched.adapters.answer_socket import SOCKET_FOLDER
from torque_sched.adapters.home import check_folder
from torque_sched.adapters.state_file import read_trusted, write_atomic
from torque_sched.errors import StartupError

KEPT = ".torque-original"
RECORDS = Path("/var/lib/torque-sched")
"""Where root keeps the records of installations."""
_MARK = b"in pbs_sched's place"
"""Stands near the beginning of all that we write."""
_LOOKED_AT = 4096
_BY_FILE = re.compile(r"(?:--exec|-x)[ =]+(\S+)")
_LONGEST_INTERPRETER = 120
"""Kernels before 5.1 read 127 characters of a script's first line."""
_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
"""What systemd gives its services."""


@dataclass(frozen=True, slots=True)
class Step:
    """One file put in place."""

    path: str
    text: str
    mode: int
    kept: str
    """Where the file that was there goes; empty: there was none."""
    is_again: bool = False
    """The file there is ours from before; what it replaced is kept since then."""

    @property
    def done(self) -> str:
        """For people."""
        if self.is_again:
            return f"write {self.path} again"
        return f"write {self.path}" + (f", keep what is there as {self.kept}" if self.kept else "")


def program() -> tuple[str, ...]:
    """How this program is run again: its own script, else this Python with it."""
    beside = Path(sys.executable).parent / "torque-sched"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("torque-sched")
    return (found,) if found else (sys.executable, "-m", "torque_sched")


def command_folders() -> tuple[str, ...]:
    """Folders of Torque's commands on this PATH: an init script's or systemd's PATH may lack them."""
    found = (shutil.which(name) for name in ("pbsnodes", "qstat", "qrun", "qalter"))
    return tuple(dict.fromkeys(str(Path(each).absolute().parent) for each in found if each))


def shim_text(python: str, home: Path, folders: Sequence[str]) -> str:
    """A program named pbs_sched that takes pbs_sched's options and is ours.

    A script of Python's own, no shell's, so that init scripts find its process by the name pbs_sched. It
    knows its home as pbs_sched does: the start scripts of Debian and SUSE name none.

    Args:
        python: this Python.
        home: the PBS home, unless the caller names another.
        folders: of Torque's commands.

    Raises:
        StartupError: a script cannot name this Python.
    """
    if len(python) > _LONGEST_INTERPRETER or len(python.split()) != 1:
        raise StartupError(
            f"a script cannot begin with #!{python}",
            cure="install torque-sched below a shorter path without blanks, or use --no-shim",
        )
    return f"""#!{python}
# torque-sched in pbs_sched's place; `torque-sched install --undo` puts the original back.
import os
import sys

from torque_sched.commands.serve import serve

os.environ["PATH"] = {"".join(each + os.pathsep for each in folders)!r} + os.environ.get("PATH", os.defpath)
serve(["--daemon", "-d", {str(home)!r}, *sys.argv[1:]], prog_name="pbs_sched")
"""


_HARDENING = """\
ProtectSystem=strict
ProtectHome=read-only
NoNewPrivileges=yes
# root's requests to the server come from ports below 1024; files may be of the user that the unit names.
CapabilityBoundingSet=CAP_NET_BIND_SERVICE CAP_DAC_OVERRIDE CAP_CHOWN CAP_SETUID CAP_SETGID
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
PrivateDevices=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
# No PrivateTmp: trqauthd listens on a socket in /tmp."""


def unit_text(command: Sequence[str], home: Path, folders: Sequence[str], user: str = "root") -> str:
    """A systemd unit; with another user than root that user must be a Torque operator and own sched_priv."""
    path = os.pathsep.join(dict.fromkeys((*folders, *_PATH)))
    return f"""[Unit]
Description=torque-sched, a scheduler for Torque in pbs_sched's place
After=network.target trqauthd.service pbs_server.service
Conflicts=pbs_sched.service

[Service]
Type=simple
User={user}
Environment="PATH={path}"
ExecStartPre=+/usr/bin/install -d -m 755 -o {user} {shlex.quote(str(home / SOCKET_FOLDER))}
ExecStart={shlex.join(command)} serve -d {shlex.quote(str(home))}
ExecReload=/bin/kill -HUP $MAINPID
SuccessExitStatus=1
Restart=always
RestartSec=5
UMask=0022
# It writes to these folders only; what the settings name elsewhere is added by `systemctl edit`.
ReadWritePaths={home}/sched_priv {home}/sched_logs -{home}/{SOCKET_FOLDER}
{_HARDENING}

[Install]
WantedBy=multi-user.target
"""


def record_of(home: Path, records: Path | None = None) -> Path:
    """Where what was done for this home is recorded.

    Args:
        home: the PBS home.
        records: the folder; None: `RECORDS` for root, ``sched_priv`` for an ordinary user.
    """
    folder = records or (RECORDS if os.geteuid() == 0 else home / "sched_priv")
    return folder / f"install-{hashlib.sha256(os.fsencode(home)).hexdigest()[:16]}.json"


def plan(
    home: Path, sbin: Path | None, units: Path | None, user: str = "root", *, record: Path
) -> list[Step]:
    """What would be put where.

    Args:
        home: the PBS home.
        sbin: the folder of pbs_sched; None: no shim.
        units: systemd's folder; None: no unit.
        user: for the unit.
        record: what was done before (`record_of`).

    Raises:
        StartupError: the record of what was done before cannot be read, or no shim can be made.
    """
    command, folders = program(), command_folders()
    wanted: list[tuple[Path, str, int]] = []
    if sbin is not None:
        wanted.append((sbin.absolute() / "pbs_sched", shim_text(sys.executable, home, folders), 0o755))
    if units is not None:
        wanted.append(
            (units.absolute() / "torque-sched.service", unit_text(command, home, folders, user), 0o644)
        )
    known = {step.path: step.kept for step in _recorded(record)}
    return [_step(path, text, mode, known) for path, text, mode in wanted]


def _step(path: Path, text: str, mode: int, known: Mapping[str, str]) -> Step:
    """One file; what is there now is the original unless we wrote it, with this home or another."""
    kept = f"{path}{KEPT}"
    if path.exists() and not _is_ours(path):
        return Step(str(path), text, mode, kept)
    if str(path) in known:
        return Step(str(path), text, mode, known[str(path)], is_again=True)
    kept = kept if Path(kept).exists() else ""
    return Step(str(path), text, mode, kept, is_again=bool(kept) or path.exists())


def apply(steps: Sequence[Step], record: Path) -> None:
    """Do it; a second time changes nothing but the texts.

    Raises:
        StartupError: a file cannot be written; what was done before it is undone.
    """
    before = _recorded(record)
    done: list[Step] = []
    try:
        record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for step in steps:
            if step.kept and not step.is_again:
                Path(step.path).replace(step.kept)
            done.append(step)
            write_atomic(Path(step.path), step.text, step.mode)
            Path(step.path).chmod(step.mode)
        rest = [step for step in before if step.path not in {each.path for each in done}]
        entries = [asdict(replace(step, is_again=False)) for step in (*rest, *done)]
        write_atomic(record, json.dumps(entries, indent=1) + "\n", 0o600)
    except OSError as error:
        _take_back(step for step in reversed(done) if not step.is_again)
        raise StartupError(
            f"{error.filename}: {error.strerror}", cure="nothing was changed; run as root"
        ) from error


def undo(record: Path) -> list[str]:
    """Put everything back; returns what was done, a line each.

    Raises:
        StartupError: nothing was installed, or a file cannot be put back.
    """
    steps = _recorded(record)
    if not steps:
        raise StartupError(f"nothing is recorded in {record}", cure="nothing was installed with this home")
    try:
        done = _take_back(reversed(steps))
        record.unlink()
    except OSError as error:
        raise StartupError(f"{error.filename}: {error.strerror}", cure="run as root") from error
    return done


def init_script_changes(script: Path) -> list[str]:
    """What is to be written otherwise in an init script, a sentence for each line; none where it is well.

    ``start-stop-daemon --exec`` compares the executed file, which is our Python: it finds no daemon of ours.
    """
    try:
        lines = script.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [
        f"{script}, line {number}: write `--name pbs_sched --startas {found[1]}` in the place of `{found[0]}`"
        for number, line in enumerate(lines, 1)
        if not line.lstrip().startswith("#") and (found := _BY_FILE.search(line)) is not None
    ]


def _take_back(steps: Iterable[Step]) -> list[str]:
    done = []
    for step in steps:
        path = Path(step.path)
        if not _is_ours(path):
            done.append(f"{path}: no longer ours, so it is left as it is")
        elif step.kept and Path(step.kept).exists():
            Path(step.kept).replace(path)
            done.append(f"{path}: the original is back")
        else:
            path.unlink(missing_ok=True)
            done.append(f"{path}: removed")
    return done


def _is_ours(path: Path) -> bool:
    """Whether what is there was written by us; so counts nothing at all."""
    try:
        return _MARK in path.read_bytes()[:_LOOKED_AT]
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _recorded(record: Path) -> list[Step]:
    try:
        if record.parent.exists():
            check_folder(record.parent)
        return [Step(**entry) for entry in json.loads(read_trusted(record))]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError) as error:
        cure = f"remove it, and put back by hand what has {KEPT} at the end of its name"
        raise StartupError(f"{record}: {error}", cure=cure) from error
