"""One node's worth of Hadoop in the plain network: five daemons on loopback, on ports that are free.

For tests that need a real Hadoop but no cluster, and for recording the class list that the class data archive
is dumped from: every role works a little while its JVM writes down each class it loads, and the lists are
merged. Maintainers record when the Hadoop version changes; everybody else uses the list that the package
ships. The cluster launcher is `yarn_accel.testbed.cluster`.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import secrets
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click
import yaml

from yarn_accel.adapters.commands import run
from yarn_accel.adapters.rest import get_json, get_text, request_json
from yarn_accel.errors import AccelError, ClusterError
from yarn_accel.hadoop.java import HadoopInstall, archive_options, java_argv
from yarn_accel.hadoop.site import SITE_FILE, HadoopSite
from yarn_accel.hadoop.streaming import (
    NLINE_INPUT_FORMAT,
    SEQUENCE_INPUT_FORMAT,
    SEQUENCE_OUTPUT_FORMAT,
    StreamingJob,
    run_streaming,
)
from yarn_accel.local_filesystem import write_atomic
from yarn_accel.testbed.settings import ONE_MACHINE, PLACEHOLDERS, render, task_values
from yarn_accel.testbed.software import CLASS_LIST, ensure_hadoop
from yarn_accel.users import login_name

ROLES = ("namenode", "resourcemanager", "datanode", "nodemanager", "historyserver")
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 30.0


class SingleNode:
    """A single-node Hadoop, up inside its ``with`` block, which leaves no process behind.

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


def merge_class_lists(texts: Sequence[str]) -> str:
    """One sorted list out of several; what only one run numbered or generated is dropped.

    ``-XX:DumpLoadedClassList`` may number classes, for the sake of classes of other loaders; those cannot be
    merged, and the classes of the built-in loaders need no number.
    """
    lines = set()
    for text in texts:
        for line in text.splitlines():
            name = line.split(" id: ")[0].strip()
            if not name or name.startswith("#") or " source: " in line or "$$" in name.split(" ")[0]:
                continue
            lines.add(name)
    return "\n".join(sorted(lines)) + "\n"


def record_class_list(install: HadoopInstall, target: Path, report: Callable[[str], None]) -> int:
    """Record the classes of every role into ``target`` (gzip, the same bytes for the same classes).

    Returns:
        The number of entries.

    Raises:
        ClusterError: a daemon did not start.
        JobError: a job failed.
    """
    with tempfile.TemporaryDirectory(prefix="cluster-accel-record-") as name:
        work = Path(name)
        lists = work / "lists"
        lists.mkdir()
        with SingleNode(install, work, report, class_lists=lists) as node:
            _exercise(node, lists, report)
        texts = [path.read_text(errors="replace") for path in sorted(lists.glob("*.lst"))]
        report(f"merging {len(texts)} class lists")
        merged = merge_class_lists(texts)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(gzip.compress(merged.encode(), 9, mtime=0))
    return merged.count("\n")


def _exercise(node: SingleNode, lists: Path, report: Callable[[str], None]) -> None:
    """Let every role do what it does in real life: WebHDFS, jobs, REST."""
    site = HadoopSite.load(node.environ)
    files = f"{node.web('namenode')}/webhdfs/v1"
    user = f"user.name={login_name()}"
    request_json("PUT", f"{files}/record/in?op=MKDIRS&{user}")
    local = node.work / "lines.txt"
    local.write_text("one\ntwo\n")
    node.put(local, "/record/in/lines.txt")
    get_text(f"{files}/record/in/lines.txt?op=OPEN&{user}")
    get_json(f"{files}/record?op=LISTSTATUS&{user}")
    for job in _jobs(local, lists):
        options = (f"-XX:DumpLoadedClassList={lists}/client-{job.name}.lst",)
        result = run_streaming(site, job, report, jvm_options=options).check()
        report(f"{job.name}: took {result.wall_s:.0f} s")
    for url in (
        f"{node.web('rm')}/ws/v1/cluster/apps",
        f"{node.web('rm')}/ws/v1/cluster/scheduler",
        f"{node.web('rm')}/ws/v1/cluster/metrics",
        f"{node.web('nm')}/ws/v1/node/info",
        f"{node.web('namenode')}/jmx?qry=java.lang:type=Memory",
    ):
        get_json(url)


def _jobs(local: Path, lists: Path) -> Iterator[StreamingJob]:
    base = "hdfs:///record"
    master_key = "yarn.app.mapreduce.am.command-opts"
    tasks = {"mapred.child.java.opts": f"-Xmx160m -XX:DumpLoadedClassList={lists}/task-@taskid@.lst"}
    yield StreamingJob(
        name="lines",
        mapper="cat",
        reducer="cat",
        inputs=[f"{base}/in"],
        output=f"{base}/lines",
        files=[str(local)],
        properties={
            **tasks,
            master_key: f"-Xmx320m -XX:DumpLoadedClassList={lists}/master-lines.lst",
            "mapreduce.input.lineinputformat.linespermap": "1",
            "mapreduce.map.resource.acct/slot": "1",
        },
        input_format=NLINE_INPUT_FORMAT,
        output_format=SEQUENCE_OUTPUT_FORMAT,
    )
    yield StreamingJob(
        name="records",
        mapper="cat",
        reducer="cat",
        inputs=[f"{base}/lines"],
        output=f"{base}/records",
        properties={
            **tasks,
            master_key: f"-Xmx320m -XX:DumpLoadedClassList={lists}/master-records.lst",
        },
        input_format=SEQUENCE_INPUT_FORMAT,
        output_format=SEQUENCE_OUTPUT_FORMAT,
        io="typedbytes",
    )


@click.command("record-classes")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=CLASS_LIST,
    show_default="the package's own list",
    help="Where to write the list.",
)
def record_command(output: Path) -> None:
    """Record anew which classes the class data archive holds (for maintainers, about a minute)."""

    def report(text: str) -> None:
        click.echo(text, err=True)

    n_classes = record_class_list(ensure_hadoop(report), output, report)
    click.echo(f"{n_classes} classes in {output}")
