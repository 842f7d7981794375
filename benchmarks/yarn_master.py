"""The ApplicationMaster on a real cluster: how soon it runs, what heartbeats and containers cost, its memory.

A cluster of two workers; the application is started and stopped again and again, and what is measured of the
running one is measured of the last.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from benchmarks.result import Report, Row, measured, observed
from tests.fixtures.yarn_site import Site, SiteOptions, site_up
from yarn_accel.errors import JobError

NAME = "bench-master"
Say = Callable[[str], None]
_HEARTBEAT_S = 0.2
_RUNS_AFTER = re.compile(r"runs after ([0-9.]+) s")
_REQUEST = re.compile(r"^(\S+ \S+) INFO \S+: request \d+: server on \S+$", re.MULTILINE)
_LOG_TIME = "%Y-%m-%d %H:%M:%S,%f"
#: Field 22 of proc_pid_stat(5), counted from the one after the name.
_START_TIME = 19
#: Field 14; that of the system's time follows.
_USER_TIME = 11
_MIB = 1024 * 1024


def run(quick: bool, say: Say, record: Report) -> None:
    """Measure; the cluster is taken down whatever happens."""
    n_starts, n_kills, n_beats = (2, 2, 20) if quick else (6, 8, 100)
    note = "quick" if quick else ""
    options = SiteOptions(NAME, workers=2, accelerators=1, heartbeat_s=_HEARTBEAT_S)
    with (
        tempfile.TemporaryDirectory(prefix="accel-bench-") as folder,
        site_up(options, Path(folder), say) as site,
    ):
        record.add(_start_rows(site, n_starts, note, say))
        record.add(_heartbeat_rows(site, n_beats, note))
        record.add(_container_rows(site, n_kills, note, say))
        rss_mib = site.state()["service"]["rss_bytes"] / _MIB
        size = "2 nodes, 1 server, after all of the above"
        record.add([observed("resident memory of the master", rss_mib, "MiB", goal="<= 64", note=size)])
        record.add(_agent_rows(site, 5.0 if quick else 30.0, note))
        site.stop()


# ---- from the submission to RUNNING


def _start_rows(site: Site, n: int, note: str, say: Say) -> list[Row]:
    """Start and stop `n + 1` times; the last one stays."""
    running_s, own_s = [], []
    for at in range(n + 1):
        say(f"start {at + 1} of {n + 1}")
        found = _RUNS_AFTER.search(site.run("start", "--config", str(site.settings)))
        if found is None:
            raise JobError("`yarn-accel start` found an application that runs already")
        running_s.append(float(found[1]))
        own_s.append(_arrival_s(site))
        if at == 0:
            # Every node has unpacked the environment then: the next masters may come to any of them.
            site.until("all nodes are bound", site.is_whole)
        if at < n:
            site.stop()
    site.until("all nodes are bound", site.is_whole)
    cold = "nothing on the node yet: the environment is fetched and unpacked"
    return [
        observed("submit to RUNNING, the first on this cluster", running_s[0], "s", note=cold),
        measured(
            "submit to RUNNING",
            running_s[1:],
            "s",
            goal="<= 1",
            note=note or "as the client sees it, looking every 50 ms",
        ),
        measured(
            "of it: from the begin of the master's process",
            own_s[1:],
            "s",
            note="bootstrap, imports, registration",
        ),
    ]


def _arrival_s(site: Site) -> float:
    application = site.application
    service = site.until(f"the master of {application} answers", lambda: site.state().get("service", {}))
    return float(service["arrival_s"])


# ---- while it runs


def _heartbeat_rows(site: Site, n: int, note: str) -> list[Row]:
    """How long the ResourceManager takes for one allocate, as the master sees it."""
    times_ms: dict[int, float] = {}
    until_s = time.monotonic() + 3 * n * _HEARTBEAT_S + 10
    while len(times_ms) < n and time.monotonic() < until_s:
        state = site.state()["service"]
        times_ms[state["rm_heartbeats"]] = 1000 * state["rm_heartbeat_s"]
        time.sleep(_HEARTBEAT_S)
    return [
        measured("allocate", list(times_ms.values()), "ms", goal="<= 3", note=note or "the caller's view")
    ]


def _container_rows(site: Site, n: int, note: str, say: Say) -> list[Row]:
    """Kill the server again and again: from the request for another one to its process, to its service."""
    host = site.servers[0]
    running_s, serving_s = [], []
    for at in range(n):
        say(f"killed server {at + 1} of {n}")
        old = site.container(host, "server")
        site.kill(old)
        new = site.until("another container", lambda old=old: _other(site, host, old), 0.02)  # type: ignore[misc]
        began = site.until("its process", lambda new=new: _began_at(site, new), 0.01)  # type: ignore[misc]
        asked_at = _asked_at(site)
        running_s.append(began - asked_at)
        site.until("it serves", lambda: site.serves(host), 0.02)
        serving_s.append(time.time() - asked_at)
    return [
        measured(
            "ask to running container",
            running_s,
            "s",
            goal="<= 0.5",
            note=note or "request logged to its process, heartbeats of 200 ms",
        ),
        measured("ask to a server that the master counts on", serving_s, "s", note=note),
    ]


def _agent_rows(site: Site, watched_s: float, note: str) -> list[Row]:
    """What the agents cost, one heartbeat a second."""
    pids = [pid for pid, command in site.processes().items() if "container_entry node agent" in command]
    used_s, began_s = {pid: _cpu_s(pid) for pid in pids}, time.monotonic()
    time.sleep(watched_s)
    wall_s = time.monotonic() - began_s
    shares = [(_cpu_s(pid) - used_s[pid]) / wall_s for pid in pids]
    rss_mib = [_rss_bytes(pid) / _MIB for pid in pids]
    return [
        measured("resident memory of an agent", rss_mib, "MiB", goal="<= 60", note=note),
        measured(
            "an agent's share of a core", shares, "share", goal="<= 0.01", note=note or f"{watched_s:g} s"
        ),
    ]


def _cpu_s(pid: int) -> float:
    fields = _fields_of(pid)
    return (int(fields[_USER_TIME]) + int(fields[_USER_TIME + 1])) / os.sysconf("SC_CLK_TCK")


def _rss_bytes(pid: int) -> int:
    n_pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return n_pages * os.sysconf("SC_PAGESIZE")


def _other(site: Site, host: str, old: str) -> str:
    new = site.container(host, "server")
    return new if new != old else ""


def _asked_at(site: Site) -> float:
    """When the master asked for a server the last time, by its log; Unix seconds."""
    logs = site.cluster.conf_dir.parent.glob(f"nodes/*/nm-logs/{site.application}/*_000001/stderr")
    times = [each for log in logs for each in _REQUEST.findall(log.read_text(errors="replace"))]
    return max(datetime.strptime(each, _LOG_TIME).astimezone().timestamp() for each in times)


def _began_at(site: Site, container: str) -> float:
    """When the first Python process of a container began, Unix seconds; 0: there is none yet."""
    pids = [pid for pid, command in site.processes(container).items() if "python" in command.split(" ")[0]]
    began = [_process_began_s(pid) for pid in pids]
    offset_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return min((each + offset_s for each in began if each), default=0.0)


def _process_began_s(pid: int) -> float:
    try:
        return int(_fields_of(pid)[_START_TIME]) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return 0.0


def _fields_of(pid: int) -> list[str]:
    """The fields of proc_pid_stat(5) after the name."""
    text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    return text.rpartition(")")[2].split()
