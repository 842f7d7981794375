"""The files of a cluster, its specification, and the locks of those who change it.

The specification (options and allocated numbers) is written before anything is made on the machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from yarn_accel.errors import ClusterError, ConfigError
from yarn_accel.local_filesystem import write_atomic
from yarn_accel.testbed.plan import (
    MASTER,
    ClusterPlan,
    NetworkMode,
    UpOptions,
    check_name,
    cluster_tag,
    make_plan,
)

VERSION = 1
LOCK_WAIT_S = 600.0
MACHINE_LOCK_WAIT_S = 30.0
MAX_UNIX_PATH_BYTES = 107
Report = Callable[[str], None]


def silent(_line: str) -> None:
    """Report to nobody."""


def clusters_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Return the directory of all clusters of this user: under XDG_STATE_HOME or ~/.local/state."""
    environ = os.environ if environ is None else environ
    home = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME") or Path.home()) / ".local" / "state")
    return Path(home).absolute() / "cluster-accel" / "clusters"


@dataclass(frozen=True)
class ClusterPaths:
    """The files of one cluster."""

    name: str
    root: Path

    @classmethod
    def of(cls, name: str, parent: Path | None = None) -> ClusterPaths:
        """Return the paths of the cluster `name`, whether it exists or not.

        Raises:
            ConfigError: the name is not usable.
        """
        check_name(name)
        return cls(name, (clusters_dir() if parent is None else parent) / name)

    @property
    def scope(self) -> str:
        """The folder from which, and from its name, the cluster's tag is made."""
        return str(self.root.parent)

    @property
    def tag(self) -> str:
        """The six digits that keep apart equal names in different places."""
        return cluster_tag(self.name, self.scope)

    @property
    def state_file(self) -> Path:
        """The spec."""
        return self.root / "state.json"

    @property
    def lock_file(self) -> Path:
        """Held by whoever changes the cluster."""
        return self.root.parent / f".{self.name}.lock"

    @property
    def conf_dir(self) -> Path:
        """Configuration of the daemons and containers, shared by all nodes."""
        return self.root / "conf"

    @property
    def client_conf_dir(self) -> Path:
        """HADOOP_CONF_DIR for programs outside the nodes."""
        return self.root / "client-conf"

    @property
    def hosts_file(self) -> Path:
        """Names of all nodes and of this machine, as in /etc/hosts."""
        return self.root / "hosts"

    @property
    def logs_dir(self) -> Path:
        """The daemons' logs, a folder per node."""
        return self.root / "logs"

    @property
    def binding_file(self) -> Path:
        """Which pipeline server serves which node."""
        return self.root / "binding.json"

    @property
    def master_secret_file(self) -> Path:
        """The pipeline servers' master secret."""
        return self.root / "master-secret"

    @property
    def namenode_dir(self) -> Path:
        """The NameNode's directory; it exists only when it has been formatted completely."""
        return self.node_dir(MASTER) / "namenode"

    @property
    def shared_edits_dir(self) -> Path:
        """Where the active NameNode of two writes its edits."""
        return self.root / "nodes" / "shared-edits"

    @property
    def zookeeper_config(self) -> Path:
        """ZooKeeper's settings."""
        return self.root / "zookeeper.cfg"

    def node_dir(self, node: str) -> Path:
        """Return a node's own data."""
        return self.root / "nodes" / node

    def uts_file(self, node: str) -> Path:
        """Return the file that a node's host name namespace is mounted on."""
        return self.root / "uts" / node

    def log_file(self, node: str, role: str) -> Path:
        """Return the log of one daemon."""
        return self.logs_dir / node / f"{role}.log"

    def pipeline_config(self, node: str) -> Path:
        """Return the settings of a node's pipeline server."""
        return self.node_dir(node) / "pipeline.yaml"

    def pipeline_state(self, node: str) -> Path:
        """Return the file that a node's pipeline server writes when it is ready."""
        return self.node_dir(node) / "pipeline.json"

    def unix_path(self, node: str) -> str:
        """Return the Unix socket of a node's pipeline server; empty when the path would be too long."""
        path = str(self.root / f"{node}.sock")
        return path if len(os.fsencode(path)) <= MAX_UNIX_PATH_BYTES else ""


@dataclass(frozen=True)
class ClusterSpec:
    """A cluster's options, and the numbers it was given.

    Attributes:
        subnet: K of 10.231.K.0/24 (netns and docker mode).
        port_base: first of its own ports (loopback mode).
        created_s: Unix time of the first `up`.
        owned: machine-wide directories that were not there before (``/etc/netns``, ``/run/netns``).
    """

    options: UpOptions
    mode: NetworkMode
    subnet: int
    port_base: int
    created_s: float
    owned: tuple[str, ...] = ()

    def plan(self, paths: ClusterPaths) -> ClusterPlan:
        """Lay out the cluster."""
        return make_plan(self.options, self.mode, paths.scope, self.subnet, self.port_base)


def save(paths: ClusterPaths, spec: ClusterSpec) -> None:
    """Write the spec, whole or not at all."""
    paths.root.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomic(paths.state_file, json.dumps({"version": VERSION, **asdict(spec)}, indent=1) + "\n")


def load(paths: ClusterPaths) -> ClusterSpec | None:
    """Read the spec; None when there is no such cluster.

    Raises:
        ClusterError: the file is damaged or of another version.
    """
    try:
        text = paths.state_file.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ClusterError(f"{paths.state_file}: {error.strerror}") from error
    try:
        raw = json.loads(text)
        if raw.pop("version") != VERSION:
            raise ValueError("another version")
        wanted = raw.pop("options")
        options = UpOptions(**{**wanted, "mounts": tuple(wanted.get("mounts", ()))})
        mode = NetworkMode(raw.pop("mode"))
        return ClusterSpec(options=options, mode=mode, owned=tuple(raw.pop("owned")), **raw)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ClusterError(
            f"{paths.state_file} is not readable ({error})", cure=f"yarn-accel cluster down {paths.name}"
        ) from error


def known_names(parent: Path | None = None) -> list[str]:
    """Return the names of this user's clusters, also of those whose state is damaged."""
    folder = clusters_dir() if parent is None else parent
    names = []
    for entry in sorted(folder.iterdir()) if folder.is_dir() else []:
        with contextlib.suppress(ConfigError):
            check_name(entry.name)
            names.append(entry.name)
    return names


@contextlib.contextmanager
def locked(paths: ClusterPaths, report: Report, wait_s: float = LOCK_WAIT_S) -> Iterator[None]:
    """Hold the cluster's lock; a second command reports that it waits. `remove_lock` may delete the file.

    Raises:
        ClusterError: the other command did not finish within `wait_s`.
    """
    paths.root.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + wait_s
    handle = -1
    has_waited = False
    while handle < 0:
        handle = _try_lock(paths.lock_file)
        if handle >= 0:
            break
        if time.monotonic() > deadline:
            raise ClusterError(f"another command has been working on cluster {paths.name} for {wait_s:.0f} s")
        if not has_waited:
            report(f"another command is working on cluster {paths.name}; waiting for it")
            has_waited = True
        time.sleep(0.1)
    try:
        yield
    finally:
        os.close(handle)


def _try_lock(path: Path) -> int:
    """Return the descriptor of the locked file; -1 when another holds it or it was deleted under us."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return -1
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.stat().st_ino == os.fstat(handle).st_ino:
            return handle
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(handle)
    return -1


def remove_lock(paths: ClusterPaths) -> None:
    """Delete the lock file (while holding it) and the directories above when nothing else is in them."""
    paths.lock_file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        paths.root.parent.rmdir()
        paths.root.parent.parent.rmdir()


@contextlib.contextmanager
def machine_lock(purpose: str, wait_s: float = MACHINE_LOCK_WAIT_S) -> Iterator[None]:
    """Let one process of the whole machine choose a subnet or ports at a time.

    An abstract Unix socket serves as the lock: it leaves no file and ends with its process.

    Raises:
        ClusterError: another process held it for `wait_s`.
    """
    deadline = time.monotonic() + wait_s
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as holder:
        while True:
            try:
                holder.bind(f"\0yarn-accel.{purpose}")
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise ClusterError(
                        f"another process has been choosing its {purpose} for {wait_s:.0f} s"
                    ) from error
                time.sleep(0.05)
        yield
