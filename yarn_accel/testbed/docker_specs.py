"""A plan in the terms of a Docker engine's API: a network, and a container per node. Pure.

Nodes get the addresses, names and files that they have in netns mode. The image gives the operating system;
Java, Python, Hadoop and this product are this machine's, mounted read-only at their own paths, and the
cluster's folder is mounted at its own path, too. So the same settings hold here, there, and in clients on
this machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yarn_accel.testbed.plan import (
    INSIDE,
    SUBNET_PREFIX,
    ClusterPlan,
    NodePlan,
    memory_bytes,
    namespace_prefix,
    shape_argvs,
)

IMAGE_REPOSITORY = "yarn-accel/node"
CLUSTER_LABEL = "yarn-accel.cluster"
NODE_LABEL = "yarn-accel.node"
SPEC_LABEL = "yarn-accel.spec"
VERSION_LABEL = "org.opencontainers.image.version"
#: All that a node's root keeps. NET_ADMIN: `cut`, `heal`, `slow` and `--link` work on the node's own link.
CAPABILITIES = ("NET_ADMIN",)
PIDS_LIMIT = 8192
SHARED_MEMORY_BYTES = 2**30  # an upper limit; a pipeline server and its clients exchange arrays through it
_INBOUND = "ifb0"


def default_image(version: str) -> str:
    """Return the node image of a version of this product."""
    return f"{IMAGE_REPOSITORY}:{version}"


@dataclass(frozen=True)
class Surroundings:
    """The parts of this machine that go into the containers.

    Attributes:
        image: of the nodes.
        has_gpus: whether the engine can give the machine's GPUs to containers.
        mark: of the cluster, see `mark_of`.
        root: the cluster's folder.
        readable: files and folders that the nodes see at the same path and cannot change.
        files: further read-only files: path on the node -> path on this machine.
        environ: variables of every process on the nodes.
    """

    image: str
    has_gpus: bool
    mark: str
    root: Path
    readable: tuple[Path, ...]
    files: Mapping[str, Path]
    environ: Mapping[str, str]


def labels(mark: str) -> dict[str, str]:
    """Return the labels by which all that a cluster has in an engine is found."""
    return {CLUSTER_LABEL: mark}


def network_name(plan: ClusterPlan) -> str:
    """Return the name of a cluster's network in the engine; `ClusterPlan.bridge` is that of its bridge."""
    return namespace_prefix(plan.options.name, plan.tag).rstrip("-")


def network_arguments(plan: ClusterPlan, mark: str) -> dict[str, Any]:
    """Return the arguments of the engine's network; it leads out only where ports are published."""
    subnet = f"{SUBNET_PREFIX}{plan.subnet}.0/24"
    return {
        "name": network_name(plan),
        "driver": "bridge",
        "options": {"com.docker.network.bridge.name": plan.bridge},
        "ipam": {"Driver": "default", "Config": [{"Subnet": subnet, "Gateway": plan.gateway}]},
        "internal": not plan.options.publish,
        "labels": labels(mark),
        "check_duplicate": True,
    }


def published_ports(plan: ClusterPlan, node: NodePlan) -> dict[str, int]:
    """Return the ports of a node that are also at 127.0.0.1 of this machine, with whose page is there."""
    if not (plan.options.publish and node.is_master):
        return {}
    ports = plan.ports
    return {
        "resourcemanager": ports.rm_http,
        "namenode": ports.namenode_http,
        "historyserver": ports.history_http,
    }


def container_body(plan: ClusterPlan, node: NodePlan, around: Surroundings) -> dict[str, Any]:
    """Return the body of the engine's request that creates a node's container.

    Its own process, which only sleeps, is root's: nothing in the container may gain rights, so commands on
    links would else have none. All the rest runs as the caller, see `DockerNodes`.

    The label `SPEC_LABEL` is a hash over all of it: a container that was made from another body has another.
    """
    ports = [f"{port}/tcp" for port in published_ports(plan, node).values()]
    body = {
        "Image": around.image,
        "Hostname": node.name,
        "User": "0:0",
        "Entrypoint": ["sleep", "infinity"],
        "Cmd": [],
        "WorkingDir": "/",
        "Env": [f"{name}={value}" for name, value in sorted(around.environ.items())],
        "Labels": {**labels(around.mark), NODE_LABEL: node.name},
        "Healthcheck": {"Test": ["NONE"]},
        "ExposedPorts": {port: {} for port in ports},
        "HostConfig": {
            "NetworkMode": network_name(plan),
            "Mounts": _mounts(plan, around),
            "CapDrop": ["ALL"],
            "CapAdd": list(CAPABILITIES),
            "SecurityOpt": ["no-new-privileges"],
            "Init": True,
            "PidsLimit": PIDS_LIMIT,
            "ShmSize": SHARED_MEMORY_BYTES,
            "PortBindings": {
                port: [{"HostIp": "127.0.0.1", "HostPort": port.partition("/")[0]}] for port in ports
            },
            **_limits(plan),
            **_gpus(node, around),
        },
        "NetworkingConfig": {
            "EndpointsConfig": {network_name(plan): {"IPAMConfig": {"IPv4Address": node.address}}}
        },
    }
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:20]
    body["Labels"][SPEC_LABEL] = digest  # type: ignore[index]
    return body


def _limits(plan: ClusterPlan) -> dict[str, int]:
    limits = {}
    if plan.options.node_cpus:
        limits["NanoCpus"] = round(plan.options.node_cpus * 1e9)
    if plan.options.node_memory:
        # Equal limits with and without swap: none is swapped.
        limits["Memory"] = limits["MemorySwap"] = memory_bytes(plan.options.node_memory)
    return limits


def _gpus(node: NodePlan, around: Surroundings) -> dict[str, Any]:
    """All GPUs for each node that carries an accelerator, as ``docker run --gpus all`` gives them."""
    wanted = node.is_accel and around.has_gpus
    return {"DeviceRequests": [{"Count": -1, "Capabilities": [["gpu"]]}]} if wanted else {}


def _mounts(plan: ClusterPlan, around: Surroundings) -> list[dict[str, Any]]:
    writable = [around.root, *(Path(path) for path in plan.options.mounts)]
    found = [_bind(path, str(path), is_read_only=True) for path in outermost(around.readable)]
    found += [_bind(path, str(path), is_read_only=False) for path in outermost(writable)]
    found += [_bind(source, target, is_read_only=True) for target, source in sorted(around.files.items())]
    return found


def _bind(source: Path, target: str, *, is_read_only: bool) -> dict[str, Any]:
    return {"Type": "bind", "Source": str(source), "Target": target, "ReadOnly": is_read_only}


def outermost(paths: Iterable[Path]) -> list[Path]:
    """Return the paths that lie in none of the others, in order.

    >>> [str(path) for path in outermost([Path("/usr/lib/jvm"), Path("/opt"), Path("/usr")])]
    ['/opt', '/usr']
    """
    unique = sorted(set(paths))
    return [path for path in unique if not any(other in path.parents for other in unique)]


# ---- links, as root of the node


def link_argvs(plan: ClusterPlan, *, is_up: bool) -> list[list[str]]:
    """Return the commands that switch a node's link; one that goes down loses its way out, too."""
    state = ["ip", "link", "set", INSIDE, "up" if is_up else "down"]
    way_out = ["ip", "route", "replace", "default", "via", plan.gateway]
    return [state, way_out] if is_up else [state]


def free_argvs() -> list[list[str]]:
    """Return the commands that undo `limit_argvs`; each fails harmlessly where there is nothing to undo."""
    return [
        ["tc", "qdisc", "del", "dev", INSIDE, "root"],
        ["tc", "qdisc", "del", "dev", INSIDE, "ingress"],
        ["ip", "link", "delete", _INBOUND],
    ]


def limit_argvs(link: str, delay: str) -> list[list[str]]:
    """Return the commands that limit a node's link in both directions.

    What comes in passes an intermediate device, for only what leaves a device waits in a queue.
    """
    if not (link or delay):
        return []
    redirect = ["u32", "match", "u32", "0", "0", "action", "mirred", "egress", "redirect", "dev", _INBOUND]
    return [
        *shape_argvs(INSIDE, link, delay),
        ["ip", "link", "add", _INBOUND, "type", "ifb"],
        ["ip", "link", "set", _INBOUND, "up"],
        ["tc", "qdisc", "add", "dev", INSIDE, "handle", "ffff:", "ingress"],
        ["tc", "filter", "add", "dev", INSIDE, "parent", "ffff:", "protocol", "all", *redirect],
        *shape_argvs(_INBOUND, link, delay),
    ]
