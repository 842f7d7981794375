"""Makes the folder of an emulated cluster: ``bin`` with the programs, ``state`` with everything else.

``state`` has the shape of a PBS home where that helps (``server_name``, ``server_priv/accounting``,
``sched_priv``, ``sched_logs``), so a scheduler can be pointed at it.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from torque_sched.emulation.control_verb import convert_into
from torque_sched.emulation.journal import Journal
from torque_sched.emulation.model import EmulatedNode, EmulatedQueue, size_kb
from torque_sched.emulation.openpbs import server as openpbs
from torque_sched.emulation.world import Settings, World
from torque_sched.errors import ConfigError

PROGRAMS = [
    "qsub",
    "qrun",
    "qstat",
    "pbsnodes",
    "qnodes",
    "qalter",
    "qhold",
    "qrls",
    "qsig",
    "qdel",
    "qrerun",
    "qmove",
    "qmgr",
    "qstart",
    "qstop",
    "qenable",
    "qdisable",
    "qterm",
    "pbs_rsub",
    "pbs_rstat",
    "pbs_rdel",
    "printjob",
    "emulated",
]
_NOT_OF_OPENPBS = frozenset(("qnodes", "qstart", "qstop", "qenable", "qdisable", "qterm"))
_NOT_OF_TORQUE = frozenset(("pbs_rsub", "pbs_rstat", "pbs_rdel", "printjob"))
_VNODE = frozenset(("Mom", "sharing", "in_multivnode_host", "partition"))
_BLANK = "\n"
_SIZES = {"physmem": "physmem_kb", "swap": "swap_kb"}
_SERVER = {
    "scheduling": "True",
    "acl_hosts": "{server}",
    "managers": "{admins}",
    "operators": "{admins}",
    "default_queue": "batch",
    "log_events": "2047",
    "mail_from": "adm",
    "scheduler_iteration": "60",
    "node_check_rate": "150",
    "tcp_timeout": "300",
    "job_stat_rate": "300",
    "poll_jobs": "True",
    "down_on_error": "True",
    "mom_job_sync": "True",
    "keep_completed": "300",
    "submit_hosts": "{server}",
    "allow_node_submit": "True",
    "moab_array_compatible": "True",
    "nppcu": "1",
    "timeout_for_job_delete": "120",
    "timeout_for_job_requeue": "120",
    "note_append_on_error": "True",
}
_OLD_LACKS = [
    "operators",
    "down_on_error",
    "keep_completed",
    "submit_hosts",
    "allow_node_submit",
    "timeout_for_job_delete",
    "timeout_for_job_requeue",
    "note_append_on_error",
]
_LAUNCHER = """#!/bin/sh
# Emulated Torque: asks the emulated server of this folder.
here=$(dirname "$(readlink -f "$0")")
exec {python} -I -S -E {client} "$here/../state" {name} "$@"
"""
_SERVER_LAUNCHER = """#!/bin/sh
# Emulated Torque: the server of this folder, in the foreground.
here=$(dirname "$(readlink -f "$0")")
cd "$here/.." || exit 1
PYTHONPATH={library}${{PYTHONPATH:+:$PYTHONPATH}}
export PYTHONPATH
exec {python} -m torque_sched.emulation.server "$here/../state" "$@"
"""


def install(
    directory: Path,
    nodes: Iterable[EmulatedNode],
    settings: Settings,
    *,
    now_s: float,
    queues: dict[str, dict[str, str]] | None = None,
    server: dict[str, str] | None = None,
    next_job: int = 1,
) -> None:
    """Make ``bin`` and ``state`` under ``directory``; nothing is started.

    Args:
        directory: made if it is missing; must not hold an emulation yet.
        nodes: in nodes-file order.
        settings: what never changes later.
        now_s: epoch seconds at which the emulated time begins (with a manual clock).
        queues: name -> attributes; by default one queue ``batch`` with nodes=1 and one hour.
        server: attributes that differ from the defaults.
        next_job: number of the first job.

    Raises:
        ConfigError: there is an emulation already, or two nodes share a name.
    """
    state = directory / "state"
    if (state / "snapshot.json").exists():
        raise ConfigError(
            f"{directory}: holds an emulated cluster already", cure="remove it or take another folder"
        )
    for name in ("server_priv/accounting", "sched_priv", "sched_logs", "server_logs", "gone", "run"):
        (state / name).mkdir(parents=True, exist_ok=True)
    (state / "server_name").write_text(f"{settings.server}\n", encoding="utf-8")
    if settings.clock == "manual":
        (state / "clock").write_text(f"{now_s:.6f}\n", encoding="ascii")
    make = openpbs.first_world if settings.is_openpbs else first_world
    world = make(settings, now_s, queues, server)
    world.next_job = next_job
    for node in nodes:
        if node.name in world.nodes:
            raise ConfigError(f"node {node.name} is listed twice", cure="give every node its own name")
        if settings.is_openpbs:
            _complete_vnode(node)
        world.add_node(node)
    (state / "server_priv" / "nodes").write_text(_nodes_text(world), encoding="utf-8")
    _write_gone(state / "gone", settings)
    Journal(state).compact(world)
    _write_programs(directory / "bin", programs_of(settings))


def programs_of(settings: Settings) -> list[str]:
    """The names of a dialect's programs."""
    if settings.is_openpbs:
        return [name for name in PROGRAMS if name not in _NOT_OF_OPENPBS]
    return [name for name in PROGRAMS if name not in _NOT_OF_TORQUE]


def _complete_vnode(node: EmulatedNode) -> None:
    """The resources of a vnode of OpenPBS from what a line of Torque's nodes file says."""
    known = {
        "arch": "linux", "host": node.name, "vnode": node.name, "ncpus": str(node.np),
        "mem": f"{node.physmem_kb}kb", "ngpus": str(node.gpus) if node.gpus else "",
        "feature": ",".join(node.properties),
    }  # fmt: skip
    for name, value in known.items():
        if value:
            node.attributes.setdefault(f"resources_available.{name}", value)
    node.attributes.setdefault("sharing", "default_shared")


def first_world(
    settings: Settings, now_s: float, queues: dict[str, dict[str, str]] | None, server: dict[str, str] | None
) -> World:
    """The world of a cluster that was just made."""
    world = World(settings, now_s=now_s)
    admins = ",".join(f"{name}@{settings.server}" for name in settings.admins)
    world.server = {
        key: value.format(server=settings.server, admins=admins)
        for key, value in _SERVER.items()
        if not (settings.is_old and key in _OLD_LACKS)
    }
    world.server.update(server or {})
    wanted = queues if queues is not None else {
        "batch": {"resources_default.nodes": "1", "resources_default.walltime": "01:00:00"}
    }  # fmt: skip
    for name, attributes in wanted.items():
        base = {"queue_type": "Execution", **attributes}
        for key in ("enabled", "started"):
            base.setdefault(key, "True")
        world.queues[name] = EmulatedQueue(name, base, int(now_s))
    return world


def _nodes_text(world: World) -> str:
    lines = []
    for node in world.nodes.values():
        gpus = f" gpus={node.gpus}" if node.gpus else ""
        lines.append(f"{node.name} np={node.np}{gpus} {' '.join(node.properties)}".rstrip() + "\n")
    return "".join(lines)


def read_nodes(text: str) -> list[EmulatedNode]:
    """A Torque nodes file; behind ``#`` on a node's line may stand what only an emulation needs.

    ``node4 np=4 gpus=2 gpunode # physmem=64gb ncpus=4 base_load=0.1 has_nvml gpu_mem_mb=40960``

    Of a vnode of OpenPBS: ``node1[0] np=8 gpus=1 Mom=node1 resources_available.host=node1``.

    Raises:
        ConfigError: names the line and the key.
    """
    nodes = []
    for number, line in enumerate(text.splitlines(), 1):
        body, _, extra = line.partition("#")
        words = body.split()
        if not words:
            continue
        try:
            nodes.append(_node(words[0], words[1:] + extra.split()))
        except (ValueError, KeyError) as error:
            raise ConfigError(
                f"nodes file, line {number}: {error}", cure="as in: node4 np=4 gpus=2 fast"
            ) from error
    return nodes


def _node(name: str, words: list[str]) -> EmulatedNode:
    node = EmulatedNode(name, 1)
    for word in words:
        key, sign, value = word.partition("=")
        if key in _SIZES:
            setattr(node, _SIZES[key], size_kb(value))
        elif sign and ("." in key or key in _VNODE):
            node.attributes[key] = value
        elif sign or key in ("has_nvml", "is_failing", "jobend_report"):
            convert_into(node, key, value)
        else:
            node.properties.append(key)
    return node


def nodes_of_shape(text: str) -> list[EmulatedNode]:
    """``16xnp=8,physmem=64gb + 4xnp=32,gpus=4,has_nvml,gpunode`` -> 20 nodes node1 ... node20.

    Raises:
        ConfigError: not such a text.
    """
    nodes: list[EmulatedNode] = []
    for part in text.split("+"):
        match = re.fullmatch(r"\s*(\d+)x(.+?)\s*", part)
        if not match:
            raise ConfigError(f"shape '{part}'", cure="as in: 16xnp=8,physmem=64gb+4xnp=32,gpus=4,gpunode")
        try:
            for _ in range(int(match[1])):
                nodes.append(_node(f"node{len(nodes) + 1}", match[2].split(",")))
        except (ValueError, KeyError) as error:
            raise ConfigError(
                f"shape '{part}': {error}", cure="keys are those of `emulated fields`"
            ) from error
    return nodes


def gone_answer(name: str, server: str, *, is_old: bool, address: str = "127.0.0.1") -> tuple[int, str]:
    """Exit code and standard error of a program that finds nobody at the server's port."""
    once = f"{'' if is_old else _BLANK}Unable to communicate with {server}({address})\n"
    once += f"Cannot connect to specified server host '{server}'.\n"
    refused = "(111) Connection refused\n"
    if name == "qstat":
        text = f"qstat: cannot connect to server {server} (errno=111) Connection refused\n"
        last = "" if is_old else "qstat: Error (111 - Connection refused) "
        return 111, f"{once * 3}{text}{last}\n"
    if name in ("pbsnodes", "qnodes"):
        return 1, f"{once}pbsnodes: cannot connect to server {server}, error=111 (Connection refused)\n"
    if name in ("qrun", "qstart", "qstop", "qenable", "qdisable"):
        return 2, f"{once}{name}: could not connect to server  {refused}"
    if name == "qterm":
        return 2, f"{once}qterm: could not connect to server '' {refused}"
    if name == "qmgr":
        return 3, f"{once}qmgr: cannot connect to server  (errno=111) Connection refused\n"
    return 111, f"{once}{name}: cannot connect to server {server} (errno=111) Connection refused\n"


def _write_gone(folder: Path, settings: Settings) -> None:
    for name in programs_of(settings):
        if settings.is_openpbs:
            code, text = openpbs.gone_answer(name, settings.server)
        else:
            code, text = gone_answer(name, settings.server, is_old=settings.is_old)
        (folder / name).write_text(f"{code}\n{text}", encoding="utf-8")


@functools.cache
def _compiled_client() -> bytes | None:
    """The client as machine code, or None without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or os.environ.get("EMULATED_CLIENT") == "python":
        return None
    source = Path(__file__).with_name("client.c")
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / "client"
        done = subprocess.run(
            [compiler, "-O1", "-o", str(target), str(source)], capture_output=True, check=False, timeout=60
        )
        return target.read_bytes() if done.returncode == 0 else None


def _write_programs(folder: Path, names: Iterable[str]) -> None:
    folder.mkdir(exist_ok=True)
    machine_code = _compiled_client()
    client = Path(__file__).with_name("client.py")
    for name in names:
        path = folder / name
        if machine_code is None:
            path.write_text(
                _LAUNCHER.format(python=sys.executable, client=client, name=name), encoding="utf-8"
            )
        else:
            path.write_bytes(machine_code)
        path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    server = folder / "pbs_server"
    library = Path(__file__).resolve().parents[2]
    server.write_text(_SERVER_LAUNCHER.format(python=sys.executable, library=library), encoding="utf-8")
    server.chmod(0o755)
