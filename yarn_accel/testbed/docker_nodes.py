"""Nodes as containers of a Docker engine on this machine, with the addresses and names of netns mode.

The first process of a container sleeps, and everything else is started in it by the engine. So daemons are
started, killed and found one by one, as in the other modes. All that a cluster has in the engine bears one
label, and is found by it alone.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import shutil
import socket
import sys
import time
import urllib.parse
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import yarn_accel
from yarn_accel.adapters.commands import CompletedCommand
from yarn_accel.errors import AccelError, ClusterError, StartupError
from yarn_accel.extras import install_command
from yarn_accel.local_filesystem import write_atomic
from yarn_accel.testbed import docker_specs, host_nodes
from yarn_accel.testbed.docker_specs import NODE_LABEL, SPEC_LABEL, VERSION_LABEL, Surroundings
from yarn_accel.testbed.plan import INSIDE, ClusterPlan, NodePlan, UpOptions
from yarn_accel.testbed.preflight import check_subnet, is_port_free
from yarn_accel.testbed.processes import Process, mark_of, marked_environ
from yarn_accel.testbed.settings import hosts_text
from yarn_accel.testbed.software import Software
from yarn_accel.testbed.state import ClusterPaths, machine_lock

DEFAULT_HOST = "unix:///var/run/docker.sock"
#: Longer than any one command on a node takes.
REQUEST_TIMEOUT_S = 180
_ANSWER_TIMEOUT_S = 5.0
_TCP_PORT = 2375
_OTHER_MODES = "use --mode netns (as root) or loopback"


def engine_address(environ: Mapping[str, str] | None = None) -> str:
    """Return the address of the engine: DOCKER_HOST, else the usual socket."""
    return (os.environ if environ is None else environ).get("DOCKER_HOST") or DEFAULT_HOST


def connect() -> Any:
    """Return a client of the engine that answers.

    Raises:
        StartupError: the SDK is missing, or the engine is elsewhere, does not answer, or may not be used.
    """
    try:
        # A folder called docker, such as this project's own, may pass for the package.
        from docker import APIClient
    except ImportError as error:
        raise StartupError(
            "docker mode needs the Docker SDK for Python", cure=install_command("docker")
        ) from error
    address = engine_address()
    check_address(address)
    _check_answer(address)
    with engine_errors("say what it is"):
        client = APIClient(base_url=address, version="auto", timeout=REQUEST_TIMEOUT_S)
        info = client.info()
    try:
        check_info(info)
    except StartupError:
        client.close()
        raise
    return client


def _check_answer(address: str) -> None:
    parts = urllib.parse.urlsplit(address)
    is_unix = "unix" in parts.scheme
    family = socket.AF_UNIX if is_unix else socket.AF_INET
    target = parts.path if is_unix else (parts.hostname, parts.port or _TCP_PORT)
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(_ANSWER_TIMEOUT_S)
        try:
            probe.connect(target)
        except PermissionError as error:
            raise StartupError(
                f"you may not use the Docker engine at {address}",
                cure="add yourself to group docker, or use sudo",
            ) from error
        except OSError as error:
            raise StartupError(
                f"no Docker engine answers at {address} ({error.strerror or error})",
                cure=f"start it (systemctl start docker), or {_OTHER_MODES}",
            ) from error


def check_address(address: str) -> None:
    """Refuse an engine that is on another machine.

    Raises:
        StartupError: with the address.
    """
    parts = urllib.parse.urlsplit(address)
    if parts.scheme in ("tcp", "http", "https") and parts.hostname in ("localhost", "127.0.0.1", "::1"):
        return
    if parts.scheme not in ("unix", "http+unix"):
        raise StartupError(
            f"DOCKER_HOST is {address}, an engine on another machine, and nodes share this machine's files",
            cure="run yarn-accel on that machine, or unset DOCKER_HOST",
        )


def check_info(info: Mapping[str, Any], host_name: str | None = None) -> None:
    """Refuse an engine that cannot give this machine's files, network and users to containers.

    Args:
        info: the engine's answer to ``docker info``.
        host_name: of this machine (default: asked for).

    Raises:
        StartupError: the engine runs in a virtual machine, another container, or in a user namespace.
    """
    host_name = socket.gethostname() if host_name is None else host_name
    if info.get("Name") != host_name:
        raise StartupError(
            f"the Docker engine runs on {info.get('Name')}, not on this machine ({host_name})",
            cure="use an engine that runs here, not in a virtual machine or outside of this container",
        )
    options = {option.partition(",")[0] for option in info.get("SecurityOptions") or ()}
    for name, meaning in (("name=rootless", "rootless"), ("name=userns", "set up with userns-remap")):
        if name in options:
            raise StartupError(
                f"the Docker engine is {meaning}, so its nodes cannot use this machine's files and addresses",
                cure=f"use the engine of the system, or {_OTHER_MODES}",
            )


def check_image(client: Any, image: str, version: str, cure: str) -> None:
    """Make sure that an image is there, and that it is no other version's.

    Args:
        client: of the engine.
        image: its name.
        version: of this product; an image without the label `VERSION_LABEL` is anybody's own.
        cure: how to get the right one.

    Raises:
        StartupError: it is missing or of another version.
    """
    from docker.errors import ImageNotFound

    try:
        found = client.inspect_image(image)
    except ImageNotFound as error:
        raise StartupError(f"the Docker engine has no image {image}", cure=cure) from error
    other = ((found.get("Config") or {}).get("Labels") or {}).get(VERSION_LABEL, version)
    if other != version:
        raise StartupError(f"image {image} is of version {other}, this is {version}", cure=cure)


@contextlib.contextmanager
def engine_errors(doing: str) -> Iterator[None]:
    """Turn failures of the SDK into ours.

    Args:
        doing: what was being done, such as ``create container x``.

    Raises:
        ClusterError: with the engine's own explanation, and the cure where it is known.
    """
    try:
        import requests
        from docker.errors import DockerException
    except ImportError:  # without the extra nobody has a client, so there is nothing to turn
        yield
        return
    try:
        yield
    except (DockerException, requests.exceptions.RequestException) as error:
        text = " ".join(str(getattr(error, "explanation", None) or error).split())
        cure = next((cure for words, cure in _CURES if any(word in text for word in words)), "")
        raise ClusterError(f"the Docker engine could not {doing}: {text[:400]}", cure=cure) from error


#: Words of the engine's explanations, and what to do.
_CURES: Sequence[tuple[tuple[str, ...], str]] = (
    (("no space left",), "free some space on the engine's disk (docker info names it), or remove old images"),
    (
        ("port is already allocated", "address already in use"),
        "stop what listens there, or leave --publish out",
    ),
    (("Pool overlaps",), "take the cluster down and up again for another network"),
    (("bind source path does not exist",), "make the folder, or leave that --mount out"),
    (("Connection refused", "Connection aborted", "No such file"), "see whether the engine still runs"),
)


IMAGE_CURE = "build it (make docker-images), or name another one with --image"
#: For each process on a node; its HOME is the container's own.
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_KEPT = ("LANG", "LC_ALL", "TZ", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
# A request of a launcher that was killed may still be under way in the engine.
_SETTLE_S = 0.5
_REMOVE_DEADLINE_S = 60.0
# The script is constant; log and command are its arguments.
_DETACHED = ("sh", "-c", 'exec "$@" >>"$0" 2>&1 </dev/null')
_REACH = (
    "import socket, sys\n"
    "probe = socket.socket()\n"
    f"probe.settimeout({host_nodes.REACH_TIMEOUT_S})\n"
    "sys.exit(probe.connect_ex((sys.argv[1], 9)) not in (0, 111))\n"
)


def check_engine(options: UpOptions) -> None:
    """Make sure that the engine can be used and has the image.

    Raises:
        StartupError: it cannot, or has not.
    """
    with closing(connect()) as client:
        check_image(client, _image(options), yarn_accel.__version__, IMAGE_CURE)


def _image(options: UpOptions) -> str:
    return options.image or docker_specs.default_image(yarn_accel.__version__)


class DockerNodes:
    """The containers of one cluster; connects to the engine at the first use."""

    def __init__(self, plan: ClusterPlan, paths: ClusterPaths) -> None:
        self._plan = plan
        self._paths = paths
        self._mark = mark_of(paths.name, paths.tag)
        self._image = _image(plan.options)
        #: Whose processes the nodes run: the caller's, so that he may look into and signal them.
        self._user = f"{os.geteuid()}:{os.getegid()}"

    @cached_property
    def _client(self) -> Any:
        client = connect()
        weakref.finalize(self, client.close)
        return client

    # ---- making

    def ensure(self, software: Software, *, is_new: bool) -> list[str]:
        """See `Backend`; a container that is not as planned is made anew, its daemons end with it."""
        write_atomic(self._paths.hosts_file, hosts_text(self._plan))
        around = self._surroundings(software)
        there = self._containers()
        bodies = {node: docker_specs.container_body(self._plan, node, around) for node in self._plan.nodes}
        self._check_ports(there)
        made = self._ensure_network(there)
        stale = [node for node, body in bodies.items() if not _is_as_planned(there.get(node.name), body)]
        with ThreadPoolExecutor(max_workers=4) as pool:
            made += pool.map(lambda node: self._make(node, bodies[node], there.get(node.name)), stale)
            kept = [node for node in self._plan.nodes if node not in stale]
            made += [phrase for phrases in pool.map(self._repair, kept) for phrase in phrases]
            list(pool.map(lambda node: self._shape_as_planned(node, is_new=node in stale), self._plan.nodes))
            if made:
                list(pool.map(self._check_reach, self._plan.nodes))
        return made

    def _ensure_network(self, there: dict[str, dict[str, Any]]) -> list[str]:
        """Make the network; one that leads out otherwise than planned goes with its containers."""
        arguments = docker_specs.network_arguments(self._plan, self._mark)
        name = arguments["name"]
        with machine_lock("subnet"), engine_errors(f"create network {name}"):
            old = [each for each in _networks(self._client, self._mark) if each["Name"] == name]
            if old and old[0]["Internal"] is arguments["internal"]:
                return []
            for container in there.values() if old else ():
                self._client.remove_container(container["Id"], v=True, force=True)
            for network in old:
                there.clear()
                self._client.remove_network(network["Id"])
            used = host_nodes.used_subnets(marked_environ(self._paths))
            check_subnet(self._plan, self._plan.subnet, used)
            self._client.create_network(**arguments)
        return [f"network {name}"]

    def _surroundings(self, software: Software) -> Surroundings:
        java_home = software.install.java_home
        package_parent = Path(yarn_accel.__file__).resolve().parents[1]
        python = [Path(prefix).resolve() for prefix in (sys.base_prefix, sys.prefix)]
        # Debian's Java has its settings under /etc.
        java_settings = (java_home / "conf" / "logging.properties").resolve().parent
        jars = software.install.class_path_jar.parent.parent
        readable = (*python, Path(sys.prefix), package_parent, java_home, java_settings, jars)
        return Surroundings(
            image=self._image,
            mark=self._mark,
            has_gpus=self._has_gpus(),
            root=self._paths.root,
            readable=tuple(path for path in readable if path.exists()),
            files={"/etc/hosts": self._paths.hosts_file, **self._users()},
            environ={
                **{name: os.environ[name] for name in _KEPT if name in os.environ},
                "PATH": f"{python[1]}/bin:{python[0]}/bin:{_SYSTEM_PATH}",
                "PYTHONPATH": str(package_parent),
                "HOME": "/tmp",
            },
        )

    def _has_gpus(self) -> bool:
        with engine_errors("say what it is"):
            return "nvidia" in (self._client.info().get("Runtimes") or {})

    def _users(self) -> dict[str, Path]:
        """Write the files that give the caller his name on the nodes, which Java asks for; root has it."""
        uid, gid = os.geteuid(), os.getegid()
        if uid == 0:
            return {}
        user, group = pwd.getpwuid(uid).pw_name, grp.getgrgid(gid).gr_name
        texts = {
            "passwd": f"root:x:0:0:root:/root:/bin/bash\n{user}:x:{uid}:{gid}:{user}:/tmp:/bin/bash\n",
            "group": f"root:x:0:\n{group}:x:{gid}:\n",
        }
        for name, text in texts.items():
            write_atomic(self._paths.root / name, text)
        return {f"/etc/{name}": self._paths.root / name for name in texts}

    def _containers(self) -> dict[str, dict[str, Any]]:
        with engine_errors("list containers"):
            found = _containers(self._client, self._mark)
        return {container["Labels"].get(NODE_LABEL, ""): container for container in found}

    def _check_ports(self, there: Mapping[str, Mapping[str, Any]]) -> None:
        own = {port.get("PublicPort") for each in there.values() for port in each["Ports"]}
        for owner, port in docker_specs.published_ports(self._plan, self._plan.master).items():
            if port not in own and not is_port_free(port):
                raise StartupError(
                    f"port {port} of {owner} is in use by another program",
                    cure=f"stop it (ss -ltnp 'sport = :{port}'), or leave --publish out",
                )

    def _make(self, node: NodePlan, body: Mapping[str, Any], old: Mapping[str, Any] | None) -> str:
        with engine_errors(f"make container {node.namespace}"):
            if old is not None:
                self._client.remove_container(old["Id"], v=True, force=True)
            created = self._client.create_container_from_config(body, node.namespace)
            self._client.start(created["Id"])
        return f"container {node.namespace}"

    def _repair(self, node: NodePlan) -> list[str]:
        made = []
        if self.condition(node, ()) == "paused":
            self.resume(node)
            made.append(f"paused {node.name}")
        if self.condition(node, ()) == "cut off":
            self.set_link(node, is_up=True)
            made.append(f"link of {node.name}")
        return made

    def _shape_as_planned(self, node: NodePlan, *, is_new: bool) -> None:
        link, delay = self._plan.link_of(node), self._plan.options.delay
        is_shaped = not is_new and self._is_shaped(node)
        if link or delay or is_shaped:
            self.shape(node, link)

    def _is_shaped(self, node: NodePlan) -> bool:
        words = self._as_root(node, ["tc", "qdisc", "show"]).stdout.split()
        return bool({"tbf", "netem"} & set(words))

    def _check_reach(self, node: NodePlan) -> None:
        argv = [sys.executable, "-c", _REACH, self._plan.master.address]
        done = self.run(node, argv, host_nodes.REACH_TIMEOUT_S, cwd=Path("/"), env={})
        if done.exit_code == 1 and not done.stderr:
            raise ClusterError(
                f"packets from node {node.name} to node master ({self._plan.master.address}) on bridge"
                f" {self._plan.bridge} are dropped",
                cure="see whether the engine may set up iptables (its log), and what the FORWARD chain drops",
            )
        if not done.ok:
            raise ClusterError(
                f"this machine's Python does not run in image {self._image}: {done.last_line()}",
                cure="you must be able to read it, and the image's C library be no older than here (--image)",
            )

    # ---- using

    def exec_argv(self, node: NodePlan, argv: Sequence[str]) -> list[str]:
        """See `Backend`; the engine's own command handles terminals and signals.

        Raises:
            StartupError: that command is missing.
        """
        program = shutil.which("docker")
        if program is None:
            raise StartupError(
                "commands on nodes need the program docker",
                cure="apt-get install -y docker.io (or docker-cli)",
            )
        terminal = ["--tty"] if sys.stdin.isatty() and sys.stdout.isatty() else []
        visible = [self._paths.root, *(Path(path) for path in self._plan.options.mounts)]
        here = Path.cwd()
        folder = here if {here, *here.parents} & set(visible) else self._paths.root
        options = [
            "exec",
            "--interactive",
            *terminal,
            "--user",
            self._user,
            "--workdir",
            str(folder),
            node.namespace,
        ]
        return [program, "--host", engine_address(), *options, *argv]

    def run(
        self, node: NodePlan, argv: Sequence[str], timeout_s: float, *, cwd: Path, env: Mapping[str, str]
    ) -> CompletedCommand:
        """See `Backend`; the time limit is the connection's own."""
        return self._exec(node, argv, user=self._user, workdir=str(cwd), environment=self._environ(env))

    def start(
        self, node: NodePlan, argv: Sequence[str], log: Path, *, cwd: Path, env: Mapping[str, str]
    ) -> bool:
        """See `Backend`."""
        with engine_errors(f"start a process in {node.namespace}"):
            created = self._client.exec_create(
                node.namespace,
                [*_DETACHED, str(log), *argv],
                stdout=False,
                stderr=False,
                user=self._user,
                workdir=str(cwd),
                environment=self._environ(env),
            )
            self._client.exec_start(created["Id"], detach=True)
        return True

    @staticmethod
    def _environ(env: Mapping[str, str]) -> dict[str, str]:
        """Leave out what describes the caller's session: nodes have a PATH and HOME of their own."""
        prefixes = ("YARN_ACCEL_", "HADOOP_", "JAVA_HOME", "PYTHON")
        return {name: value for name, value in env.items() if name.startswith(prefixes)}

    def _as_root(self, node: NodePlan, argv: Sequence[str]) -> CompletedCommand:
        return self._exec(node, argv, user="0:0")

    def _exec(self, node: NodePlan, argv: Sequence[str], **options: Any) -> CompletedCommand:
        started_s = time.monotonic()
        with engine_errors(f"run {argv[0]} in {node.namespace}"):
            created = self._client.exec_create(node.namespace, list(argv), **options)
            out, err = self._client.exec_start(created["Id"], demux=True)
            exit_code = self._client.exec_inspect(created["Id"])["ExitCode"]
        stdout, stderr = ((part or b"").decode(errors="replace") for part in (out, err))
        return CompletedCommand(tuple(argv), exit_code, stdout, stderr, time.monotonic() - started_s)

    # ---- disturbing

    def set_link(self, node: NodePlan, *, is_up: bool) -> None:
        """See `Backend`."""
        for argv in docker_specs.link_argvs(self._plan, is_up=is_up):
            self._must(node, argv)

    def shape(self, node: NodePlan, link: str) -> None:
        """See `Backend`.

        Raises:
            StartupError: the kernel cannot do it.
        """
        for argv in docker_specs.free_argvs():
            self._as_root(node, argv)
        for argv in docker_specs.limit_argvs(link, self._plan.options.delay):
            done = self._as_root(node, argv)
            if "kind is unknown" in done.stderr:
                option, kind = ("delay", "netem") if "netem" in argv else ("link", "tbf, ifb and mirred")
                raise StartupError(
                    f"--{option} needs the kernel's {kind}, which cannot be used here ({done.last_line()})",
                    cure=f"load it (modprobe sch_{kind.partition(',')[0]}), or leave --{option} out",
                )
            _check(done, node)

    def _must(self, node: NodePlan, argv: Sequence[str]) -> None:
        _check(self._as_root(node, argv), node)

    def pause(self, node: NodePlan) -> None:
        """See `Backend`: by the engine's freezer."""
        if self.condition(node, ()) != "paused":
            with engine_errors(f"pause {node.namespace}"):
                self._client.pause(node.namespace)

    def resume(self, node: NodePlan) -> None:
        """See `Backend`."""
        if self.condition(node, ()) == "paused":
            with engine_errors(f"have {node.namespace} go on"):
                self._client.unpause(node.namespace)

    def condition(self, node: NodePlan, table: Iterable[Process]) -> str:
        """See `Backend`; a link that is down has no routes."""
        with engine_errors(f"look at {node.namespace}"):
            state = self._client.inspect_container(node.namespace)["State"]
        if state["Paused"]:
            return "paused"
        try:
            routes = (Path("/proc") / str(state["Pid"]) / "net" / "route").read_text()
        except OSError:
            return ""  # it does not run
        return "" if any(line.startswith(INSIDE) for line in routes.splitlines()) else "cut off"


def _check(done: CompletedCommand, node: NodePlan) -> None:
    if not done.ok:
        raise ClusterError(f"`{' '.join(done.argv)}` failed on node {node.name}: {done.last_line()}")


def _is_as_planned(container: Mapping[str, Any] | None, body: Mapping[str, Any]) -> bool:
    if container is None or container["State"] not in ("running", "paused"):
        return False
    return bool(container["Labels"].get(SPEC_LABEL) == body["Labels"][SPEC_LABEL])


def _containers(client: Any, mark: str) -> list[dict[str, Any]]:
    filters = {"label": [f"{key}={value}" for key, value in docker_specs.labels(mark).items()]}
    return list(client.containers(all=True, filters=filters))


def _networks(client: Any, mark: str) -> list[dict[str, Any]]:
    filters = {"label": [f"{key}={value}" for key, value in docker_specs.labels(mark).items()]}
    return list(client.networks(filters=filters))


# ---- taking away, by the label alone


@contextmanager
def _client_or_none(*, is_certain: bool) -> Iterator[Any]:
    """A client; None where nothing says that the cluster had containers and no engine can be asked."""
    with ExitStack() as stack:
        client = None
        try:
            client = stack.enter_context(closing(connect()))
        except AccelError:
            if is_certain:
                raise
        yield client


def thaw(paths: ClusterPaths, *, is_certain: bool) -> None:
    """Let the paused containers of a cluster go on.

    Args:
        paths: the cluster.
        is_certain: whether it has containers; else an engine that does not answer is passed over.

    Raises:
        AccelError: the engine cannot be asked, or refuses.
    """
    with _client_or_none(is_certain=is_certain) as client:
        # Without a client the SDK, whose errors these are, may not be here.
        if client:
            _thaw_all(client, paths)


def _thaw_all(client: Any, paths: ClusterPaths) -> None:
    with engine_errors(f"have cluster {paths.name} go on"):
        for container in _containers(client, mark_of(paths.name, paths.tag)):
            if container["State"] == "paused":
                client.unpause(container["Id"])


def remove(paths: ClusterPaths, *, is_certain: bool) -> list[str]:
    """Take away every container (with its volumes) and network that has the cluster's label.

    Looks again until nothing more appears: the engine may still carry out what a killed launcher asked for.

    Args, Raises: see `thaw`.

    Returns:
        One phrase for each thing taken away.
    """
    with _client_or_none(is_certain=is_certain) as client:
        return _remove_all(client, paths) if client else []


def _remove_all(client: Any, paths: ClusterPaths) -> list[str]:
    mark = mark_of(paths.name, paths.tag)
    gone: list[str] = []
    deadline = time.monotonic() + _REMOVE_DEADLINE_S
    while True:
        with engine_errors(f"remove the containers of cluster {paths.name}"):
            containers, networks = _containers(client, mark), _networks(client, mark)
            with ThreadPoolExecutor(max_workers=4) as pool:
                list(pool.map(lambda each: _remove_container(client, each["Id"]), containers))
        gone += [f"container {container['Names'][0].lstrip('/')}" for container in containers]
        gone += [
            f"network {network['Name']}" for network in networks if _remove_network(client, network["Id"])
        ]
        if not containers and not networks:
            return gone
        if time.monotonic() > deadline:
            left = ", ".join([each["Id"][:12] for each in (*containers, *networks)])
            raise ClusterError(f"the Docker engine does not remove {left}", cure="see its log")
        time.sleep(_SETTLE_S)


def _remove_container(client: Any, container_id: str) -> None:
    from docker.errors import APIError

    try:
        client.remove_container(container_id, v=True, force=True)
    except APIError as error:
        if error.status_code not in (404, 409):  # gone meanwhile, or its removal is under way
            raise


def _remove_network(client: Any, network_id: str) -> bool:
    from docker.errors import APIError

    try:
        client.remove_network(network_id)
    except APIError:
        # A container that was being made has just joined it: the next look removes both.
        return False
    return True
