"""The layout of a cluster: names, addresses, racks, ports, links. Pure: equal inputs give equal plans.

Every namespace, interface and port has a name that follows from the cluster's name and its `tag`, a hash of
the name and of the folder that holds its state. So a later command finds all of it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from enum import Enum

from yarn_accel.errors import ConfigError

MASTER = "master"
SECOND_MASTER = "master2"
"""With `UpOptions.ha` it has the standby NameNode and ResourceManager."""
NAME_SERVICE = "testns"
"""Of both NameNodes; `hadoop_conf/ha` has it in keys."""
MAX_NODES = 200
SUBNET_PREFIX = "10.231."
INSIDE = "eth0"
"""The node's end of its link."""
DEFAULT_SLOTS = 2
KDC_PORT = 88
ZOOKEEPER_PORT = 2181
NAMENODE_HTTPS_PORT = 9871
DATANODE_HTTPS_PORT = 9865
#: What `UpOptions.protection` may name, in the order in which clients that take any of them choose.
PROTECTIONS = ("authentication", "integrity", "privacy")
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")
_RATE = re.compile(r"(?i:(\d+(?:\.\d+)?)([kmg]?)bit)")
_DELAY = re.compile(r"\d+(?:\.\d+)?(?:us|ms|s)")
_MEMORY = re.compile(r"(?i:(\d+(?:\.\d+)?)([kmg])b?)")
_MEMORY_FACTORS = {"k": 2**10, "m": 2**20, "g": 2**30}
MIN_NODE_MEMORY_BYTES = 6 * 2**20
_RATE_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}


class NetworkMode(str, Enum):
    """How nodes differ: by network namespace, by container, or by address and port alone."""

    NETNS = "netns"
    DOCKER = "docker"
    LOOPBACK = "loopback"

    @property
    def has_links(self) -> bool:
        """Whether every node has an address, a name and a link of its own."""
        return self is not NetworkMode.LOOPBACK


#: The fields of `UpOptions` that docker mode alone has, as users type them.
DOCKER_OPTIONS = {
    "image": "--image",
    "node_memory": "--node-memory",
    "node_cpus": "--node-cpus",
    "mounts": "--mount",
    "publish": "--publish",
}
MODES = ("auto", *(mode.value for mode in NetworkMode))


class DaemonRole(str, Enum):
    """The role of a daemon; the value is what users type."""

    KDC = "kdc"
    ZOOKEEPER = "zookeeper"
    NAMENODE = "namenode"
    ZKFC = "zkfc"
    RESOURCEMANAGER = "resourcemanager"
    HISTORYSERVER = "historyserver"
    DATANODE = "datanode"
    NODEMANAGER = "nodemanager"
    PIPELINE = "pipeline"


MASTER_ROLES = (DaemonRole.NAMENODE, DaemonRole.RESOURCEMANAGER, DaemonRole.HISTORYSERVER)
SECOND_MASTER_ROLES = (DaemonRole.NAMENODE, DaemonRole.ZKFC, DaemonRole.RESOURCEMANAGER)
WORKER_ROLES = (DaemonRole.DATANODE, DaemonRole.NODEMANAGER)


@dataclass(frozen=True)
class UpOptions:
    """A cluster as the user asked for it.

    Attributes:
        name: the cluster's name, ``[a-z0-9-]``, at most 32 characters.
        nodes: workers, besides the master.
        racks: racks the workers are spread over.
        accel_nodes: workers that carry an accelerator (and a pipeline server).
        link: rate of every node's link in both directions (``1gbit``); empty means unlimited.
        delay: one-way delay of every node's link (``2ms``); empty means none.
        mode: ``auto`` (netns when root), ``netns``, ``docker`` or ``loopback``.
        pipeline: whether the accelerator nodes run pipeline servers.
        slots: how many ``acct/slot`` each worker offers.
        late: so many of the workers, the last ones, join YARN later: ``up`` leaves their NodeManagers alone,
            ``start`` starts them.
        storage_nodes: so many of the workers, the first ones, hold all data and run no containers, and their
            links and the master's are not limited by `link`; 0: every worker does both.
        image: the image of the nodes (docker mode); empty: the node image of this version.
        node_memory: of each node (``2gb``; docker mode); empty means unlimited.
        node_cpus: cores of each node (``1.5``; docker mode); 0 means unlimited.
        mounts: folders of this machine that the nodes see, too, at the same paths (docker mode).
        publish: whether the master's web pages are also at 127.0.0.1 of this machine (docker mode).
        secure: whether everybody logs in by Kerberos, at a KDC of the cluster's own (netns mode).
        protection: of RPC and block data, one of `PROTECTIONS`; empty: each client chooses (with `secure`).
        ha: whether a second master has a standby NameNode and ResourceManager, and the first one a ZooKeeper
            (netns mode).
        token_life_s: seconds after which delegation tokens end for good; 0: seven days (with `secure`).
        hadoop_version: of the jars that everything runs from; empty: the one that ``hadoop fetch`` fetches.
    """

    name: str = "default"
    nodes: int = 4
    racks: int = 2
    accel_nodes: int = 2
    link: str = ""
    delay: str = ""
    mode: str = "auto"
    pipeline: bool = True
    slots: int = DEFAULT_SLOTS
    late: int = 0
    storage_nodes: int = 0
    image: str = ""
    node_memory: str = ""
    node_cpus: float = 0.0
    mounts: tuple[str, ...] = ()
    publish: bool = False
    secure: bool = False
    protection: str = ""
    ha: bool = False
    token_life_s: int = 0
    hadoop_version: str = ""


@dataclass(frozen=True)
class MasterPorts:
    """Ports of the daemons on the master; the defaults are Hadoop's own."""

    namenode: int = 8020
    namenode_http: int = 9870
    rm_scheduler: int = 8030
    rm_tracker: int = 8031
    rm: int = 8032
    rm_admin: int = 8033
    rm_http: int = 8088
    history: int = 10020
    history_http: int = 19888
    history_admin: int = 10033


@dataclass(frozen=True)
class WorkerPorts:
    """Ports of the daemons on one worker."""

    nodemanager: int = 8041
    localizer: int = 8040
    nodemanager_http: int = 8042
    shuffle: int = 13562
    datanode: int = 9866
    datanode_http: int = 9864
    datanode_ipc: int = 9867
    pipeline: int = 7077


@dataclass(frozen=True)
class NodePlan:
    """One node.

    Attributes:
        name: what users type: ``master``, ``w1``...
        host: what Hadoop knows it by (the name; in loopback mode the address).
        address: its IPv4 address.
        namespace: network namespace or container; empty in loopback mode.
        interface: the host's end of the node's link (netns mode).
    """

    name: str
    host: str
    address: str
    rack: str
    is_accel: bool
    slots: int
    namespace: str
    interface: str
    ports: WorkerPorts

    @property
    def is_master(self) -> bool:
        """Whether this node runs the master daemons."""
        return self.name in (MASTER, SECOND_MASTER)


@dataclass(frozen=True)
class ClusterPlan:
    """Every name and number of one cluster."""

    options: UpOptions
    mode: NetworkMode
    tag: str
    bridge: str
    gateway: str
    ports: MasterPorts
    nodes: tuple[NodePlan, ...]

    @property
    def master(self) -> NodePlan:
        """The node of the NameNode, ResourceManager and JobHistoryServer."""
        return self.nodes[0]

    @property
    def masters(self) -> tuple[NodePlan, ...]:
        """The nodes with a NameNode and a ResourceManager: two with `UpOptions.ha`, else one."""
        return tuple(node for node in self.nodes if node.is_master)

    @property
    def workers(self) -> tuple[NodePlan, ...]:
        """The nodes that hold data and run containers."""
        return tuple(node for node in self.nodes if not node.is_master)

    @property
    def late_nodes(self) -> tuple[NodePlan, ...]:
        """The workers that join YARN later."""
        return self.workers[len(self.workers) - self.options.late :]

    @property
    def data_nodes(self) -> tuple[NodePlan, ...]:
        """The workers that hold data."""
        return self.workers[: self.options.storage_nodes or None]

    @property
    def accel_nodes(self) -> tuple[NodePlan, ...]:
        """The workers with an accelerator."""
        return tuple(node for node in self.workers if node.is_accel)

    @property
    def subnet(self) -> int:
        """K of 10.231.K.0/24; of no meaning in loopback mode."""
        return int(self.gateway.split(".")[2])

    def node(self, name: str) -> NodePlan:
        """Return the node called `name`.

        Raises:
            ConfigError: no such node; the message lists the known ones.
        """
        for node in self.nodes:
            if node.name == name:
                return node
        known = ", ".join(node.name for node in self.nodes)
        raise ConfigError(f"cluster {self.options.name} has no node {name!r}", cure=f"the nodes are {known}")

    def roles(self, node: NodePlan) -> tuple[DaemonRole, ...]:
        """Return the daemons that belong on `node`."""
        if node.is_master:
            return self._master_roles(node)
        if self.options.storage_nodes:
            holds_data = node in self.data_nodes
            return (DaemonRole.DATANODE,) if holds_data else (DaemonRole.NODEMANAGER,)
        return WORKER_ROLES + ((DaemonRole.PIPELINE,) if node.is_accel and self.options.pipeline else ())

    def _master_roles(self, node: NodePlan) -> tuple[DaemonRole, ...]:
        if node.name == SECOND_MASTER:
            return SECOND_MASTER_ROLES
        added = (DaemonRole.ZOOKEEPER, DaemonRole.ZKFC) if self.options.ha else ()
        return (*((DaemonRole.KDC,) if self.options.secure else ()), *added, *MASTER_ROLES)

    def link_of(self, node: NodePlan) -> str:
        """Return the rate of a node's link; empty: it is not limited."""
        is_free = self.options.storage_nodes and (node.is_master or node in self.data_nodes)
        return "" if is_free else self.options.link

    def daemons(self) -> tuple[tuple[NodePlan, DaemonRole], ...]:
        """Return every (node, role) that ``up`` sees to, master first."""
        absent = {(node, DaemonRole.NODEMANAGER) for node in self.late_nodes}
        every = ((node, role) for node in self.nodes for role in self.roles(node))
        return tuple(daemon for daemon in every if daemon not in absent)


def check_options(options: UpOptions) -> None:
    """Refuse options that no cluster can have.

    Raises:
        ConfigError: naming the option and what it may be.
    """
    check_name(options.name)
    for key, value, low, high in (
        ("nodes", options.nodes, 1, MAX_NODES),
        ("racks", options.racks, 1, options.nodes),
        ("accel-nodes", options.accel_nodes, 0, options.nodes),
        ("slots", options.slots, 0, 1000),
        ("late", options.late, 0, options.nodes),
        ("storage-nodes", options.storage_nodes, 0, options.nodes - options.late),
        ("token-life", options.token_life_s, 0, 7 * 86400),
    ):
        if not low <= value <= high:
            raise ConfigError(f"--{key} is {value}", cure=f"give a number from {low} to {high}")
    if options.mode not in MODES:
        raise ConfigError(f"--mode is {options.mode!r}", cure=f"give {', '.join(MODES[:-1])} or {MODES[-1]}")
    if options.storage_nodes and options.accel_nodes:
        raise ConfigError(
            f"--storage-nodes is {options.storage_nodes} and --accel-nodes {options.accel_nodes}",
            cure="leave one of them 0: pipeline servers need DataNodes and NodeManagers on every worker",
        )
    if options.link:
        rate_bits_per_s(options.link)
    if options.delay and not _DELAY.fullmatch(options.delay):
        raise ConfigError(f"--delay is {options.delay!r}", cure="give a time such as 500us or 2ms")
    _check_security_options(options)
    _check_docker_options(options)


def _check_security_options(options: UpOptions) -> None:
    if options.protection not in ("", *PROTECTIONS):
        raise ConfigError(f"--protection is {options.protection!r}", cure=f"give {' or '.join(PROTECTIONS)}")
    if not options.secure:
        for option, value in (("--protection", options.protection), ("--token-life", options.token_life_s)):
            if value:
                raise ConfigError(f"{option} needs --secure")


def _check_docker_options(options: UpOptions) -> None:
    if options.node_memory:
        memory_bytes(options.node_memory)
    if not 0 <= options.node_cpus <= 1000:
        raise ConfigError(f"--node-cpus is {options.node_cpus:g}", cure="give a number of cores such as 1.5")
    for folder in options.mounts:
        if not folder.startswith("/") or folder == "/":
            raise ConfigError(f"--mount is {folder!r}", cure="give the whole path of a folder below /")


def check_name(name: str) -> None:
    """Refuse a cluster name that could not be part of file and namespace names.

    Raises:
        ConfigError: the name is empty, too long or has other characters.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"cluster name {name!r} is not usable",
            cure="use 1 to 32 of the characters a-z, 0-9 and - (not at an end)",
        )


def rate_bits_per_s(text: str) -> float:
    """Turn a link rate into bits per second.

    >>> rate_bits_per_s("1gbit")
    1000000000.0

    Raises:
        ConfigError: not a rate, or zero.
    """
    match = _RATE.fullmatch(text)
    rate = float(match[1]) * _RATE_FACTORS[match[2].lower()] if match else 0.0
    if rate <= 0:
        raise ConfigError(f"--link is {text!r}", cure="give a rate such as 1gbit or 100mbit")
    return rate


def memory_bytes(text: str) -> int:
    """Turn the memory of a node into bytes; as the engine counts, 1 kB is 1024 bytes.

    >>> memory_bytes("2gb")
    2147483648

    Raises:
        ConfigError: not an amount, or less than the 6 MiB that the engine asks for.
    """
    match = _MEMORY.fullmatch(text)
    amount = int(float(match[1]) * _MEMORY_FACTORS[match[2].lower()]) if match else 0
    if amount < MIN_NODE_MEMORY_BYTES:
        raise ConfigError(f"--node-memory is {text!r}", cure="give an amount such as 2gb or 800mb")
    return amount


def cluster_tag(name: str, scope: str) -> str:
    """Return the six hex digits that keep apart equal names in different places.

    Args:
        name: the cluster's name.
        scope: where its state lives (the absolute path of the directory of all clusters).
    """
    return hashlib.sha256(f"{scope}\0{name}".encode()).hexdigest()[:6]


def interface_prefix(tag: str) -> str:
    """Return what the names of all network interfaces of the cluster start with (8 characters)."""
    return f"ya{tag}"


def namespace_prefix(name: str, tag: str) -> str:
    """Return what the names of all network namespaces of the cluster start with."""
    return f"ya-{name}-{tag}-"


def rack_sizes(n_nodes: int, n_racks: int) -> tuple[int, ...]:
    """Split `n_nodes` over `n_racks` so that sizes differ by at most one.

    >>> rack_sizes(5, 2)
    (3, 2)
    """
    small, larger = divmod(n_nodes, n_racks)
    return tuple(small + (1 if rack < larger else 0) for rack in range(n_racks))


def make_plan(
    options: UpOptions, mode: NetworkMode, scope: str, subnet: int = 0, port_base: int = 0
) -> ClusterPlan:
    """Lay out a cluster.

    Args:
        options: what was asked for (checked here).
        mode: already decided.
        scope: see `cluster_tag`.
        subnet: K of 10.231.K.0/24 (netns and docker mode).
        port_base: first port of the cluster's own block (loopback mode), see `port_span`.

    Raises:
        ConfigError: the options make no cluster.
    """
    check_options(options)
    tag = cluster_tag(options.name, scope)
    workers = _rack_layout(options)
    nodes = [_node(options, mode, tag, subnet, port_base, 0, ("/default-rack", False))]
    nodes += [
        _node(options, mode, tag, subnet, port_base, index, place)
        for index, place in enumerate(workers, start=1)
    ]
    if options.ha:
        second = nodes[0]
        nodes.insert(
            1,
            replace(
                second,
                name=SECOND_MASTER,
                host=SECOND_MASTER,
                address=f"{SUBNET_PREFIX}{subnet}.{_SECOND_MASTER_PART}",
                namespace=namespace_prefix(options.name, tag) + SECOND_MASTER,
                interface=interface_prefix(tag) + _SECOND_INTERFACE,
            ),
        )
    return ClusterPlan(
        options=options,
        mode=mode,
        tag=tag,
        bridge=interface_prefix(tag) + "br" if mode.has_links else "",
        gateway=f"{SUBNET_PREFIX}{subnet}.254" if mode.has_links else "127.0.0.1",
        ports=MasterPorts()
        if mode.has_links
        else MasterPorts(*range(port_base, port_base + _N_MASTER_PORTS)),
        nodes=tuple(nodes),
    )


_SECOND_MASTER_PART = 253
_SECOND_INTERFACE = "m2"
_N_MASTER_PORTS = 10
_N_WORKER_PORTS = 8


def port_span(n_nodes: int) -> int:
    """Return how many consecutive ports a loopback cluster of `n_nodes` workers uses."""
    return _N_MASTER_PORTS + _N_WORKER_PORTS * n_nodes


def _rack_layout(options: UpOptions) -> list[tuple[str, bool]]:
    """Return (rack, carries an accelerator) of each worker: one accelerator per rack first."""
    sizes = rack_sizes(options.nodes, options.racks)
    places = [(rack, position) for rack, size in enumerate(sizes) for position in range(size)]
    first = sorted(places, key=lambda place: (place[1], place[0]))
    accel = set(first[: options.accel_nodes])
    return [(f"/rack{rack + 1}", (rack, position) in accel) for rack, position in places]


def _node(
    options: UpOptions,
    mode: NetworkMode,
    tag: str,
    subnet: int,
    port_base: int,
    index: int,
    place: tuple[str, bool],
) -> NodePlan:
    name = f"w{index}" if index else MASTER
    address = (
        f"{SUBNET_PREFIX}{subnet}.{index + 1}" if mode.has_links else f"127.0.0.{10 + index if index else 1}"
    )
    first = port_base + _N_MASTER_PORTS + _N_WORKER_PORTS * (index - 1)
    own_ports = not mode.has_links and index > 0
    rack, is_accel = place
    return NodePlan(
        name=name,
        host=name if mode.has_links else address,
        address=address,
        rack=rack,
        is_accel=is_accel,
        slots=options.slots if index else 0,
        namespace=namespace_prefix(options.name, tag) + name if mode.has_links else "",
        interface=interface_prefix(tag) + name[:5] if mode is NetworkMode.NETNS else "",
        ports=WorkerPorts(*range(first, first + _N_WORKER_PORTS)) if own_ports else WorkerPorts(),
    )


def bound_servers(plan: ClusterPlan) -> dict[str, tuple[str, ...]]:
    """Return, for each worker host without an accelerator, the names of the pipeline servers it shall use.

    They are those of its own rack (of all racks when it has none), rotated from neighbour to neighbour.
    """
    bound: dict[str, tuple[str, ...]] = {}
    for index, node in enumerate(plan.workers):
        if node.is_accel or not plan.accel_nodes:
            continue
        near = [accel.name for accel in plan.accel_nodes if accel.rack == node.rack]
        names = near or [accel.name for accel in plan.accel_nodes]
        shift = index % len(names)
        bound[node.host] = tuple(names[shift:] + names[:shift])
    return bound


def shape_argvs(interface: str, link: str, delay: str, namespace: str = "") -> list[list[str]]:
    """Return the commands that limit what leaves an interface, whatever the node is."""
    tc = ["tc", *(["-n", namespace] if namespace else []), "qdisc", "replace", "dev", interface]
    argvs = []
    parent = ["root"]
    if delay:
        argvs.append([*tc, *parent, "handle", "1:", "netem", "delay", delay, "limit", "100000"])
        parent = ["parent", "1:1"]
    if link:
        # One timer tick's worth, and the largest packets that a virtual link passes on at once.
        burst_bytes = max(256 * 1024, int(rate_bits_per_s(link) / 8 / 250))
        tbf = ["handle", "10:", "tbf", "rate", link, "burst", str(burst_bytes), "latency", "50ms"]
        argvs.append([*tc, *parent, *tbf])
    return argvs
