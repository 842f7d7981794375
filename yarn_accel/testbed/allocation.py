"""Allocates a subnet or ports to a new cluster, and refuses later options that differ from what it has."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace

from yarn_accel.errors import ClusterError, ConfigError
from yarn_accel.testbed import netns, preflight
from yarn_accel.testbed.plan import ClusterPlan, DaemonRole, NetworkMode, NodePlan, UpOptions, port_span
from yarn_accel.testbed.processes import marked_environ
from yarn_accel.testbed.state import ClusterPaths, ClusterSpec, known_names, load, machine_lock, save

_FIXED_OPTIONS = ("nodes", "racks", "accel_nodes", "slots", "late")


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
            taken = set(netns.used_subnets(marked_environ(paths)))
            taken |= {other.subnet for other in others if other.mode.has_links}
            subnet = preflight.choose_subnet(taken)
            while not _is_reserved(f"subnet.{subnet}", reservations):
                taken.add(subnet)
                subnet = preflight.choose_subnet(taken)
            if mode is NetworkMode.NETNS:
                owned = set(netns.absent_now()).union(*(other.owned for other in others))
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
