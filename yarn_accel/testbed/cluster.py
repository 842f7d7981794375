"""A cluster as an object: bring it up, inspect it, disturb it, take it down.

``up`` compares observed and desired state and makes the difference. ``down`` finds everything by name and
mark, also what a killed launcher had not written down.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from yarn_accel.errors import ClusterError, ConfigError, StartupError
from yarn_accel.hadoop.java import find_java
from yarn_accel.testbed import preflight
from yarn_accel.testbed.allocation import allocate, ports_of
from yarn_accel.testbed.backend import Software
from yarn_accel.testbed.backends import check_machine, open_backend
from yarn_accel.testbed.bringup import BringUp, Daemon, summary
from yarn_accel.testbed.class_archives import ensure_archive
from yarn_accel.testbed.daemons import node_environ, running
from yarn_accel.testbed.host_nodes import STOP_DEADLINE_S
from yarn_accel.testbed.maven import ensure_hadoop
from yarn_accel.testbed.plan import (
    ClusterPlan,
    DaemonRole,
    NetworkMode,
    NodePlan,
    UpOptions,
    check_options,
    rate_bits_per_s,
)
from yarn_accel.testbed.processes import send, snapshot, stop_all
from yarn_accel.testbed.settings import write_settings
from yarn_accel.testbed.state import (
    ClusterPaths,
    ClusterSpec,
    Report,
    known_names,
    load,
    locked,
    silent,
)
from yarn_accel.testbed.status import ClusterStatus, read_status
from yarn_accel.testbed.teardown import STOP_GRACE_S, take_down
from yarn_accel.testbed.templates import ONE_MACHINE

_PASSED = ("HADOOP_CONF_DIR", "JAVA_HOME", "YARN_ACCEL_CLUSTER", "YARN_ACCEL_NODE")


class Cluster:
    """A cluster that was brought up on this machine. Get one from `up` or `open`."""

    def __init__(self, paths: ClusterPaths, spec: ClusterSpec) -> None:
        self._paths = paths
        self._spec = spec
        self._plan = spec.plan(paths)
        self._backend = open_backend(self._plan, paths)

    # ---- coming and going

    @classmethod
    def up(cls, options: UpOptions | None = None, report: Report = silent) -> Cluster:
        """Bring a cluster up, or repair it, or find that all is well.

        Args:
            options: what it shall be; an existing cluster must have been made with the same numbers of nodes,
                racks, accelerator nodes and slots, while link, delay and pipeline may change.
            report: gets progress lines.

        Raises:
            ConfigError: bad options, or other ones than the existing cluster has.
            StartupError: the machine lacks something.
            ClusterError: a command or a daemon failed; what was made stays for `status` and `logs`.
        """
        options = UpOptions() if options is None else options
        check_options(options)
        mode = preflight.choose_mode(options, os.geteuid())
        paths = ClusterPaths.of(options.name)
        if any(character.isspace() or character in ",:" for character in str(paths.root)):
            raise ConfigError(
                f"{paths.root} has blanks, commas or colons", cure="set XDG_STATE_HOME to another paths"
            )
        check_machine(mode, options, paths, report)
        install = ensure_hadoop(report)
        software = Software(install, ensure_archive(install, report))
        with locked(paths, report), contextlib.ExitStack() as reservations:
            return cls._up(paths, options, mode, software, report, reservations)

    @classmethod
    def _up(
        cls,
        paths: ClusterPaths,
        options: UpOptions,
        mode: NetworkMode,
        software: Software,
        report: Report,
        reservations: contextlib.ExitStack,
    ) -> Cluster:
        started_s = time.monotonic()
        existing = load(paths)
        if existing is None:
            preflight.check_disk(paths.root, float(ONE_MACHINE["disk_limit_percent"]))
        spec = allocate(paths, existing, options, mode, reservations)
        cluster = cls(paths, spec)
        made = cluster._backend.ensure(software, is_new=existing is None)
        plan = cluster._plan
        alive = running(paths, plan.daemons(), snapshot())
        missing = [(node, role) for node, role in plan.daemons() if (node.name, role) not in alive]
        stopped = cluster._stop_surplus()
        if stopped:
            report("stopped " + summary(stopped))
        if existing is not None and made:
            report("restored " + ", ".join(made))
        if missing:
            cluster._check_capacity(missing)
            if existing is not None:
                report(f"{len(missing)} of {len(plan.daemons())} daemons do not run")
        write_settings(plan, paths, software.install, software.archive)
        BringUp(cluster._backend, plan, paths, software, report).run(missing)
        if missing or made or stopped:
            report(f"cluster {paths.name} is up after {time.monotonic() - started_s:.1f} s")
        else:
            report(f"cluster {paths.name} is up and healthy; nothing to do")
        return cluster

    @classmethod
    def open(cls, name: str = "default") -> Cluster:
        """Return a cluster that was brought up earlier, healthy or not.

        Raises:
            ClusterError: there is none of that name, or its state is damaged.
        """
        paths = ClusterPaths.of(name)
        spec = load(paths)
        if spec is None:
            others = ", ".join(known_names()) or "none"
            raise ClusterError(f"there is no cluster {name} (known: {others})", cure="yarn-accel cluster up")
        return cls(paths, spec)

    def down(self, report: Report = silent) -> None:
        """Take the cluster down, see `take_down`."""
        take_down(self.name, report)

    # ---- looking

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self._paths.name

    @property
    def plan(self) -> ClusterPlan:
        """Names, addresses, racks and ports."""
        return self._plan

    @property
    def conf_dir(self) -> Path:
        """A HADOOP_CONF_DIR for programs on this machine: works by addresses and needs no name resolution."""
        return self._paths.client_conf_dir

    @property
    def node_conf_dir(self) -> Path:
        """The configuration that daemons and containers use."""
        return self._paths.conf_dir

    @property
    def hosts_file(self) -> Path:
        """Names and addresses of the nodes and this machine, in the format of /etc/hosts."""
        return self._paths.hosts_file

    @property
    def binding_file(self) -> Path:
        """Which pipeline server serves which node."""
        return self._paths.binding_file

    @property
    def master_secret_file(self) -> Path:
        """The pipeline servers' master secret."""
        return self._paths.master_secret_file

    @property
    def pipeline_config_files(self) -> tuple[Path, ...]:
        """The settings of each pipeline server, for `yarn-accel pipeline stats --config FILE`."""
        return tuple(self._paths.pipeline_config(node.name) for node in self._plan.accel_nodes)

    def description(self) -> dict[str, Any]:
        """What a program asks of a cluster: the status as JSON, the workers, and where files are."""
        return {
            **self.status().as_json(),
            "workers": [
                {"name": node.name, "host": node.host, "rack": node.rack, "is_accelerated": node.is_accel}
                for node in self._plan.workers
            ],
            "pipeline_config_files": [str(path) for path in self.pipeline_config_files],
            "logs_dir": str(self._paths.logs_dir),
        }

    def status(self) -> ClusterStatus:
        """Look at every daemon now."""
        return read_status(self._backend, self._plan, self._paths)

    def log_files(self, node: str = "", role: str = "") -> list[Path]:
        """Return the logs of all daemons, of a node's, or of one; only those that exist.

        Raises:
            ConfigError: no such node or role.
        """
        nodes = [self._plan.node(node)] if node else list(self._plan.nodes)
        roles = [self._role(nodes[0], role)] if role else None
        found = [
            self._paths.log_file(each.name, wanted.value)
            for each in nodes
            for wanted in (roles or self._plan.roles(each))
        ]
        return [path for path in found if path.exists()]

    def exec_argv(self, node: str, argv: Sequence[str]) -> list[str]:
        """Return the command that runs `argv` on a node, with the environment of that node.

        Raises:
            ConfigError: no such node.
        """
        target = self._plan.node(node)
        java_home = None
        with contextlib.suppress(StartupError):
            java_home = find_java().parents[1]
        environ = node_environ(self._paths, target, java_home)
        values = [f"{key}={environ[key]}" for key in _PASSED if key in environ]
        return self._backend.exec_argv(target, ["env", "-u", "HADOOP_HOME", *values, *argv])

    # ---- disturbing

    def cut(self, node: str) -> None:
        """Switch a node's link off: nobody reaches it, and its processes go on.

        Raises:
            ConfigError: no such node, or loopback mode.
        """
        self._backend.set_link(self._plan.node(node), is_up=False)

    def heal(self, node: str) -> None:
        """Switch a node's link on again.

        Raises:
            ConfigError: no such node, or loopback mode.
        """
        self._backend.set_link(self._plan.node(node), is_up=True)

    def slow(self, node: str, link: str) -> None:
        """Limit a node's link to a rate such as ``10mbit``; empty: as the cluster was made again.

        Raises:
            ConfigError: no such node, not a rate, or loopback mode.
            StartupError: the kernel cannot do it.
        """
        target = self._plan.node(node)
        if link:
            rate_bits_per_s(link)
        self._backend.shape(target, link or self._plan.link_of(target))

    def pause(self, node: str) -> None:
        """Freeze all processes of a node: peers connect and wait, for its kernel still answers.

        Raises:
            ConfigError: no such node.
        """
        self._backend.pause(self._plan.node(node))

    def resume(self, node: str) -> None:
        """Have a paused node go on.

        Raises:
            ConfigError: no such node.
        """
        self._backend.resume(self._plan.node(node))

    def kill(self, node: str, role: str, signum: int = signal.SIGKILL) -> int:
        """Send a signal to a daemon and return its pid; after SIGKILL, when it has gone.

        Raises:
            ConfigError: no such node or role.
            ClusterError: it does not run.
        """
        target = self._plan.node(node)
        wanted = self._role(target, role)
        process = running(self._paths, [(target, wanted)], snapshot()).get((target.name, wanted))
        if process is None or not send(process, signum):
            raise ClusterError(f"{role} of node {node} does not run")
        deadline = time.monotonic() + STOP_GRACE_S
        while signum == signal.SIGKILL and time.monotonic() < deadline:
            now = {(each.pid, each.start_ticks) for each in snapshot()}
            if (process.pid, process.start_ticks) not in now:
                break
            time.sleep(0.02)
        return process.pid

    def _role(self, node: NodePlan, role: str) -> DaemonRole:
        known = [each.value for each in self._plan.roles(node)]
        if role not in known:
            raise ConfigError(
                f"node {node.name} has no daemon {role!r}", cure=f"its daemons are {', '.join(known)}"
            )
        return DaemonRole(role)

    def start(self, node: str, role: str, report: Report = silent) -> None:
        """Start one daemon again and wait until it is healthy; nothing to do when it runs.

        Raises:
            ConfigError: no such node or role.
            ClusterError: it is not healthy; it goes on where it only waits for others that do not run.
        """
        target = self._plan.node(node)
        wanted = self._role(target, role)
        install = ensure_hadoop(report)
        software = Software(install, ensure_archive(install, report))
        with locked(self._paths, report):
            if (node, wanted) in running(self._paths, [(target, wanted)], snapshot()):
                report(f"{role} of node {node} runs already")
                return
            BringUp(self._backend, self._plan, self._paths, software, report).run_one(target, wanted)

    # ---- parts of `up`

    def _stop_surplus(self) -> list[Daemon]:
        """Stop pipeline servers that the options no longer ask for; returns those that ran."""
        if self._plan.options.pipeline:
            return []
        servers = [(node, DaemonRole.PIPELINE) for node in self._plan.accel_nodes]
        alive = running(self._paths, servers, snapshot())
        stop_all(
            lambda: list(running(self._paths, servers, snapshot()).values()),
            grace_s=STOP_GRACE_S,
            deadline_s=STOP_DEADLINE_S,
        )
        return [(node, role) for node, role in servers if (node.name, role) in alive]

    def _check_capacity(self, missing: Sequence[tuple[NodePlan, DaemonRole]]) -> None:
        share = sum(role is DaemonRole.NODEMANAGER for _, role in missing)
        if share:
            preflight.check_memory(share)
        if self._plan.mode is NetworkMode.LOOPBACK:
            preflight.check_fixed_ports(ports_of(self._plan, missing))
