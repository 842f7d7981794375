"""What the kernel counts: CPU time and memory of the node and of each job's processes, from ``/proc``.

A process belongs to the job that its control group names (``.../torque/JOB/...``, moms built with cgroups),
else to the job in its environment (``PBS_JOBID``, which mom sets and children inherit), else to the job whose
shell leads its session. Reading other users' environments takes root, as mom has it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_CGROUP = re.compile(rb"/torque/([0-9][^/\n]*)")
_JOB_ID = b"PBS_JOBID="
_YOUNG_LOOKS = 2
"""A process just forked still has mom's environment, so a new one is looked at this often."""
_KEPT = 100_000


@dataclass(frozen=True, slots=True)
class NodeCounters:
    """Ticks since boot over all cores, and memory in bytes now."""

    busy_ticks: int
    total_ticks: int
    mem_used_bytes: int
    n_cpus: int


@dataclass(frozen=True, slots=True)
class Process:
    """One process of a job; ``ticks`` contain those of the children it has waited for."""

    pid: int
    parent: int
    ticks: int
    rss_bytes: int


@dataclass
class JobTimes:
    """The processes of one job by (pid, start)."""

    processes: dict[tuple[int, int], Process] = field(default_factory=dict)

    @property
    def rss_bytes(self) -> int:
        """Resident memory; pages shared between processes count in each."""
        return sum(process.rss_bytes for process in self.processes.values())


class ProcReader:
    """Reads ``/proc``; keeps which process belongs to which job between samples."""

    def __init__(self, root: Path = Path("/proc")) -> None:
        self._root = root
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._known: dict[tuple[int, int], tuple[str, int]] = {}
        self._job_of_pid: dict[int, str] = {}

    def node(self) -> NodeCounters:
        """Counters of the whole node.

        Raises:
            OSError: ``/proc`` is not mounted.
        """
        lines = (self._root / "stat").read_text(encoding="ascii", errors="replace").splitlines()
        ticks = [int(word) for word in lines[0].split()[1:]]
        # user nice system idle iowait irq softirq steal; guest time is in user already.
        counted = ticks[:8] + [0] * (8 - len(ticks[:8]))
        total = sum(counted)
        n_cpus = sum(1 for line in lines[1:] if line.startswith("cpu"))
        return NodeCounters(total - counted[3] - counted[4], total, self._memory(), max(1, n_cpus))

    def _memory(self) -> int:
        lines = (self._root / "meminfo").read_text(encoding="ascii", errors="replace").splitlines()
        values = {
            key: int(rest.split()[0]) for key, _, rest in (line.partition(":") for line in lines) if rest
        }
        # Kernels before 3.14 do not estimate what is available.
        free = values.get("MemAvailable", values.get("MemFree", 0) + values.get("Cached", 0))
        return max(0, values.get("MemTotal", 0) - free) * 1024

    def uptime_s(self) -> float:
        """Seconds since boot: by it a sample's age is judged, and which processes are new.

        Raises:
            OSError: ``/proc`` is not mounted.
        """
        return float((self._root / "uptime").read_text(encoding="ascii").split()[0])

    def jobs(self) -> dict[str, JobTimes]:
        """The processes of every job on this node, by job id."""
        found: list[tuple[int, int, Process]] = []
        for pid in self._pids():
            entry = self._process(pid)
            if entry is not None:
                found.append(entry)
        by_session: dict[int, str] = {}
        known: dict[tuple[int, int], tuple[str, int]] = {}
        for start, session, process in found:
            job, looks = self._job_of(process.pid, start)
            known[process.pid, start] = (job, looks)
            if job and session == process.pid:
                by_session[session] = job
        self._known = known if len(known) <= _KEPT else {}
        jobs: dict[str, JobTimes] = {}
        self._job_of_pid = {}
        for start, session, process in found:
            job = known[process.pid, start][0] or by_session.get(session, "")
            if job:
                jobs.setdefault(job, JobTimes()).processes[process.pid, start] = process
                self._job_of_pid[process.pid] = job
        return jobs

    @property
    def job_of_pid(self) -> Mapping[int, str]:
        """Which job each process belonged to at the last look."""
        return self._job_of_pid

    def _pids(self) -> Iterator[int]:
        with os.scandir(self._root) as entries:
            for entry in entries:
                if entry.name.isdecimal():
                    yield int(entry.name)

    def _process(self, pid: int) -> tuple[int, int, Process] | None:
        """(start, session, process); None when it ended meanwhile."""
        try:
            line = (self._root / str(pid) / "stat").read_bytes()
            # The name in brackets may itself hold blanks and brackets.
            words = line[line.rindex(b")") + 2 :].split()
            ticks = sum(int(word) for word in words[11:15])
            rss = int(words[21]) * self._page_bytes
            return int(words[19]), int(words[3]), Process(pid, int(words[1]), ticks, rss)
        except (OSError, ValueError, IndexError):
            return None

    def _job_of(self, pid: int, start: int) -> tuple[str, int]:
        job, looks = self._known.get((pid, start), ("", 0))
        if job or looks > _YOUNG_LOOKS:
            return job, looks
        return self._named_in(pid), looks + 1

    def _named_in(self, pid: int) -> str:
        folder = self._root / str(pid)
        try:
            grouped = _CGROUP.search((folder / "cgroup").read_bytes())
            if grouped is not None:
                return grouped.group(1).decode("ascii", "replace")
        except OSError:
            pass  # A kernel without control groups, or the process has ended.
        try:
            for pair in (folder / "environ").read_bytes().split(b"\0"):
                if pair.startswith(_JOB_ID):
                    return pair[len(_JOB_ID) :].decode("ascii", "replace")
        except OSError:
            pass  # Not ours to read; its session may tell.
        return ""


def cpu_ticks_used(before: JobTimes, now: JobTimes, since_ticks: float = -1.0) -> int:
    """CPU time of a job between two looks at its processes, in ticks.

    When a process ends, its time moves to the ancestor that waited for it, so the job's sum stays. Only
    where no ancestor of the job is left did it leave the sum.

    Args:
        before: the job at the look before.
        now: the job now.
        since_ticks: when that look was, in ticks since boot. A process older than that which was not seen
            to be the job's then counts from now on: most of its time is from before.
    """
    alive = {pid for pid, _ in now.processes}
    parents = {pid: process.parent for (pid, _), process in before.processes.items()}
    used = sum(
        process.ticks
        for key, process in now.processes.items()
        if key in before.processes or key[1] > since_ticks
    )
    for key, process in before.processes.items():
        # A process gone without an heir took its time with it: there is nothing left to subtract it from.
        if key in now.processes or _has_living_ancestor(process.parent, parents, alive):
            used -= process.ticks
    return max(0, used)


def _has_living_ancestor(pid: int, parents: Mapping[int, int], alive: set[int]) -> bool:
    for _ in range(len(parents) + 1):
        if pid in alive:
            return True
        if pid not in parents:
            return False
        pid = parents[pid]
    return False
