"""Where a worker runs: its cores, the threads of its libraries, and that it never outlives its owner."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/{}"
_THREAD_VARIABLES = (
    "BLIS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
)


def core_groups(n_groups: int, cores_per_group: int) -> tuple[tuple[int, ...], ...]:
    """Share the cores this process may use between workers.

    Whole cores come before their second hardware threads, and neighbours of one socket stay together.  With
    more groups than cores, groups share.
    """
    cores = sorted(os.sched_getaffinity(0), key=_position)
    group_size = min(cores_per_group, len(cores))
    n_distinct = len(cores) // group_size
    starts = [(i % n_distinct) * group_size for i in range(n_groups)]
    return tuple(tuple(sorted(cores[start : start + group_size])) for start in starts)


def thread_environment(n_threads: int) -> Mapping[str, str]:
    """The environment that makes numerical libraries use that many threads; read when they are loaded."""
    return dict.fromkeys(_THREAD_VARIABLES, str(n_threads))


def bind_to(cores: Iterable[int]) -> None:
    """Bind every thread of this process: those that a library has already started, too."""
    chosen = set(cores)
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            os.sched_setaffinity(int(task.name), chosen)


def die_with_parent(parent: int) -> bool:
    """Have the kernel kill this process when its parent is gone; False when that has happened already.

    The kernel means the *thread* that started this process, so the parent must start it from one that stays.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Every mapped segment keeps a descriptor.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return os.getppid() == parent


def _position(core: int) -> tuple[int, int, int]:
    siblings = _read(core, "thread_siblings_list")
    first = int(siblings.replace("-", ",").split(",")[0] or core)
    return (core != first, int(_read(core, "physical_package_id") or 0), core)


def _read(core: int, name: str) -> str:
    try:
        return Path(_TOPOLOGY.format(core, name)).read_text(encoding="ascii").strip()
    except OSError:
        return ""
