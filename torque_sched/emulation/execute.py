"""Runs the jobs' scripts as child processes, as one mom for all nodes of the emulated cluster.

Each attempt has a folder. The wrapper makes ``started`` in it first and stops if it is there already, so a
server that was killed between writing "running" and starting the process can start it again and not run it
twice; ``exit`` appears when the script is over, whoever is the server then. Scripts run as the user who runs
the server. A server that ends leaves them running; `end_left` ends them when the emulation stops.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from torque_sched.adapters.state_file import write_atomic
from torque_sched.emulation.model import EmulatedJob, seconds_of
from torque_sched.emulation.qsub_client import parse_pairs
from torque_sched.emulation.world import World

_WRAPPER = """#!/bin/sh
# $1 folder, $2 shell, $3 output, $4 errors, $5 working directory
mkdir "$1/started" 2>/dev/null || exit 0
read -r pid _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ began _ < "/proc/$$/stat"
echo "$pid $began" > "$1/pid"
cd "$5" || cd "$1"
case "$4" in
"$3") "$2" "$1/script" > "$3" 2>&1 < /dev/null ;;
*) "$2" "$1/script" > "$3" 2> "$4" < /dev/null ;;
esac
echo $? > "$1/exit.new"
mv "$1/exit.new" "$1/exit"
"""
_KILLED = 256 + signal.SIGKILL
_PROC = Path("/proc")
_STATE, _GROUP, _START = 0, 2, 19
"""Places in ``/proc/PID/stat`` after the name (proc(5): fields 3, 5 and 22)."""
_GRACE_S = 2.0
_POLL_S = 0.02


def end_left(directory: Path) -> int:
    """End what still runs of scripts whose server is gone: SIGTERM, and SIGKILL to what is left then.

    Args:
        directory: that of `Processes`.

    Returns:
        How many scripts were ended.
    """
    groups = {group for folder in directory.glob("*/") if (group := _group(folder))}
    _signal(groups, signal.SIGTERM)
    deadline_s = time.monotonic() + _GRACE_S
    while (left := groups & _groups_alive()) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
    _signal(left, signal.SIGKILL)
    return len(groups)


def _group(folder: Path) -> int:
    """The process group of an attempt; 0: it is over, or its number is another process's by now."""
    with suppress(OSError, ValueError):
        pid, began = map(int, (folder / "pid").read_text(encoding="ascii").split())
        fields = _stat(pid)
        if int(fields[_START]) == began and int(fields[_GROUP]) == pid and pid > 1:
            return pid
    return 0


def _stat(pid: int) -> list[str]:
    return (
        (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    )


def _groups_alive() -> set[int]:
    """Process groups of which a process is no zombie."""
    return {int(fields[_GROUP]) for fields in _all_stats() if fields[_STATE] not in "ZX"}


def _all_stats() -> Iterator[list[str]]:
    for each in _PROC.glob("[0-9]*"):
        with suppress(OSError):
            yield _stat(int(each.name))


def _signal(groups: set[int], number: signal.Signals) -> None:
    for group in groups:
        with suppress(OSError):
            os.killpg(group, number)


class Processes:
    """The running scripts of one cluster."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._watched: dict[str, Path] = {}
        self._children: list[subprocess.Popen[bytes]] = []

    def start(self, world: World, job: EmulatedJob) -> None:
        """Start, or take up again after a restart of the server."""
        folder = self._folder(job)
        self._watched[job.id] = folder
        if (folder / "started").exists():
            return
        folder.mkdir(parents=True, exist_ok=True)
        hosts = [name for name, indices in job.slots for _ in indices]
        # Whole or not at all: a wrapper that a killed server started may be reading them just now.
        write_atomic(folder / "wrapper", _WRAPPER)
        write_atomic(folder / "script", job.script)
        write_atomic(folder / "nodes", "".join(f"{name}\n" for name in hosts))
        write_atomic(folder / "gpus", "".join(f"{name}-gpu{i}\n" for name, i in job.gpus))
        out, err = self._outputs(job, folder)
        shell = job.attributes.get("Shell_Path_List", "/bin/sh")
        environment = _environment(world, job, folder)
        argv = ["/bin/sh", str(folder / "wrapper"), str(folder), shell, out, err, environment["HOME"]]
        child = subprocess.Popen(argv, env=environment, cwd=folder, start_new_session=True, close_fds=True)
        self._children.append(child)

    def finished(self) -> list[tuple[str, int]]:
        """Jobs whose script is over, with the exit status; each is named once."""
        self._children = [child for child in self._children if child.poll() is None]
        over = []
        for job_id, folder in list(self._watched.items()):
            status = self._status(folder)
            if status is not None:
                del self._watched[job_id]
                over.append((job_id, status))
        return over

    def send(self, job_id: str, name: str) -> None:
        """Send a signal by name to all processes of a job."""
        folder = self._watched.get(job_id)
        number = getattr(signal, f"SIG{name}", None)
        if folder is None or number is None:
            return
        with suppress(OSError, ValueError):
            os.killpg(_pid(folder), number)

    def forget(self, job_id: str) -> None:
        """No longer watch a job that was ended by other means."""
        self._watched.pop(job_id, None)

    def _folder(self, job: EmulatedJob) -> Path:
        return self._directory / f"{job.id}.{job.attributes.get('start_count', '1')}"

    def _outputs(self, job: EmulatedJob, folder: Path) -> tuple[str, str]:
        paths = []
        for key, plain in (("Output_Path", "out"), ("Error_Path", "err")):
            wanted = Path(job.attributes[key].partition(":")[2] or job.attributes[key])
            paths.append(str(wanted if wanted.parent.is_dir() else folder / plain))
        joined = job.attributes.get("Join_Path", "n")
        first = paths[1] if joined == "eo" else paths[0]
        return (first, first) if joined in ("oe", "eo") else (paths[0], paths[1])

    def _status(self, folder: Path) -> int | None:
        try:
            code = int((folder / "exit").read_text(encoding="utf-8"))
            return code if code < 128 else code + 128
        except (OSError, ValueError):
            pass
        try:
            os.kill(_pid(folder), 0)
        except ProcessLookupError:
            return None if (folder / "exit").exists() else _KILLED
        except (OSError, ValueError):
            pass
        return None


def _pid(folder: Path) -> int:
    """The wrapper's process.

    Raises:
        OSError: it has not begun. ValueError: it is just writing its number.
    """
    return int((folder / "pid").read_text(encoding="utf-8").partition(" ")[0])


def _environment(world: World, job: EmulatedJob, folder: Path) -> dict[str, str]:
    variables = parse_pairs(job.attributes["Variable_List"])
    home = variables.get("PBS_O_HOME", "/")
    slots = sum(len(indices) for _, indices in job.slots)
    environment = {
        **variables,
        "HOME": home if Path(home).is_dir() else str(folder),
        "LOGNAME": job.user,
        "USER": job.user,
        "PATH": variables.get("PBS_O_PATH") or "/usr/local/bin:/usr/bin:/bin",
        "SHELL": variables.get("PBS_O_SHELL", "/bin/sh"),
        "PBS_ENVIRONMENT": "PBS_BATCH",
        "PBS_JOBID": job.id,
        "PBS_JOBNAME": job.attributes["Job_Name"],
        "PBS_QUEUE": job.queue,
        "PBS_SERVER": world.settings.server,
        "PBS_NODEFILE": str(folder / "nodes"),
        "PBS_MSHOST": job.slots[0][0],
        "PBS_NODENUM": "0",
        "PBS_NP": str(slots),
        "PBS_NUM_NODES": str(len({name for name, _ in job.slots})),
        "PBS_NUM_PPN": str(len(job.slots[0][1])),
        "PBS_RESOURCE_NODES": job.resources.get("nodes", ""),
    }
    if "walltime" in job.resources:
        environment["PBS_WALLTIME"] = str(seconds_of(job.resources["walltime"]))
    if job.gpus:
        first = job.slots[0][0]
        mine = sorted(index for name, index in job.gpus if name == first)
        environment["PBS_GPUFILE"] = str(folder / "gpus")
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(str(index) for index in mine)
    return environment
