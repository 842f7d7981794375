"""One node's worth of Hadoop in the plain network: five daemons on loopback, on ports that are free.

Good for recording the class list and for tests of what needs a real Hadoop but no cluster; the cluster
launcher is in :mod:`yarn_accel.testbed`. Lives as long as a ``with`` block and leaves no process behind.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml

from yarn_accel.adapters.commands import run
from yarn_accel.adapters.rest import get_json, get_text
from yarn_accel.errors import AccelError, ClusterError
from yarn_accel.hadoop.java import HadoopInstall, archive_options, java_argv
from yarn_accel.hadoop.site import SITE_FILE
from yarn_accel.local_filesystem import write_atomic
from yarn_accel.testbed.templates import ONE_MACHINE, PLACEHOLDERS, render, task_values

ROLES = ("namenode", "resourcemanager", "datanode", "nodemanager", "historyserver")
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 30.0


class SingleNode:
    """A single-node Hadoop, up inside its ``with`` block.

    Args:
        install: the jars.
        work: an empty directory for configuration, data and logs.
        report: gets a line per step.
        archive: class data archive for daemons and tasks.
        class_lists: directory that gets the list of loaded classes of each daemon (for recording).
    """

    def __init__(
        self,
        install: HadoopInstall,
        work: Path,
        report: Callable[[str], None],
        *,
        archive: Path | None = None,
        class_lists: Path | None = None,
    ) -> None:
        self._install = install
        self._report = report
        self._archive = archive
        self._class_lists = class_lists
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._marker = secrets.token_hex(8)
        names = [name for name in PLACEHOLDERS if name.endswith("_port")]
        self._ports = dict(zip(names, free_ports(len(names)), strict=True))
        self.work = work
        self.conf_dir = work / "conf"

    def __enter__(self) -> SingleNode:
        self._configure()
        self._report("single node: formatting the NameNode, then starting every role")
        self.java("namenode", "format", ["-format", "-nonInteractive"])
        with contextlib.ExitStack() as undo:
            undo.callback(self._stop)
            for role in ROLES:
                self._start(role)
            self._wait()
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._report("single node: stopping every role")
        self._stop()

    @property
    def environ(self) -> dict[str, str]:
        """This process's environment, with HADOOP_CONF_DIR set for this Hadoop and HADOOP_HOME unset."""
        environ = {name: value for name, value in os.environ.items() if name != "HADOOP_HOME"}
        environ["HADOOP_CONF_DIR"] = str(self.conf_dir)
        environ["JAVA_HOME"] = str(self._install.java_home)
        return environ

    def java(self, main_class: str, name: str, arguments: Sequence[str]) -> str:
        """Run a Java program of Hadoop (such as the file system shell) to its end; its standard output.

        Raises:
            ClusterError: it failed.
        """
        done = run(self._argv(main_class, name, arguments), 120, env=self.environ)
        if not done.ok:
            raise ClusterError(f"{main_class} {' '.join(arguments)} failed: {done.last_line()}")
        return done.stdout

    def put(self, local: Path, target: str) -> None:
        """Copy a local file into HDFS."""
        self.java("org.apache.hadoop.fs.FsShell", "shell", ["-put", "-f", str(local), target])

    def web(self, service: str) -> str:
        """Web address of ``namenode``, ``rm``, ``nm`` or ``history``."""
        name = "namenode_http_port" if service == "namenode" else f"{service}_web_port"
        return f"http://localhost:{self._ports[name]}"

    def _configure(self) -> None:
        values = {
            **ONE_MACHINE,
            **{name: str(port) for name, port in self._ports.items()},
            "namenode_host": "localhost",
            "resourcemanager_host": "localhost",
            "historyserver_host": "localhost",
            "worker_bind_host": "127.0.0.1",
            "datanode_bind_host": "127.0.0.1",
            "worker_host": "localhost",
            "data_dir": str(self.work / "data"),
            "replication": "1",
            "slots": "4",
            "http_user": "",
            "cluster_marker": self._marker,
            **task_values(self._install, self._archive, self.conf_dir),
        }
        render(values, self.conf_dir)
        client = {"client_jvm_options": archive_options(self._archive)}
        write_atomic(self.conf_dir / SITE_FILE, yaml.safe_dump(client))

    def _argv(self, role: str, name: str, arguments: Sequence[str] = ()) -> list[str]:
        lists = self._class_lists
        options = () if lists is None else (f"-XX:DumpLoadedClassList={lists}/{name}.lst",)
        return java_argv(
            self._install,
            role,
            self.conf_dir,
            archive=self._archive,
            jvm_options=options,
            arguments=arguments,
        )

    def _start(self, role: str) -> None:
        with (self.work / f"{role}.log").open("wb") as log:
            self._processes[role] = subprocess.Popen(
                self._argv(role, role), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environ
            )

    def _wait(self) -> None:
        nodes = f"{self.web('rm')}/ws/v1/cluster/nodes?states=RUNNING"
        live = f"{self.web('namenode')}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
        history = f"{self.web('history')}/ws/v1/history/info"
        self._until("the NodeManager", lambda: bool(get_json(nodes).get("nodes")))
        self._until("the DataNode", lambda: '"NumLiveDataNodes" : 1' in get_text(live))
        self._until("the history server", lambda: bool(get_json(history)))

    def _until(self, what: str, ready: Callable[[], bool]) -> None:
        end_s = time.monotonic() + START_TIMEOUT_S
        while True:
            with contextlib.suppress(AccelError):
                if ready():
                    return
            for role, process in self._processes.items():
                if process.poll() is not None:
                    tail = (self.work / f"{role}.log").read_text(errors="replace")[-600:]
                    raise ClusterError(f"{role} ended with status {process.returncode}: {tail}")
            if time.monotonic() > end_s:
                raise ClusterError(f"{what} did not start within {START_TIMEOUT_S:.0f} s")
            time.sleep(0.3)

    def _stop(self) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(timeout=STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._end_containers()

    def _end_containers(self) -> None:
        """End the containers, which a NodeManager with recovery leaves alone: all that carry our marker."""
        marker = f"YARN_ACCEL_CLUSTER={self._marker}".encode()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if marker in path.read_bytes().split(b"\0"):
                    os.kill(int(path.parent.name), signal.SIGKILL)


def free_ports(n: int) -> list[int]:
    """``n`` different ports on loopback that are free at this moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
