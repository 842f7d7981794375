"""What `doctor` asks: each check gives one line, and where something is wrong, its cure."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from torque_sched.adapters.home import check_folder, holder_of
from torque_sched.batch.connect import (
    command_environment,
    look_once,
    server_by_commands,
    server_by_protocol,
    server_host,
)
from torque_sched.batch.system import Look
from torque_sched.batch.torque.agreement import Differences, in_words
from torque_sched.batch.torque.event_port import addresses_of
from torque_sched.batch.torque.transport import disagreement
from torque_sched.daemon.c_policy import CFiles, SettingsInForce, read_c_files
from torque_sched.daemon.config import Config, read_config
from torque_sched.daemon.paths import Options, this_user
from torque_sched.errors import SnapshotError, TorqueSchedError
from torque_sched.model.cluster import Server
from torque_sched.model.snapshot import Snapshot
from torque_sched.model.states import NodeState

_NEEDED = ("pbsnodes", "qstat", "qrun", "qalter")
_USEFUL = ("qdel", "qmgr")
_LEARNS_AT_S = 60.0
_KEPT_BY_6_S = 300.0
"""``keep_completed`` of Torque 6 where it is not set; earlier ones forget jobs at once."""
_REPORTS_S = 60.0
"""A mom that is well has reported since."""
_TESTED = ("6.1", "4.2")


class Level:
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    WRONG = "WRONG"


@dataclass(frozen=True, slots=True)
class Check:
    """One line."""

    level: str
    what: str
    text: str
    cure: str = ""

    @property
    def line(self) -> str:
        """As it is printed."""
        return f"{self.level:7} {self.what}: {self.text}" + (f"; cure: {self.cure}" if self.cure else "")


def ok(what: str, text: str) -> Check:
    """What is well."""
    return Check(Level.OK, what, text)


def warning(what: str, text: str, cure: str) -> Check:
    """What works, but not as it could."""
    return Check(Level.WARNING, what, text, cure)


def wrong(what: str, text: str, cure: str) -> Check:
    """What keeps us from scheduling."""
    return Check(Level.WRONG, what, text, cure)


def examine(options: Options, note: Callable[[str], None]) -> Iterator[Check]:
    """Every check, as far as the ones before let it be made; ``note`` is called when a command takes long."""
    config, c_files = Config(), CFiles()
    yield _folder(options)
    try:
        config = read_config(options.config)
        c_files = read_c_files(options.sched_priv, config)
        SettingsInForce(config, c_files)
        yield ok("settings", str(options.config or "no file, all defaults"))
    except TorqueSchedError as error:
        yield wrong("settings", error.message, error.cure or "see torque-sched check-config")
    for text in c_files.warnings:
        yield warning("sched_config", text, "correct the line, or leave it: it has no effect")
    yield _space(options, config)
    yield from _commands(config)
    yield _names(options)
    yield _port(options, config)
    openpbs = is_openpbs(config)
    yield from _cluster(options, config, note, _OPENPBS_CHECKS if openpbs else _SNAPSHOT_CHECKS)
    if not openpbs:
        yield transport_check(options, config)


def _folder(options: Options) -> Check:
    try:
        if not options.sched_priv.is_dir():
            return wrong(
                "PBS home", f"{options.sched_priv} is no folder", "name the home with -d or PBS_HOME"
            )
        check_folder(options.sched_priv)
    except TorqueSchedError as error:
        return wrong("PBS home", error.message, error.cure)
    if not os.access(options.sched_priv, os.W_OK):
        return wrong(
            "PBS home", f"{options.sched_priv} is not writable for {this_user()}", "chown it to this user"
        )
    return ok("PBS home", str(options.home))


def _space(options: Options, config: Config) -> Check:
    """The journal grows to a bound; a full disk stops learning, and hinders the next start."""
    journal = config.journal
    folder = Path(journal.folder) if journal.folder else options.sched_priv
    wanted = journal.file_bytes * journal.n_files if journal.enabled else journal.file_bytes
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return warning("space", f"{folder} cannot be looked at", "name the PBS home with -d")
    text = f"{free >> 20} MiB free for {folder}"
    if free >= wanted:
        return ok("space", text)
    return warning(
        "space",
        f"{text}, the journal may take {wanted >> 20}",
        "free some disk space, or lower journal.n_files",
    )


def _commands(config: Config) -> Iterator[Check]:
    path = command_environment(config.commands).get("PATH")
    if config.commands and not Path(config.commands).is_dir():
        yield warning("commands", f"{config.commands} is no folder", "correct `commands`; PATH serves now")
    for name in (*_NEEDED, *_USEFUL):
        found = shutil.which(name, path=path)
        if found:
            yield ok(name, found)
        elif name in _NEEDED:
            yield wrong(name, "not on PATH", "install Torque's client commands, or set `commands`")
        else:
            yield warning(name, "not on PATH", "only needed for deleting impossible jobs")


def _names(options: Options) -> Check:
    host = server_host(options.home)
    found = addresses_of(host)
    if not found:
        return warning("server name", f"{host} has no address", "add it to /etc/hosts or correct server_name")
    return ok("server name", f"{host} is {', '.join(found)}")


def _port(options: Options, config: Config) -> Check:
    port = config.port if options.port is None else options.port
    owner = holder_of(options.lock)
    for address in (*addresses_of(server_host(options.home)), "127.0.0.1"):
        if _is_taken(address, port):
            holder = f"process {owner}" if owner else "some scheduler"
            return ok("event port", f"{port} on {address} is held by {holder}")
    return warning("event port", f"nobody listens on {port}", "start the scheduler")


def _is_taken(address: str, port: int) -> bool:
    """Whether somebody listens there; without knocking, which a scheduler writes into its log."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Without this, connections that ended lately would look like a listener.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def _cluster(
    options: Options,
    config: Config,
    note: Callable[[str], None],
    checks: tuple[Callable[[Look], Check], ...],
) -> Iterator[Check]:
    try:
        look = look_once(config.server(options.home), note)
    except TorqueSchedError as error:
        yield wrong("snapshot", error.message, error.cure.replace("USER@HOST", this_user()))
        return
    snapshot = look.snapshot
    yield ok(
        "snapshot",
        f"{len(snapshot.nodes)} nodes, {len(snapshot.jobs)} jobs, {len(snapshot.queues)} queues in "
        f"{look.query_s:.2f} s",
    )
    for problem in look.problems[:5]:
        yield warning("record", problem.message, problem.cure)
    for check in checks:
        yield check(look)
    yield from avoided_nodes(snapshot)
    yield from _unknown_nodes(options.home / "server_priv" / "nodes", look)
    hosts = (snapshot.server.name, server_host(options.home))
    is_root_there = os.geteuid() == 0 and any(_is_here(each) for each in hosts)
    yield rights(snapshot.server, this_user(), is_root_there=is_root_there)


def transport_check(options: Options, config: Config) -> Check:
    """Whether Torque's own protocol would be used, by the comparison the daemon makes at its start."""
    if config.transport == "commands":
        return ok("transport", "commands, as the settings say")
    try:
        found = asyncio.run(_compared(options, config))
    except SnapshotError as error:
        return warning("transport", f"not compared: {error.message}", error.cure)
    except TorqueSchedError as error:
        return _without_protocol(config, error.message, error.cure)
    if found:
        what = in_words(found, with_values=True)
        cure = "if qmgr and qstat -f by hand show the protocol's value, set transport: native; report it"
        return _without_protocol(config, f"its look differs from the commands': {what}", cure)
    return ok("transport", "the batch protocol; its look agrees with the commands'")


async def _compared(options: Options, config: Config) -> Differences:
    server = config.server(options.home)
    by_commands = server_by_commands(server, server.new_commands(), time.time)
    native = server_by_protocol(server, by_commands, time.time)
    try:
        return (await disagreement(native, by_commands))[0]
    finally:
        await native.close()


def _without_protocol(config: Config, why: str, cure: str) -> Check:
    if config.transport == "native":
        return wrong("transport", f"not by the batch protocol: {why}", cure)
    return warning("transport", f"commands: {why}", f"it works, only slower; {cure}")


def _version(look: Look) -> Check:
    version = look.snapshot.server.version
    first = look.outputs["jobs"].lstrip()[:1]
    form = {b"<": ", jobs as XML", b"": ""}.get(first, ", jobs as text")  # none: it has no jobs to show
    if version.startswith(_TESTED):
        return ok("version", f"Torque {version}{form}")
    return warning(
        "version", f"{version or 'unknown'}; tried with {', '.join(_TESTED)}", "watch it for a day"
    )


def _scheduling(look: Look) -> Check:
    if look.snapshot.server.scheduling:
        return ok("scheduling", "on")
    return warning("scheduling", "off: nothing is started", "qmgr -c 'set server scheduling = True'")


def _keep_completed(look: Look) -> Check:
    server = look.snapshot.server
    unset_s = _KEPT_BY_6_S if server.version.startswith("6.") else 0.0
    of_server_s = unset_s if server.keep_completed_s is None else server.keep_completed_s
    kept = [queue.keep_completed_s for queue in look.snapshot.queues]
    shortest = min([of_server_s, *(each for each in kept if each is not None)])
    if shortest >= _LEARNS_AT_S:
        return ok("keep_completed", f"{shortest:.0f} s")
    return warning(
        "keep_completed", f"{shortest:.0f} s: jobs that end are gone before they are learned from",
        "qmgr -c 'set server keep_completed = 300' (or let us read the accounting)",
    )  # fmt: skip


def _clock(look: Look) -> Check:
    seen = [node.status.rectime_s for node in look.snapshot.nodes if node.status and node.status.rectime_s]
    if not seen:
        return warning("clock", "no node has reported yet", "are the moms running?")
    if look.clock_text:
        return warning("clock", look.clock_text, "run chrony or ntpd on both")
    return ok("clock", f"newest report {look.snapshot.now_s - max(seen):.0f} s old")


def _nodes(look: Look) -> Check:
    up = [node for node in look.snapshot.nodes if node.is_up]
    if not up:
        return wrong("nodes", "none is up", "see pbsnodes -l")
    if len(up) < len(look.snapshot.nodes):
        down = [node.name for node in look.snapshot.nodes if not node.is_up]
        return warning("nodes", f"{len(down)} not usable ({', '.join(down[:5])} ...)", "see pbsnodes -ln")
    return ok("nodes", f"all {len(up)} up")


def avoided_nodes(snapshot: Snapshot) -> Iterator[Check]:
    """Nodes that 6.x leaves alone for 300 s after three failed calls though their moms report: 6.1.3 does."""
    for node in snapshot.nodes if snapshot.server.version.startswith("6.") else ():
        at_s = node.status.rectime_s if node.status else None
        age_s = snapshot.now_s - at_s if at_s else math.inf
        if node.states != {NodeState.DOWN} or age_s > _REPORTS_S:
            continue
        yield warning(
            "nodes", f"{node.name} is down for the server, though its mom reported {age_s:.0f} s ago: after "
            "three failed calls the server leaves a node alone for 300 s",
            f"is its mom up? then qmgr -c 'set node {node.name} state = free'",
        )  # fmt: skip


def _unknown_nodes(path: Path, look: Look) -> Iterator[Check]:
    """Nodes of the server's file, where it may be read, that the server left out."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    named = [line.split()[0] for line in lines if line.strip() and not line.lstrip().startswith("#")]
    known = {str(node.name) for node in look.snapshot.nodes}
    missing = [name for name in named if name not in known and "[" not in name]
    if missing:
        yield warning(
            "nodes file", f"the server does not have {', '.join(missing[:5])}, which {path} names",
            "has each name an address (DNS, /etc/hosts)? then restart pbs_server",
        )  # fmt: skip


def _gpus(look: Look) -> Check:
    with_gpus = [node for node in look.snapshot.nodes if node.gpus]
    silent = [node.name for node in with_gpus if node.gpu_report is None and not _varattr(node)]
    if not silent:
        return ok("GPUs", f"{sum(node.gpus for node in with_gpus)} on {len(with_gpus)} nodes")
    return warning(
        "GPUs", f"{len(silent)} nodes with GPUs report no use of them ({', '.join(silent[:5])})",
        "install the sampler there, or a mom built with NVML",
    )  # fmt: skip


def _varattr(node: object) -> bool:
    status = getattr(node, "status", None)
    return bool(status is not None and status.varattr)


def _hidden(look: Look) -> Check:
    server = look.snapshot.server
    counted = sum(server.state_count.values())
    if len(look.snapshot.jobs) < counted:
        return warning(
            "jobs seen", f"{len(look.snapshot.jobs)} of the {counted} the server counts",
            "make this user an operator, or set server query_other_jobs = True",
        )  # fmt: skip
    return ok("jobs seen", "all the server counts")


_SNAPSHOT_CHECKS: tuple[Callable[[Look], Check], ...] = (
    _version, _scheduling, _hidden, _keep_completed, _clock, _nodes, _gpus,
)  # fmt: skip
_OPENPBS_CHECKS: tuple[Callable[[Look], Check], ...] = (_scheduling, _hidden, _nodes)


def rights(server: Server, user: str, *, is_root_there: bool) -> Check:
    """Whether ``USER@HOST`` may start jobs and write comments.

    Args:
        server: as it is now.
        user: who.
        is_root_there: root on the server's own host, whom real servers let do everything.
    """
    me, _, host = user.partition("@")
    if is_root_there:
        return ok("rights", "root on the server's host is a manager, whoever else is named")
    names = {f"{me}@{each}" for each in (host, host.split(".")[0], server.name)} | {f"{me}@*"}
    listed = (*server.managers, *server.operators)
    if any(each in names or (each.startswith(f"{me}@*") and each != f"{me}@") for each in listed):
        return ok("rights", f"{me} is a manager or operator")
    return warning(
        "rights", f"{user} is named neither as manager nor as operator",
        f"qmgr -c 'set server operators += {user}'",
    )  # fmt: skip


def _is_here(host: str) -> bool:
    """Whether one of its addresses is this host's."""
    for address in addresses_of(host):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe, suppress(OSError):
            probe.bind((address, 0))
            return True
    return False


def is_openpbs(config: Config) -> bool:
    """Whether OpenPBS's commands are on PATH, or the settings say so."""
    return config.server(Path()).dialect() == "openpbs"
