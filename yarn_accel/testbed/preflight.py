"""Checks of the machine before anything is made on it: each lack is one line with its cure."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

from yarn_accel.errors import ConfigError, StartupError
from yarn_accel.testbed.plan import DOCKER_OPTIONS, ClusterPlan, NetworkMode, UpOptions

MIB = 1024 * 1024
GIB = 1024 * MIB
MIN_DISK_BYTES = 2 * GIB
BASE_MEMORY_BYTES = 1200 * MIB
NODE_MEMORY_BYTES = 450 * MIB
PORT_BASES = range(12000, 32000, 128)  # below the range that the kernel gives to outgoing connections
NETNS_COMMANDS = (
    ("ip", "iproute2"),
    ("tc", "iproute2"),
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
    ("hostname", "hostname"),
)
DOCKER_COMMANDS = (("ip", "iproute2"),)
KERBEROS_COMMANDS = (
    ("krb5kdc", "krb5-kdc"),
    ("kdb5_util", "krb5-kdc"),
    ("kadmin.local", "krb5-admin-server"),
    ("kinit", "krb5-user"),
    ("openssl", "openssl"),
)


def choose_mode(options: UpOptions, euid: int) -> NetworkMode:
    """Decide how nodes are made; docker mode only where it was asked for.

    Raises:
        StartupError: netns mode was asked for without root.
        ConfigError: an option was given that the mode has not.
    """
    if options.ha and (euid != 0 or options.mode not in ("auto", "netns")):
        raise ConfigError(
            "--ha needs --mode netns: both masters have the same ports",
            cure="run it as root, without another --mode",
        )
    if options.secure and (euid != 0 or options.mode not in ("auto", "netns")):
        raise ConfigError(
            "--secure needs --mode netns: principals name hosts, so each node needs a name of its own",
            cure="run it as root, without another --mode",
        )
    if options.mode == "docker":
        return NetworkMode.DOCKER
    for name, option in DOCKER_OPTIONS.items():
        if getattr(options, name) != getattr(UpOptions, name):
            raise ConfigError(f"{option} needs --mode docker")
    if options.mode == "netns" and euid != 0:
        raise StartupError("--mode netns needs root", cure="run it with sudo, or use --mode loopback")
    mode = NetworkMode.NETNS if euid == 0 and options.mode != "loopback" else NetworkMode.LOOPBACK
    if mode is NetworkMode.LOOPBACK and (options.link or options.delay):
        raise ConfigError(
            "--link and --delay need --mode netns or docker: in loopback mode nodes have no links"
        )
    return mode


def check_commands(
    find: Callable[[str], str | None] = shutil.which,
    hosts_file: Path = Path("/etc/hosts"),
    commands: Iterable[tuple[str, str]] = NETNS_COMMANDS,
) -> None:
    """Make sure that what a mode needs of this machine is there.

    Args:
        find: looks for a program.
        hosts_file: over which `ip netns exec` mounts the names of the nodes; a bare root tree has none.
        commands: (program, Debian's package that has it).

    Raises:
        StartupError: something is missing.
    """
    if not hosts_file.exists():
        raise StartupError(
            f"{hosts_file} is not there, so the nodes would not know each other's names",
            cure=f"echo '127.0.0.1 localhost' > {hosts_file}",
        )
    missing = {command: package for command, package in commands if find(command) is None}
    if missing:
        packages = " ".join(dict.fromkeys(missing.values()))
        verb = "is" if len(missing) == 1 else "are"
        raise StartupError(
            f"{', '.join(missing)} {verb} not on this machine", cure=f"apt-get install -y {packages}"
        )


def check_kerberos(
    find: Callable[[str], str | None] = shutil.which, krb5_file: Path = Path("/etc/krb5.conf")
) -> None:
    """Make sure that a KDC can run here.

    Args:
        find: looks for a program.
        krb5_file: over which `ip netns exec` mounts that of the nodes.

    Raises:
        StartupError: something is missing.
    """
    check_commands(find, commands=KERBEROS_COMMANDS)
    if not krb5_file.exists():
        raise StartupError(
            f"{krb5_file} is not there, so the nodes would not know their realm", cure=f"touch {krb5_file}"
        )


def check_memory(n_nodes: int, meminfo: str | None = None) -> None:
    """Make sure that the daemons and a few containers fit.

    Args:
        n_nodes: workers that are to be started.
        meminfo: text of /proc/meminfo (default: of this machine).

    Raises:
        StartupError: too little memory is available.
    """
    text = Path("/proc/meminfo").read_text() if meminfo is None else meminfo
    fields = (line.split() for line in text.splitlines())
    available = next(
        (int(parts[1]) * 1024 for parts in fields if parts and parts[0] == "MemAvailable:"), None
    )
    needed = BASE_MEMORY_BYTES + n_nodes * NODE_MEMORY_BYTES
    if available is not None and available < needed:
        raise StartupError(
            f"{available / GIB:.1f} GiB of memory are available, {n_nodes} nodes need {needed / GIB:.1f}",
            cure="stop something else, or take fewer --nodes",
        )


def check_disk(path: Path, limit_percent: float) -> None:
    """Make sure that the disk of `path` has space, also by a NodeManager's own limit.

    Args:
        path: the cluster's directory; need not exist yet.
        limit_percent: fullness at which a NodeManager marks its disk bad.

    Raises:
        StartupError: the disk is too full.
    """
    while not path.exists():
        path = path.parent
    status = os.statvfs(path)
    free_bytes = status.f_bavail * status.f_frsize
    used_percent = 100.0 * (1 - status.f_bavail / status.f_blocks) if status.f_blocks else 0.0
    if free_bytes < MIN_DISK_BYTES:
        raise StartupError(
            f"{free_bytes / GIB:.1f} GiB are free at {path}, a cluster needs {MIN_DISK_BYTES / GIB:.0f}",
            cure="free some space, or set XDG_STATE_HOME to another disk",
        )
    if used_percent > limit_percent:
        raise StartupError(
            f"{path} is {used_percent:.1f} % full, and NodeManagers refuse work above {limit_percent:g} %",
            cure="free some space, or set XDG_STATE_HOME to another disk",
        )


def choose_subnet(used: Iterable[int]) -> int:
    """Return the lowest K of 10.231.K.0/24 that nobody uses.

    Raises:
        StartupError: all 256 are taken.
    """
    taken = set(used)
    for subnet in range(256):
        if subnet not in taken:
            return subnet
    raise StartupError(
        "every network 10.231.K.0/24 is in use", cure="take a cluster down: yarn-accel cluster down --all"
    )


def is_port_free(port: int) -> bool:
    """Tell whether nobody listens on a TCP port at any IPv4 address of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As Java does: a port with lingering connections may be bound again, one that is listened on may not.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True


def choose_port_base(
    span: int, reserved: Iterable[range], is_free: Callable[[int], bool] = is_port_free
) -> int:
    """Return the first port of a free block of `span` ports (loopback mode).

    Args:
        span: length of the block.
        reserved: blocks of other clusters, running or not.
        is_free: asked for each port.

    Raises:
        StartupError: no such block.
    """
    blocks = tuple(reserved)
    for base in PORT_BASES:
        wanted = range(base, base + span)
        overlaps = any(wanted.start < block.stop and block.start < wanted.stop for block in blocks)
        if not overlaps and all(is_free(port) for port in wanted):
            return base
    raise StartupError(
        f"no {span} ports in a row are free from {PORT_BASES.start} to {PORT_BASES.stop}",
        cure="take fewer --nodes, or stop what listens there (ss -ltn)",
    )


def check_fixed_ports(
    wanted: Iterable[tuple[str, int]], is_free: Callable[[int], bool] = is_port_free
) -> None:
    """Make sure that the ports which a cluster was given earlier are still its own.

    Args:
        wanted: (whose it is, port) of the daemons that are to be started.
        is_free: asked for each port.

    Raises:
        StartupError: somebody else listens on one.
    """
    for owner, port in wanted:
        if not is_free(port):
            raise StartupError(
                f"port {port} of {owner} is in use by another program",
                cure=f"stop it (ss -ltnp 'sport = :{port}'), or take the cluster down and up again",
            )


def check_subnet(plan: ClusterPlan, subnet: int, used: dict[int, str]) -> None:
    """Make sure that nobody took the cluster's network since it was chosen.

    Raises:
        StartupError: an interface that is not the cluster's bridge uses it.
    """
    who = used.get(subnet, "")
    if who and not who.endswith(f" {plan.bridge}"):
        raise StartupError(
            f"the cluster's network 10.231.{subnet}.0/24 is in use by {who}",
            cure="take the cluster down and up again for another one",
        )
