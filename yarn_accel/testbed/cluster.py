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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from yarn_accel.errors import ClusterError, ConfigError, StartupError
from yarn_accel.hadoop.java import HADOOP_VERSION, find_java
from yarn_accel.testbed import host_nodes, kerberos, preflight
from yarn_accel.testbed.backends import DOWN_GRACE_S, Backend, check_machine, open_backend, take_down
from yarn_accel.testbed.daemons import BringUp, Daemon, ask, node_environ, running, summary, web_address
from yarn_accel.testbed.host_nodes import STOP_DEADLINE_S
from yarn_accel.testbed.plan import (
    KDC_PORT,
    ZOOKEEPER_PORT,
    ClusterPlan,
    DaemonRole,
    NetworkMode,
    NodePlan,
    UpOptions,
    check_options,
    port_span,
    rate_bits_per_s,
)
from yarn_accel.testbed.processes import Memory, marked_environ, memory_of, send, snapshot, stop_all
from yarn_accel.testbed.settings import ONE_MACHINE, write_settings
from yarn_accel.testbed.software import Software, ensure_software
from yarn_accel.testbed.state import (
    ClusterPaths,
    ClusterSpec,
    Report,
    known_names,
    load,
    locked,
    machine_lock,
    save,
    silent,
)

_FIXED_OPTIONS = (
    "nodes",
    "racks",
    "accel_nodes",
    "slots",
    "late",
    "secure",
    "protection",
    "token_life_s",
    "ha",
    "hadoop_version",
)


def allocate(
    paths: ClusterPaths,
    existing: ClusterSpec | None,
    options: UpOptions,
    mode: NetworkMode,
    reservations: contextlib.ExitStack,
) -> ClusterSpec:
    """Write down the specification of a cluster.

    Args:
        paths: the cluster.
        existing: its specification so far; None for a new cluster, which gets free numbers.
        options: what is asked for now.
        mode: how its nodes are made.
        reservations: holds a new cluster's numbers against other users and state folders of this machine, who
            see them when its bridge or its daemons are there.

    Raises:
        ConfigError: the cluster exists with other options that cannot change.
        StartupError: no numbers are free.
    """
    if existing is None:
        return _choose(paths, options, mode, reservations)
    differing = [key for key in _FIXED_OPTIONS if getattr(existing.options, key) != getattr(options, key)]
    for key in differing:
        old, new = getattr(existing.options, key), getattr(options, key)
        raise _cannot_change(paths, f"{key} {old}, not {new}")
    if existing.mode is not mode:
        raise _cannot_change(paths, f"{existing.mode.value} mode, not {mode.value}")
    spec = replace(existing, options=options)
    if spec != existing:
        save(paths, spec)
    return spec


def _cannot_change(paths: ClusterPaths, what: str) -> ConfigError:
    return ConfigError(
        f"cluster {paths.name} exists with {what}",
        cure=f"take it down first: yarn-accel cluster down {paths.name}",
    )


def _choose(
    paths: ClusterPaths, options: UpOptions, mode: NetworkMode, reservations: contextlib.ExitStack
) -> ClusterSpec:
    others = [other for name in known_names() if name != paths.name and (other := _load_or_none(name))]
    with machine_lock("numbers"):
        subnet = port_base = 0
        owned: set[str] = set()
        if mode.has_links:
            taken = set(host_nodes.used_subnets(marked_environ(paths)))
            taken |= {other.subnet for other in others if other.mode.has_links}
            subnet = preflight.choose_subnet(taken)
            while not _is_reserved(f"subnet.{subnet}", reservations):
                taken.add(subnet)
                subnet = preflight.choose_subnet(taken)
            if mode is NetworkMode.NETNS:
                owned = set(host_nodes.absent_now()).union(*(other.owned for other in others))
        else:
            span = port_span(options.nodes)
            blocks = [
                range(other.port_base, other.port_base + port_span(other.options.nodes))
                for other in others
                if other.mode is NetworkMode.LOOPBACK
            ]
            port_base = preflight.choose_port_base(span, blocks)
            while not all(
                _is_reserved(f"ports.{base}", reservations)
                for base in range(port_base, port_base + span, preflight.PORT_BASES.step)
            ):
                blocks.append(range(port_base, port_base + span))
                port_base = preflight.choose_port_base(span, blocks)
        spec = ClusterSpec(options, mode, subnet, port_base, time.time(), tuple(sorted(owned)))
        save(paths, spec)
    return spec


def _is_reserved(number: str, reservations: contextlib.ExitStack) -> bool:
    """Whether the number is ours for as long as `reservations` are held."""
    try:
        reservations.enter_context(machine_lock(number, 0.0))
    except ClusterError:
        return False
    return True


def _load_or_none(name: str) -> ClusterSpec | None:
    with contextlib.suppress(ClusterError):
        return load(ClusterPaths.of(name))
    return None


def ports_of(plan: ClusterPlan, daemons: Sequence[tuple[NodePlan, DaemonRole]]) -> list[tuple[str, int]]:
    """Return (whose it is, port) of every port that `daemons` listen on."""
    wanted = []
    for node, role in daemons:
        ports = node.ports
        numbers = {
            DaemonRole.KDC: (KDC_PORT,),
            DaemonRole.ZOOKEEPER: (ZOOKEEPER_PORT,),
            DaemonRole.ZKFC: (),
            DaemonRole.NAMENODE: (plan.ports.namenode, plan.ports.namenode_http),
            DaemonRole.RESOURCEMANAGER: (
                plan.ports.rm_scheduler,
                plan.ports.rm_tracker,
                plan.ports.rm,
                plan.ports.rm_admin,
                plan.ports.rm_http,
            ),
            DaemonRole.HISTORYSERVER: (plan.ports.history, plan.ports.history_http, plan.ports.history_admin),
            DaemonRole.DATANODE: (ports.datanode, ports.datanode_http, ports.datanode_ipc),
            DaemonRole.NODEMANAGER: (
                ports.nodemanager,
                ports.localizer,
                ports.nodemanager_http,
                ports.shuffle,
            ),
            DaemonRole.PIPELINE: (ports.pipeline,),
        }[role]
        wanted += [(f"{role.value} of node {node.name}", port) for port in numbers]
    return wanted


@dataclass(frozen=True)
class DaemonStatus:
    """One daemon.

    Attributes:
        pid: 0 when it does not run.
        health: ``healthy``, ``starting``, ``safe mode``, ``unhealthy: why``, ``cut off``, ``paused`` or
            ``stopped``.
        rss_bytes: resident memory.
        pss_bytes: resident memory with shared pages divided among their users.
        peak_bytes: the largest resident memory since it started.
        web: address of its web page, or of its TCP service.
    """

    node: str
    role: str
    pid: int
    health: str
    rss_bytes: int
    pss_bytes: int
    peak_bytes: int
    web: str


@dataclass(frozen=True)
class ClusterStatus:
    """A whole cluster, daemons in the order of the plan."""

    name: str
    mode: str
    conf_dir: str
    daemons: tuple[DaemonStatus, ...]

    @property
    def is_healthy(self) -> bool:
        """Whether every daemon is."""
        return all(daemon.health == "healthy" for daemon in self.daemons)

    @property
    def rss_bytes(self) -> int:
        """Resident memory of all daemons; pages that several share count each time."""
        return sum(daemon.rss_bytes for daemon in self.daemons)

    @property
    def pss_bytes(self) -> int:
        """Memory of all daemons; shared pages count once."""
        return sum(daemon.pss_bytes for daemon in self.daemons)

    @property
    def peak_bytes(self) -> int:
        """Sum of the daemons' largest resident sizes: an upper bound of the peak."""
        return sum(daemon.peak_bytes for daemon in self.daemons)

    def as_json(self) -> dict[str, Any]:
        """Return a JSON-able value with the totals."""
        totals = {"rss_bytes": self.rss_bytes, "pss_bytes": self.pss_bytes, "peak_bytes": self.peak_bytes}
        return {**asdict(self), "is_healthy": self.is_healthy, **totals}


def read_status(backend: Backend, plan: ClusterPlan, paths: ClusterPaths) -> ClusterStatus:
    """Look at every daemon now; takes as long as the slowest answer (at most some seconds)."""
    table = snapshot()
    alive = running(paths, plan.daemons(), table)
    conditions = {node.name: backend.condition(node, table) for node in plan.nodes}

    def look(daemon: tuple[NodePlan, DaemonRole]) -> DaemonStatus:
        node, role = daemon
        process = alive.get((node.name, role))
        memory = memory_of(process.pid) if process else Memory(0, 0, 0)
        health = (conditions[node.name] or ask(plan, paths, node, role)) if process else "stopped"
        return DaemonStatus(
            node=node.name,
            role=role.value,
            pid=process.pid if process else 0,
            health=health,
            rss_bytes=memory.rss_bytes,
            pss_bytes=memory.pss_bytes,
            peak_bytes=memory.peak_bytes,
            web=web_address(plan, node, role),
        )

    with ThreadPoolExecutor(max_workers=16) as pool:
        daemons = tuple(pool.map(look, plan.daemons()))
    return ClusterStatus(paths.name, plan.mode.value, str(paths.client_conf_dir), daemons)


_PASSED = ("HADOOP_CONF_DIR", "JAVA_HOME", "KRB5_CONFIG", "YARN_ACCEL_CLUSTER", "YARN_ACCEL_NODE")


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
        software = ensure_software(report, options.hadoop_version or HADOOP_VERSION)
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
        if options.secure and kerberos.ensure_realm(plan, paths):
            report(f"made realm {kerberos.REALM} with its keytabs and a certificate")
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
    def client_environ(self) -> dict[str, str]:
        """Variables that programs on this machine need in their environment to use the cluster."""
        found = {"HADOOP_CONF_DIR": str(self.conf_dir)}
        return {**found, **(kerberos.client_environ(self._paths) if self._plan.options.secure else {})}

    def keytab(self, name: str) -> Path:
        """The keytab of a user, or of a node's daemons (with Kerberos)."""
        return kerberos.keytab(self._paths, name)

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
        """The answer to a program: the status as JSON, the workers, and where files are."""
        return {
            **self.status().as_json(),
            "workers": [
                {"name": node.name, "host": node.host, "rack": node.rack, "is_accelerated": node.is_accel}
                for node in self._plan.workers
            ],
            "pipeline_config_files": [str(path) for path in self.pipeline_config_files],
            "logs_dir": str(self._paths.logs_dir),
            "client_environ": self.client_environ,
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
        environ = node_environ(self._plan, self._paths, target, java_home)
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
        deadline = time.monotonic() + DOWN_GRACE_S
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
        software = ensure_software(report, self._plan.options.hadoop_version or HADOOP_VERSION)
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
            grace_s=DOWN_GRACE_S,
            deadline_s=STOP_DEADLINE_S,
        )
        return [(node, role) for node, role in servers if (node.name, role) in alive]

    def _check_capacity(self, missing: Sequence[tuple[NodePlan, DaemonRole]]) -> None:
        share = sum(role is DaemonRole.NODEMANAGER for _, role in missing)
        if share:
            preflight.check_memory(share)
        if self._plan.mode is NetworkMode.LOOPBACK:
            preflight.check_fixed_ports(ports_of(self._plan, missing))
