"""A real Torque, where one is found, as a cluster that scenarios can be played on."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fixtures.torque_site import Binaries, TorqueSite, torque_up
from tests.fixtures.waiting import until
from tests.unit.torque.emulation.transcript import State

_QUIET = 2
"""Looks in a row that have to show the same."""
_SETTLES_S = 8.0
_REPORTS_S = 20.0
"""By then a mom has reported, though they do so every 5 s only and this machine may be busy."""
_GROUP = 61900
_SETTINGS = """
delete queue batch
create queue gpuq
set queue gpuq queue_type = Execution
set queue gpuq Priority = 50
set queue gpuq resources_max.walltime = 02:00:00
set queue gpuq resources_default.nodes = 1
set queue gpuq max_user_run = 2
set queue gpuq enabled = True
set queue gpuq started = True
create queue batch
set queue batch queue_type = Execution
set queue batch resources_default.nodes = 1
set queue batch resources_default.walltime = 01:00:00
set queue batch enabled = True
set queue batch started = True
set server default_queue = batch
set server acl_hosts = head
set server managers = root@head
set server operators = root@head
set server scheduling = False
set server query_other_jobs = True
set server mom_job_sync = True
set server node_check_rate = 150
set server tcp_timeout = 300
set server job_stat_rate = 45
set server poll_jobs = True
set server next_job_number = 1000
"""
_LISTENER = """
import socket, sys
sock = socket.socket()
sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
sock.bind(("", 15004))
sock.listen(50)
while True:
    with sock.accept()[0] as link:
        link.settimeout(2)
        print(int.from_bytes(link.recv(4), "big"), file=open(sys.argv[1], "a"), flush=True)
"""


class TorqueCluster:
    """A fresh real Torque, set up as `Played` is."""

    def __init__(self, site: TorqueSite) -> None:
        self._site = site
        self._told = site.folder / "events"
        self._n_told = 0

    def prepare(self) -> None:
        """Homes below /home, one group for all, a listener on the scheduler's port, queues and settings."""
        site = self._site
        passwd, group = site.folder / "etc" / "passwd", site.folder / "etc" / "group"
        lines = []
        for line in passwd.read_text(encoding="ascii").splitlines():
            fields = line.split(":")
            if fields[5].startswith(str(site.folder / "users")):
                fields[3], fields[5], fields[6] = str(_GROUP), f"/home/{fields[0]}", "/bin/bash"
                script = site.folder / "users" / fields[0] / "s.sh"
                script.write_text("sleep 1000\n", encoding="ascii")
            lines.append(":".join(fields))
        passwd.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
        with group.open("a", encoding="ascii") as file:
            file.write(f"hpc:x:{_GROUP}:\n")
        for host in site.hosts:
            site.must("mount", "--bind", str(site.folder / "users"), "/home", host=host)
        site.qmgr(_SETTINGS)
        words = site.argv(*site.python, "-c", _LISTENER, str(self._told))
        self._listener = subprocess.Popen(words, env=site.env, cwd="/", stdout=subprocess.DEVNULL)
        time.sleep(0.5)

    def close(self) -> None:
        """End the listener; the cluster's own end is another's business."""
        self._listener.kill()
        self._listener.wait()

    def run(self, user: str, argv: tuple[str, ...], stdin: str) -> tuple[int, str, str]:
        """Run one command as the recorded ones ran: its own folder, a short environment."""
        site = self._site
        program = shutil.which(argv[0], path=site.torque.path) or argv[0]
        home = f"/home/{'alice' if user == 'root' else user}"
        own = {
            "HOME": home, "USER": user, "LOGNAME": user, "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8",
            "SHELL": "/bin/bash", "LD_LIBRARY_PATH": site.env["LD_LIBRARY_PATH"],
        }  # fmt: skip
        words = ["env", "-i", "-C", home, *(f"{key}={value}" for key, value in own.items())]
        try:
            done = site.run(*words, program, *argv[1:], user=user, text=stdin)
        except subprocess.TimeoutExpired:
            return -1, "", "no answer within 60 s\n"
        folder = f"{Path(program).parent}/"
        return done.returncode, done.stdout.replace(folder, ""), done.stderr.replace(folder, "")

    def wait(self, seconds: float) -> None:
        """Let real time pass."""
        time.sleep(seconds)

    def settle(self, look: Callable[[], State]) -> None:
        """Until some looks in a row show the same, and no node waits for its mom.

        A node that was reset or cleared is down until its mom's next report.
        """
        began_s = time.monotonic()
        last: State = {}
        n_same = 0
        while n_same < _QUIET or _is_down(last):
            if time.monotonic() > began_s + (_REPORTS_S if _is_down(last) else _SETTLES_S):
                break
            time.sleep(0.25)
            now = look()
            n_same = n_same + 1 if now == last else 0
            last = now

    def events(self) -> list[int]:
        """What the server has sent since the last call."""
        codes = self._told.read_text(encoding="ascii").split() if self._told.exists() else []
        new = [int(code) for code in codes[self._n_told :]]
        self._n_told = len(codes)
        return new


def _is_down(state: State) -> bool:
    return any(attributes.get("state") == "down" for attributes in state.values())


@contextmanager
def real_cluster(torque: Binaries) -> Iterator[TorqueCluster]:
    """A fresh cluster for one scenario."""
    with torque_up(torque) as site:
        cluster = TorqueCluster(site)
        cluster.prepare()
        try:
            until(lambda: site.run("qstat", "-B").returncode == 0, "the server answers")
            yield cluster
        finally:
            cluster.close()
