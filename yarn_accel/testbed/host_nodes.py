"""Nodes whose processes this machine starts itself: in loopback mode, and in network namespaces.

In netns mode a cluster has a bridge, and for each node a namespace, a link, an address and a host name. Every
step looks at what is there and makes only what is missing, so the same call builds a network, repairs half of
one, and finds nothing to do. The machine's firewall is never changed, only diagnosed. Needs root.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from yarn_accel.adapters.commands import CompletedCommand, run
from yarn_accel.errors import ClusterError, ConfigError, StartupError
from yarn_accel.local_filesystem import write_atomic
from yarn_accel.testbed.kerberos import etc_files
from yarn_accel.testbed.plan import (
    INSIDE,
    SUBNET_PREFIX,
    ClusterPlan,
    NodePlan,
    interface_prefix,
    namespace_prefix,
    shape_argvs,
)
from yarn_accel.testbed.preflight import check_subnet
from yarn_accel.testbed.processes import Process, mark_of, marked_environ, members, send, snapshot, stop_all
from yarn_accel.testbed.settings import hosts_text
from yarn_accel.testbed.software import Software
from yarn_accel.testbed.state import ClusterPaths, machine_lock

COMMAND_TIMEOUT_S = 20.0
REACH_TIMEOUT_S = 3.0
STOP_DEADLINE_S = 30.0
_SIGNAL_DEADLINE_S = 5.0
NAMESPACES = Path("/run/netns")
ETC_NETNS = Path("/etc/netns")
_PROBE_PORT = 9  # "discard": nobody listens, so the answer is a refusal, which proves that packets travel
_CLONE_NEWNET = 0x40000000


class LoopbackNodes:
    """All nodes on one network stack: they differ by address and ports alone."""

    def __init__(self, plan: ClusterPlan, paths: ClusterPaths) -> None:
        self._plan = plan
        self._paths = paths
        self._mark = mark_of(paths.name, paths.tag)

    def ensure(self, software: Software, *, is_new: bool) -> list[str]:
        """See `Backend`: only paused nodes are not as planned."""
        table = snapshot()
        paused = [node for node in self._plan.nodes if self.condition(node, table) == "paused"]
        for node in paused:
            self.resume(node)
        return [f"paused {node.name}" for node in paused]

    def exec_argv(self, node: NodePlan, argv: Sequence[str]) -> list[str]:
        """See `Backend`."""
        return list(argv)

    def run(
        self, node: NodePlan, argv: Sequence[str], timeout_s: float, *, cwd: Path, env: Mapping[str, str]
    ) -> CompletedCommand:
        """See `Backend`."""
        return run(self.exec_argv(node, argv), timeout_s, cwd=cwd, env=env)

    def start(
        self, node: NodePlan, argv: Sequence[str], log: Path, *, cwd: Path, env: Mapping[str, str]
    ) -> bool:
        """See `Backend`. ``setsid --fork`` makes it a child of init, so nobody here has to wait for it."""
        with log.open("ab") as output:
            done = subprocess.run(
                ["setsid", "--fork", *self.exec_argv(node, argv)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=cwd,
                env=dict(env),
                check=False,
            )
        return done.returncode == 0

    def set_link(self, node: NodePlan, *, is_up: bool) -> None:
        """See `Backend`; nodes have no links here.

        Raises:
            ConfigError: always.
        """
        raise _no_links()

    def shape(self, node: NodePlan, link: str) -> None:
        """See `Backend`; nodes have no links here.

        Raises:
            ConfigError: always.
        """
        raise _no_links()

    def pause(self, node: NodePlan) -> None:
        """See `Backend`: SIGSTOP to every process of the node, also to those that start meanwhile."""
        self._signal_all(node, signal.SIGSTOP, are_stopped=True)

    def resume(self, node: NodePlan) -> None:
        """See `Backend`: SIGCONT."""
        self._signal_all(node, signal.SIGCONT, are_stopped=False)

    def condition(self, node: NodePlan, table: Iterable[Process]) -> str:
        """See `Backend`."""
        own = self._members(node, table)
        return "paused" if own and all(process.is_stopped for process in own) else ""

    def _members(self, node: NodePlan, table: Iterable[Process] | None = None) -> list[Process]:
        marked = members(self._mark, (), table)
        return [process for process in marked if process.node == node.name]

    def _signal_all(self, node: NodePlan, signum: int, *, are_stopped: bool) -> None:
        deadline = time.monotonic() + _SIGNAL_DEADLINE_S
        while differing := [each for each in self._members(node) if each.is_stopped is not are_stopped]:
            if time.monotonic() > deadline:
                pids = ", ".join(str(process.pid) for process in differing)
                raise ClusterError(f"processes of node {node.name} do not obey signal {signum}: {pids}")
            for process in differing:
                send(process, signum)
            time.sleep(0.02)


def _no_links() -> ConfigError:
    return ConfigError(
        "in loopback mode nodes have no links of their own", cure="use --mode netns (as root) or docker"
    )


class NamespaceNodes(LoopbackNodes):
    """Each node a network namespace with its own address, link and host name, Needs root."""

    def __init__(self, plan: ClusterPlan, paths: ClusterPaths) -> None:
        super().__init__(plan, paths)
        self._env = marked_environ(paths)

    def ensure(self, software: Software, *, is_new: bool) -> list[str]:
        """See `Backend`; a new namespace ends what still runs in a nameless one that it replaces."""
        plan = self._plan
        with machine_lock("subnet"):
            check_subnet(plan, plan.subnet, used_subnets(self._env))
            made = ensure_network(plan, self._paths, self._env)
        if not is_new and made:
            self._stop_strays()
        shape_links(plan, self._env)
        if made:
            check_reach(plan)
        return made + super().ensure(software, is_new=is_new)

    def exec_argv(self, node: NodePlan, argv: Sequence[str]) -> list[str]:
        """See `Backend`."""
        return [*enter_argv(node, self._paths), *argv]

    def set_link(self, node: NodePlan, *, is_up: bool) -> None:
        """See `Backend`."""
        set_link(node, "up" if is_up else "down", self._env)

    def shape(self, node: NodePlan, link: str) -> None:
        """See `Backend`.

        Raises:
            StartupError: the kernel cannot do it.
        """
        check_shaping(link, "", self._env)
        shape_node(node, link, self._plan.options.delay, self._env)

    def condition(self, node: NodePlan, table: Iterable[Process]) -> str:
        """See `Backend`."""
        return "cut off" if is_cut(node) else super().condition(node, table)

    def _stop_strays(self) -> None:
        inodes = namespaces(namespace_prefix(self._paths.name, self._plan.tag))
        own = {node.name: inodes.get(node.namespace, 0) for node in self._plan.nodes}

        def find() -> list[Process]:
            marked = (process for process in members(self._mark, ()) if process.node in own)
            return [process for process in marked if process.namespace != own[process.node]]

        stop_all(find, grace_s=2.0, deadline_s=STOP_DEADLINE_S)


# ---- looking at the machine


def _run(argv: Sequence[str], env: Mapping[str, str]) -> str:
    done = run(argv, COMMAND_TIMEOUT_S, env=env)
    if not done.ok:
        raise ClusterError(f"`{' '.join(argv)}` failed: {done.last_line()}")
    return done.stdout


def namespaces(prefix: str) -> dict[str, int]:
    """Return the network namespaces whose names start with `prefix`, with their inodes (0: half made)."""
    found = {}
    try:
        device = NAMESPACES.stat().st_dev
        entries = list(NAMESPACES.iterdir())
    except OSError:
        return {}
    for entry in entries:
        if entry.name.startswith(prefix):
            with contextlib.suppress(OSError):
                status = entry.stat()
                found[entry.name] = status.st_ino if status.st_dev != device else 0
    return found


def interfaces(prefix: str = "") -> set[str]:
    """Return the names of this namespace's network interfaces that start with `prefix`."""
    return {name for _, name in socket.if_nameindex() if name.startswith(prefix)}


def mount_points(under: Path) -> list[Path]:
    """Return the mount points at or below a directory, latest first; stacked ones as often as mounted."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), line.split()[4]))
        if point == under or under in point.parents:
            found.append(point)
    return found[::-1]


def used_subnets(env: Mapping[str, str]) -> dict[int, str]:
    """Return each K of 10.231.K.x that an interface or a route of this machine uses, with who uses it."""
    used: dict[int, str] = {}
    for link in json.loads(_run(["ip", "-j", "-4", "addr"], env) or "[]"):
        for address in link.get("addr_info", ()):
            _note_subnet(used, str(address.get("local", "")), f"interface {link.get('ifname')}")
    for route in json.loads(_run(["ip", "-j", "-4", "route"], env) or "[]"):
        _note_subnet(used, str(route.get("dst", "")), f"a route through {route.get('dev')}")
    return used


def _note_subnet(used: dict[int, str], address: str, who: str) -> None:
    if address.startswith(SUBNET_PREFIX):
        used.setdefault(int(address.split(".")[2]), who)


def is_cut(node: NodePlan) -> bool:
    """Tell whether the node's link is switched off (or is not there)."""
    try:
        flags = int((Path("/sys/class/net") / node.interface / "flags").read_text(), 16)
    except OSError:
        return True
    return not flags & 1


# ---- making the network


def ensure_network(plan: ClusterPlan, paths: ClusterPaths, env: Mapping[str, str]) -> list[str]:
    """Make whatever is missing of the cluster's network.

    Args:
        plan: the cluster.
        paths: where the host name namespaces are kept.
        env: environment of the commands (marked, so that a stray one is found).

    Returns:
        One phrase for each thing that had to be made.

    Raises:
        ClusterError: a command failed; the message holds it.
    """
    made = []
    over_etc = {"hosts": hosts_text(plan), **(etc_files(plan) if plan.options.secure else {})}
    write_atomic(paths.hosts_file, over_etc["hosts"])
    if plan.bridge not in interfaces():
        _run(["ip", "link", "add", plan.bridge, "type", "bridge", "forward_delay", "0"], env)
        made.append(f"bridge {plan.bridge}")
    _run(["ip", "addr", "replace", f"{plan.gateway}/24", "dev", plan.bridge], env)
    _run(["ip", "link", "set", plan.bridge, "up"], env)
    there = namespaces(namespace_prefix(plan.options.name, plan.tag))
    for node in plan.nodes:
        for name, text in over_etc.items():
            write_atomic(ETC_NETNS / node.namespace / name, text)
        if not there.get(node.namespace):
            _make_namespace(node, env, is_broken=node.namespace in there)
            made.append(f"namespace {node.namespace}")
        if ensure_link(plan, node, env):
            made.append(f"link of {node.name}")
        if _ensure_host_name(paths.uts_file(node.name), node.name, env):
            made.append(f"host name {node.name}")
    return made


def _make_namespace(node: NodePlan, env: Mapping[str, str], *, is_broken: bool) -> None:
    if (
        node.interface in interfaces()
    ):  # its other end went with the old namespace, or lives on in a nameless one
        _run(["ip", "link", "delete", node.interface], env)
    if is_broken:
        (NAMESPACES / node.namespace).unlink()
    _run(["ip", "netns", "add", node.namespace], env)


def ensure_link(plan: ClusterPlan, node: NodePlan, env: Mapping[str, str]) -> bool:
    """Join a node to the bridge, also after `cut`; tell whether the link had to be made or healed."""
    is_new = node.interface not in interfaces()
    was_cut = is_cut(node)
    if is_new:
        peer = ["peer", "name", INSIDE, "netns", node.namespace]
        _run(["ip", "link", "add", node.interface, "type", "veth", *peer], env)
    _run(["ip", "link", "set", node.interface, "master", plan.bridge, "up"], env)
    inside = ["ip", "-n", node.namespace]
    _run([*inside, "link", "set", "lo", "up"], env)
    _run([*inside, "addr", "replace", f"{node.address}/24", "dev", INSIDE], env)
    _run([*inside, "link", "set", INSIDE, "up"], env)
    return is_new or was_cut


def _ensure_host_name(path: Path, name: str, env: Mapping[str, str]) -> bool:
    if path in mount_points(path):
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    _run(["unshare", f"--uts={path}", "hostname", name], env)
    return True


# ---- using it


def enter_argv(node: NodePlan, paths: ClusterPaths) -> list[str]:
    """Return what to put before a command so that it runs on a node; it replaces itself and keeps the pid."""
    return ["ip", "netns", "exec", node.namespace, "nsenter", f"--uts={paths.uts_file(node.name)}", "--"]


def set_link(node: NodePlan, state: str, env: Mapping[str, str]) -> None:
    """Switch the host's end of a node's link ``up`` or ``down``."""
    _run(["ip", "link", "set", node.interface, state], env)


def shape_links(plan: ClusterPlan, env: Mapping[str, str]) -> None:
    """Give every node's link the plan's rate and delay in both directions, or free it when there are none."""
    if not (plan.options.link or plan.options.delay or _is_shaped(plan, env)):
        return
    for node in plan.nodes:
        shape_node(node, plan.link_of(node), plan.options.delay, env)


def shape_node(node: NodePlan, link: str, delay: str, env: Mapping[str, str]) -> None:
    """Give one node's link a rate and a delay in both directions; empty ones free it."""
    # The host's end comes last: as long as it is shaped, the other end may be.
    for interface, namespace in ((INSIDE, node.namespace), (node.interface, "")):
        tc = ["tc", *(["-n", namespace] if namespace else []), "qdisc", "del", "dev", interface, "root"]
        run(tc, COMMAND_TIMEOUT_S, env=env)  # fails when there is none
        for argv in shape_argvs(interface, link, delay, namespace):
            _run(argv, env)


def _is_shaped(plan: ClusterPlan, env: Mapping[str, str]) -> bool:
    lines = [line.split() for line in _run(["tc", "qdisc", "show"], env).splitlines()]
    own = {node.interface for node in plan.nodes}
    return any(own & set(words) and {"tbf", "netem"} & set(words) for words in lines)


def check_shaping(link: str, delay: str, env: Mapping[str, str]) -> None:
    """Try the queueing disciplines in a throw-away namespace.

    Raises:
        StartupError: the kernel lacks one.
    """
    lo = ["unshare", "--net", "tc", "qdisc", "add", "dev", "lo", "root"]
    probes = []
    if link:
        probes.append(("link", "tbf", [*lo, "tbf", "rate", link, "burst", "256kb", "latency", "50ms"]))
    if delay:
        probes.append(("delay", "netem", [*lo, "netem", "delay", delay]))
    for option, kind, argv in probes:
        done = run(argv, COMMAND_TIMEOUT_S, env=env)
        if not done.ok:
            raise StartupError(
                f"--{option} needs the kernel's {kind}, which cannot be used here ({done.last_line()})",
                cure=f"load it (modprobe sch_{kind}), or leave --{option} out",
            )


def check_reach(plan: ClusterPlan) -> None:
    """Make sure that packets travel between the nodes and from this machine to them.

    Raises:
        ClusterError: some are dropped; the cure names the likely setting and the rule that lets them pass.
    """
    pairs: list[tuple[NodePlan | None, NodePlan]] = [(None, plan.master)]
    pairs += [(node, plan.master) for node in plan.nodes[1:]]
    for source, target in pairs:
        if not _reaches(source.namespace if source else "", target.address):
            raise _dropped(plan, source, target)


def _dropped(plan: ClusterPlan, source: NodePlan | None, target: NodePlan) -> ClusterError:
    origin = f"node {source.name}" if source else "this machine"
    message = (
        f"packets from {origin} to node {target.name} ({target.address}) on bridge {plan.bridge} are dropped"
    )
    if source is None:
        return ClusterError(
            message, cure=f"let the firewall accept: iptables -I INPUT -i {plan.bridge} -j ACCEPT"
        )
    setting = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
    passes = f"iptables -I FORWARD -i {plan.bridge} -o {plan.bridge} -j ACCEPT"
    if setting.exists() and setting.read_text().strip() == "1":
        return ClusterError(
            f"{message}: net.bridge.bridge-nf-call-iptables is 1, so the FORWARD chain judges them",
            cure=f"{passes} (or sysctl -w net.bridge.bridge-nf-call-iptables=0)",
        )
    return ClusterError(message, cure=f"look at the firewall (nft list ruleset); iptables users: {passes}")


def _reaches(namespace: str, address: str) -> bool:
    """Whether `address` answers a connection attempt from inside `namespace`, be it with a refusal."""
    with _socket_in(namespace) as probe:
        probe.settimeout(REACH_TIMEOUT_S)
        return probe.connect_ex((address, _PROBE_PORT)) in (0, errno.ECONNREFUSED)


def _socket_in(namespace: str) -> socket.socket:
    """Make a TCP socket in a namespace: a thread of its own enters it, the rest of this process does not."""
    if not namespace:
        return socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    result: list[socket.socket | OSError] = []

    def enter() -> None:
        try:
            handle = os.open(NAMESPACES / namespace, os.O_RDONLY | os.O_CLOEXEC)
            try:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(handle, _CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            finally:
                os.close(handle)
            result.append(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        except OSError as error:
            result.append(error)

    thread = threading.Thread(target=enter, name="enter-namespace")
    thread.start()
    thread.join()
    if isinstance(result[0], OSError):
        raise ClusterError(f"cannot enter network namespace {namespace}: {result[0].strerror}") from result[0]
    return result[0]


# ---- taking it away


def remove_network(paths: ClusterPaths, env: Mapping[str, str], owned: Iterable[str]) -> list[str]:
    """Take away every interface, namespace, mount and /etc/netns folder that has the cluster's name.

    Works from the names alone, so it also clears up after a launcher that died anywhere.

    Args:
        paths: the cluster.
        env: environment of the commands.
        owned: machine-wide things that were not there before the cluster; removed when nobody else uses them.

    Returns:
        One phrase for each thing taken away.
    """
    gone = [
        f"interface {name}"
        for name in sorted(interfaces(interface_prefix(paths.tag)))
        if run(["ip", "link", "delete", name], COMMAND_TIMEOUT_S, env=env).ok
    ]
    prefix = namespace_prefix(paths.name, paths.tag)
    for name in sorted(namespaces(prefix)):
        run(["ip", "netns", "delete", name], COMMAND_TIMEOUT_S, env=env)
        (NAMESPACES / name).unlink(missing_ok=True)
        gone.append(f"namespace {name}")
    for point in mount_points(paths.root):
        _run(["umount", "--lazy", str(point)], env)
    for folder in sorted(ETC_NETNS.glob(f"{prefix}*")):
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
        gone.append(f"{folder}")
    _remove_owned(set(owned), env)
    return gone


def _remove_owned(owned: set[str], env: Mapping[str, str]) -> None:
    """Undo what iproute2 sets up once per machine; each step fails harmlessly while somebody uses it."""
    if str(NAMESPACES) in owned and NAMESPACES.is_dir() and not any(NAMESPACES.iterdir()):
        if NAMESPACES in mount_points(NAMESPACES):
            run(["umount", str(NAMESPACES)], COMMAND_TIMEOUT_S, env=env)
        with contextlib.suppress(OSError):
            NAMESPACES.rmdir()
    if str(ETC_NETNS) in owned:
        with contextlib.suppress(OSError):
            ETC_NETNS.rmdir()


def absent_now() -> tuple[str, ...]:
    """Return the machine-wide directories that the first namespace will bring into being."""
    return tuple(str(path) for path in (NAMESPACES, ETC_NETNS) if not path.exists())
