"""What `doctor` asks: each check gives one line, and where something is wrong, its cure."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torque_sched.adapters.commands import Commands
from torque_sched.adapters.home import check_folder, pid_in
from torque_sched.adapters.pbs import Look, Pbs
from torque_sched.adapters.state_file import lives
from torque_sched.core.snapshot import Snapshot
from torque_sched.daemon.c_policy import CFiles, SettingsInForce, read_c_files
from torque_sched.daemon.config import Config, read_config
from torque_sched.daemon.event_port import addresses_of
from torque_sched.daemon.place import Options, command_environment, server_host, this_user
from torque_sched.errors import TorqueSchedError

__all__ = ["Check", "Level", "examine"]

_NEEDED = ("pbsnodes", "qstat", "qrun", "qalter")
_USEFUL = ("qdel", "qmgr")
_LEARNS_AT_S = 60.0
_CLOCK_S = 30.0
_KEPT_BY_6_S = 300.0
"""``keep_completed`` of Torque 6 where it is not set; earlier ones forget jobs at once."""
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


def _ok(what: str, text: str) -> Check:
    return Check(Level.OK, what, text)


def _warning(what: str, text: str, cure: str) -> Check:
    return Check(Level.WARNING, what, text, cure)


def _wrong(what: str, text: str, cure: str) -> Check:
    return Check(Level.WRONG, what, text, cure)


def examine(options: Options) -> Iterator[Check]:
    """Every check, as far as the ones before let it be made."""
    config, c_files = Config(), CFiles()
    yield _folder(options)
    try:
        config = read_config(options.config)
        c_files = read_c_files(options.sched_priv, config)
        SettingsInForce(config, c_files)
        yield _ok("settings", str(options.config or "no file, all defaults"))
    except TorqueSchedError as error:
        yield _wrong("settings", error.message, error.cure or "see torque-sched check-config")
    for warning in c_files.warnings:
        yield _warning("sched_config", warning, "correct the line, or leave it: it has no effect")
    yield from _commands(config)
    yield _names(options)
    yield _port(options, config)
    yield from _cluster(options, config)
    yield _dialect(config)


def _folder(options: Options) -> Check:
    try:
        if not options.sched_priv.is_dir():
            return _wrong(
                "PBS home", f"{options.sched_priv} is no folder", "name the home with -d or PBS_HOME"
            )
        check_folder(options.sched_priv)
    except TorqueSchedError as error:
        return _wrong("PBS home", error.message, error.cure)
    if not os.access(options.sched_priv, os.W_OK):
        return _wrong(
            "PBS home", f"{options.sched_priv} is not writable for {this_user()}", "chown it to this user"
        )
    return _ok("PBS home", str(options.home))


def _commands(config: Config) -> Iterator[Check]:
    path = command_environment(config.commands).get("PATH")
    for name in (*_NEEDED, *_USEFUL):
        found = shutil.which(name, path=path)
        if found:
            yield _ok(name, found)
        elif name in _NEEDED:
            yield _wrong(name, "not on PATH", "install Torque's client commands, or set `commands`")
        else:
            yield _warning(name, "not on PATH", "only needed for deleting impossible jobs")


def _names(options: Options) -> Check:
    host = server_host(options.home)
    found = addresses_of(host)
    if not found:
        return _warning(
            "server name", f"{host} has no address", "add it to /etc/hosts or correct server_name"
        )
    return _ok("server name", f"{host} is {', '.join(found)}")


def _port(options: Options, config: Config) -> Check:
    port = config.port if options.port is None else options.port
    owner = pid_in(options.lock)
    for address in (*addresses_of(server_host(options.home)), "127.0.0.1"):
        if _is_taken(address, port):
            holder = f"process {owner}" if owner and lives(owner) else "some scheduler"
            return _ok("event port", f"{port} on {address} is held by {holder}")
    return _warning("event port", f"nobody listens on {port}", "start the scheduler")


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


def _cluster(options: Options, config: Config) -> Iterator[Check]:
    pbs = Pbs(
        Commands(command_environment(config.commands)), time.time, query_timeout_s=config.query_timeout_s
    )
    try:
        look = asyncio.run(pbs.look())
    except TorqueSchedError as error:
        yield _wrong("snapshot", error.message, error.cure.replace("USER@HOST", this_user()))
        return
    snapshot = look.snapshot
    yield _ok(
        "snapshot",
        f"{len(snapshot.nodes)} nodes, {len(snapshot.jobs)} jobs, {len(snapshot.queues)} queues in "
        f"{look.query_s:.2f} s",
    )
    for problem in look.problems[:5]:
        yield _warning("record", problem.message, problem.cure)
    for check in _SNAPSHOT_CHECKS:
        yield check(look)
    yield _rights(snapshot)


def _version(look: Look) -> Check:
    version = look.snapshot.server.version
    first = look.outputs["jobs"].lstrip()[:1]
    form = {b"<": ", jobs as XML", b"": ""}.get(first, ", jobs as text")  # none: it has no jobs to show
    if version.startswith(_TESTED):
        return _ok("version", f"Torque {version}{form}")
    return _warning(
        "version", f"{version or 'unknown'}; tried with {', '.join(_TESTED)}", "watch it for a day"
    )


def _scheduling(look: Look) -> Check:
    if look.snapshot.server.scheduling:
        return _ok("scheduling", "on")
    return _warning("scheduling", "off: nothing is started", "qmgr -c 'set server scheduling = True'")


def _keep_completed(look: Look) -> Check:
    server = look.snapshot.server
    unset_s = _KEPT_BY_6_S if server.version.startswith("6.") else 0.0
    of_server_s = unset_s if server.keep_completed_s is None else server.keep_completed_s
    kept = [queue.keep_completed_s for queue in look.snapshot.queues]
    shortest = min([of_server_s, *(each for each in kept if each is not None)])
    if shortest >= _LEARNS_AT_S:
        return _ok("keep_completed", f"{shortest:.0f} s")
    return _warning(
        "keep_completed", f"{shortest:.0f} s: jobs that end are gone before they are learned from",
        "qmgr -c 'set server keep_completed = 300' (or let us read the accounting)",
    )  # fmt: skip


def _clock(look: Look) -> Check:
    seen = [node.status.rectime_s for node in look.snapshot.nodes if node.status and node.status.rectime_s]
    if not seen:
        return _warning("clock", "no node has reported yet", "are the moms running?")
    ahead_s = max(seen) - look.snapshot.now_s
    if ahead_s > _CLOCK_S:
        return _wrong(
            "clock", f"the server's is {ahead_s:.0f} s ahead of this host's", "run chrony or ntpd on both"
        )
    return _ok("clock", f"newest report {-ahead_s:.0f} s old")


def _nodes(look: Look) -> Check:
    up = [node for node in look.snapshot.nodes if node.is_up]
    if not up:
        return _wrong("nodes", "none is up", "see pbsnodes -l")
    if len(up) < len(look.snapshot.nodes):
        down = [node.name for node in look.snapshot.nodes if not node.is_up]
        return _warning("nodes", f"{len(down)} not usable ({', '.join(down[:5])} ...)", "see pbsnodes -ln")
    return _ok("nodes", f"all {len(up)} up")


def _gpus(look: Look) -> Check:
    with_gpus = [node for node in look.snapshot.nodes if node.gpus]
    silent = [node.name for node in with_gpus if node.gpu_report is None and not _varattr(node)]
    if not silent:
        return _ok("GPUs", f"{sum(node.gpus for node in with_gpus)} on {len(with_gpus)} nodes")
    return _warning(
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
        return _warning(
            "jobs seen", f"{len(look.snapshot.jobs)} of the {counted} the server counts",
            "make this user an operator, or set server query_other_jobs = True",
        )  # fmt: skip
    return _ok("jobs seen", "all the server counts")


_SNAPSHOT_CHECKS: tuple[Callable[[Look], Check], ...] = (
    _version, _scheduling, _hidden, _keep_completed, _clock, _nodes, _gpus,
)  # fmt: skip


def _rights(snapshot: Snapshot) -> Check:
    server = snapshot.server
    me, _, host = this_user().partition("@")
    names = {f"{me}@{each}" for each in (host, host.split(".")[0], server.name)} | {f"{me}@*"}
    listed = (*server.managers, *server.operators)
    if any(each in names or (each.startswith(f"{me}@*") and each != f"{me}@") for each in listed):
        return _ok("rights", f"{me} is a manager or operator")
    # Naming somebody in one of the lists takes root's place in that list only.
    free = [
        word for word, named in (("managers", server.managers), ("operators", server.operators)) if not named
    ]
    if free and os.geteuid() == 0:
        return _ok("rights", f"root, and the server names no {free[0]}: root@server is one")
    return _warning(
        "rights", f"{this_user()} is named neither as manager nor as operator",
        f"qmgr -c 'set server operators += {this_user()}'",
    )  # fmt: skip


def _dialect(config: Config) -> Check:
    never = "OpenPBS's parser and command lines were never run against a real one"
    if _is_openpbs(config):
        return _wrong("dialect", never, "with OpenPBS or PBS Professional stay with their own scheduler")
    return _ok("dialect", f"Torque's commands ({never})")


def _is_openpbs(config: Config) -> bool:
    """OpenPBS answers ``pbsnodes --version`` with its own version; Torque has no such answer."""
    try:
        commands = Commands(command_environment(config.commands))
        done = asyncio.run(commands.run(("qstat", "--version"), 5.0))
    except TorqueSchedError:
        return False
    return b"pbs_version" in done.stdout + done.stderr or b"OpenPBS" in done.stdout + done.stderr
