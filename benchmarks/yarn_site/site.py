"""The cluster, the application on it, and what an admin, a mapper or a fault does to them."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import yaml

from benchmarks.yarn_site.caller import Caller
from benchmarks.yarn_site.options import SiteOptions
from yarn_accel.adapters.credentials import issue_token_file, read_master_secret
from yarn_accel.adapters.hadoop_rpc import ApplicationId
from yarn_accel.adapters.hadoop_rpc.backend import ResourceManager
from yarn_accel.adapters.hadoop_rpc.records import ApplicationReport, NodeReport
from yarn_accel.errors import ClusterError, UnavailableError
from yarn_accel.launch.control import Control
from yarn_accel.launch.gateway import APPLICATION_TYPE, Gateway, find_running
from yarn_accel.launch.kept import Kept
from yarn_accel.master.inventory import attribute_of
from yarn_accel.testbed import Cluster, take_down
from yarn_accel.testbed.state import Report, silent

__all__ = ["DEADLINE_S", "ROOT", "Site", "site_up"]

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 120.0
_CREDENTIAL_S = 3600.0
_NAME = "yarn-accel"
_INSIDE = "yarn_accel.launch.container_entry"
T = TypeVar("T")


class Site:
    """A cluster that is up; `start` brings the application.

    Args:
        cluster: where.
        options: what the cluster was made from, and how the application is started.
        folder: for settings, secrets and tokens; the admin's state lies there, too.

    Attributes:
        servers: hosts that play accelerators.
        others: hosts of the other workers.
        late: hosts of accelerator nodes that have not joined yet.
        names: host -> the launcher's name of each worker (equal in netns mode).
        environ: of the admin's commands.
        run_dir: of the agents, with ``{node}`` for the host.
        settings: what `start` was given.
    """

    def __init__(self, cluster: Cluster, options: SiteOptions, folder: Path) -> None:
        self.cluster = cluster
        self.options = options
        self.folder = folder
        self.environ = {
            **os.environ,
            "HADOOP_CONF_DIR": str(cluster.conf_dir),
            "XDG_STATE_HOME": str(folder / "state"),
        }
        self.gateway = Gateway.load(self.environ)
        plan = cluster.plan
        chosen = options.accelerators
        accel = plan.accel_nodes if isinstance(chosen, int) else tuple(plan.node(name) for name in chosen)
        self.servers = [node.host for node in accel]
        self.late = [node.host for node in plan.late_nodes]
        later = {*self.servers, *self.late}
        self.others = [node.host for node in plan.workers if node.host not in later]
        self.names = {node.host: node.name for node in plan.workers}
        self.run_dir = f"/tmp/yarn-accel-{options.name}-{os.getpid()}/{{node}}"
        self.settings = folder / "launch.yaml"
        self.write_settings()
        self._application: ApplicationId | None = None

    # ---- what its admin does

    def write_settings(self, options: SiteOptions | None = None) -> None:
        """Write ``launch.yaml`` from the site's options, or from other ones for the same cluster."""
        self.options = options or self.options
        self.settings.write_text(
            yaml.safe_dump(self.options.launch([*self.servers, *self.late], self.run_dir))
        )

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """Start ``yarn-accel`` with these words as its admin does."""
        return subprocess.Popen(
            [sys.executable, "-m", "yarn_accel", *words],
            cwd=ROOT,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, code: int = 0) -> str:
        """Run a command to its end; what it printed on stdout, or on stderr when it shall fail.

        Raises:
            ClusterError: it ended with another exit code.
        """
        process = self.begin(*words)
        try:
            out, err = process.communicate(timeout=DEADLINE_S)
        except BaseException:
            process.kill()
            process.communicate()
            raise
        if process.returncode != code:
            raise ClusterError(
                f"`yarn-accel {' '.join(words)}` ended with {process.returncode}, not {code}\n"
                f"{out}\n{err}\n{self.logs()}"
            )
        return err if code else out

    def start(self, options: SiteOptions | None = None) -> float:
        """Start the application and wait until it `is_whole`; seconds that took.

        Args:
            options: other settings than the site's, for the same cluster; they stay.
        """
        if options is not None:
            self.write_settings(options)
        began_s = time.monotonic()
        self.run("start", "--config", str(self.settings))
        self._application = None
        self.until("every accelerator node serves and every other is bound", self.is_whole)
        return time.monotonic() - began_s

    def stop(self) -> float:
        """Stop the application and wait until none of its containers is left; seconds that took."""
        began_s = time.monotonic()
        self.run("stop")
        self._application = None
        self.until("no process of a container is left", lambda: not self.processes())
        return time.monotonic() - began_s

    def join(self, host: str) -> float:
        """Start the NodeManager of a late accelerator node; when it was told to, Unix seconds."""
        at = time.time()
        self.cluster.start(self.names[host], "nodemanager")
        self.late.remove(host)
        self.servers.append(host)
        return at

    # ---- what YARN says

    def ask(self, question: Callable[[ResourceManager], Awaitable[T]]) -> T:
        """Ask the ResourceManager."""

        async def asked() -> T:
            async with self.gateway.manager() as manager:
                return await question(manager)

        return asyncio.run(asked())

    @property
    def application(self) -> ApplicationId:
        """The id of the application that runs.

        Raises:
            UnavailableError: none does.
        """
        if self._application is None:
            found = self.ask(lambda manager: find_running(manager, _NAME))
            if not found:
                raise UnavailableError("no application runs on this site", cure="call start()")
            self._application = found[0].id
        return self._application

    def applications(self) -> list[ApplicationReport]:
        """All applications of ours that have not ended."""
        found = self.ask(lambda manager: manager.applications(types=[APPLICATION_TYPE]))
        return [report for report in found if report.state is None or not report.state.is_final]

    def master_node(self) -> str:
        """Where the master runs."""
        application = self.application
        return str(self.ask(lambda manager: manager.report(application)).host)

    def nodes(self) -> dict[str, NodeReport]:
        """Nodes that run, by host."""
        return {each.node.host: each for each in self.ask(lambda manager: manager.nodes())}

    def slots(self) -> dict[str, int | None]:
        """``acct/slot`` of each node now."""
        found = self.nodes().items()
        return {host: each.capability.other.get("acct/slot") for host, each in found if each.capability}

    def attribute(self, host: str, name: str = "accel-bind") -> str | None:
        """What the master has published of a node; None: nothing."""
        report = self.nodes().get(host)
        return attribute_of(report, name) if report is not None else None

    def attributes(self) -> set[str]:
        """Names of all attributes that an operator, such as the master, has set on any node."""
        reports = self.nodes().values()
        found = (each.key for report in reports for each in report.attributes)
        return {key.name for key in found if key.prefix == "rm.yarn.io"}

    # ---- what the master says

    def state(self) -> dict[str, Any]:
        """The master's state (as ``status --json``); without nodes while there is no master."""

        application = self.application
        secret = Kept.of(str(application), self.environ).secret()

        async def asked(manager: ResourceManager) -> dict[str, Any]:
            async with Control(self.gateway, manager, application, secret, patience_s=0.0) as control:
                answer: dict[str, Any] = (await control.ask("status"))["state"]
                return answer

        try:
            return self.ask(asked)
        except UnavailableError:
            return {"nodes": {}, "attempt": 0}

    def is_whole(self) -> bool:
        """Whether every accelerator node serves and every other node is bound."""
        nodes = self.state()["nodes"]
        has_servers = all(nodes.get(host, {}).get("is_serving") for host in self.servers)
        return has_servers and all(nodes.get(host, {}).get("bound") for host in self.others)

    def bound(self, host: str) -> str | None:
        """The server that a node is bound to."""
        found: str | None = self.state()["nodes"].get(host, {}).get("bound")
        return found

    def serves(self, host: str) -> bool:
        """Whether the master counts on the server of a node."""
        return bool(self.state()["nodes"].get(host, {}).get("is_serving"))

    def container(self, host: str, role: str) -> str:
        """Id of the one container of a role on a node; empty: there is none, or more than one, just now."""
        places = self.state()["nodes"].get(host, {}).get("places", {})
        held = [str(each["id"]) for each in places.get(role, {}).get("containers", ())]
        return held[0] if len(held) == 1 else ""

    # ---- what runs in containers

    def processes(self, container: str = "") -> dict[int, str]:
        """Processes of a container, or of all containers of this cluster, by pid: their command lines."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                environ = (path / "environ").read_bytes()
                command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            is_ours = f"/clusters/{self.cluster.name}/".encode() in environ
            if is_ours and f"CONTAINER_ID={container}".encode() in environ and command:
                found[int(path.name)] = command
        return found

    def kill(self, container: str = "", what: str = "", signum: int = signal.SIGKILL) -> float:
        """Kill the main process of a container of ours, or the one named (``master run``).

        Returns:
            When it was done, Unix seconds.

        Raises:
            ClusterError: there is no such process.
        """
        main = f"{_INSIDE} {what}"
        processes = self.processes(container)
        pids = [pid for pid, command in processes.items() if main in command]
        if not pids:
            raise ClusterError(f"no process of {container or what} runs; there are {processes}")
        at = time.time()
        os.kill(min(pids), signum)
        return at

    # ---- mappers

    def token_file(self) -> Path:
        """A new file with a credential that every pipeline server of the site accepts."""
        token = self.folder / f"token-{time.monotonic_ns()}"
        secret = read_master_secret(self.cluster.master_secret_file)
        return issue_token_file(token, secret, _CREDENTIAL_S)

    def mapper_argv(self, host: str, script: Path, *words: str) -> list[str]:
        """The command that runs a Python script on a node with the variables that find its server.

        Its arguments are the folder to import from, a file with a credential, and `words`.
        """
        agent = f"ACCEL_AGENT={self.agent_socket(host)}"
        python = [sys.executable, str(script), str(ROOT), str(self.token_file()), *words]
        return self.cluster.exec_argv(self.names[host], ["env", f"NM_HOST={host}", agent, *python])

    def agent_socket(self, host: str) -> str:
        """Where the agent of a node listens."""
        return f"{self.run_dir.format(node=host)}/agent.sock"

    def caller(self, host: str) -> Caller:
        """A new mapper on a node that calls its server without end."""
        return Caller(self.mapper_argv(host, Path(__file__).with_name("caller_program.py")))

    # ---- waiting

    def until(self, what: str, condition: Callable[[], T], pause_s: float = 0.05) -> T:
        """Wait until a condition holds; its answer.

        Raises:
            ClusterError: it never did; the message ends with the containers' logs.
        """
        until_s = time.monotonic() + DEADLINE_S
        while not (answer := condition()):
            if time.monotonic() >= until_s:
                raise ClusterError(f"never: {what}\n{self.logs()}")
            time.sleep(pause_s)
        return answer

    def logs(self, n_characters: int = 2500) -> str:
        """The ends of all containers' logs."""
        paths = sorted(self.cluster.conf_dir.parent.glob("nodes/*/nm-logs/*/*/stderr"))
        texts = ((path.parent.name, path.read_text(errors="replace")) for path in paths)
        return "\n".join(f"{container}: {text[-n_characters:]}" for container, text in texts)

    def close(self) -> None:
        """Take away what agents left outside the cluster's folders."""
        shutil.rmtree(Path(self.run_dir).parent, ignore_errors=True)


@contextmanager
def site_up(options: SiteOptions, folder: Path, report: Report = silent) -> Iterator[Site]:
    """A cluster for as long as the block lasts; whatever was left of an earlier one of its name goes first.

    Raises:
        StartupError: the machine lacks something that Hadoop or the mode needs.
    """
    take_down(options.name)
    site: Site | None = None
    try:
        site = Site(Cluster.up(options.cluster(), report), options, folder)
        yield site
    finally:
        take_down(options.name)
        if site is not None:  # only now does no agent write there any more
            site.close()
