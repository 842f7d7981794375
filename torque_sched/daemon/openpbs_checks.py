"""What `doctor` asks of OpenPBS besides: who else schedules, what is remembered, hooks, and JSON's trap."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from torque_sched.adapters.commands import Commands, Completed
from torque_sched.adapters.home import holder_of
from torque_sched.batch.connect import command_environment
from torque_sched.batch.openpbs import hook
from torque_sched.batch.openpbs.loads import read_files, samples_of
from torque_sched.batch.openpbs.parse.text import read_blocks
from torque_sched.daemon.checks import Check, is_openpbs, ok, warning, wrong
from torque_sched.daemon.config import Config, read_config
from torque_sched.daemon.paths import Options
from torque_sched.errors import TorqueSchedError

_TESTED = "23.06"
_PYTHON_OF_HOOKS = (3, 9)
"""The newest Python that hooks of 23.06.06 run with, unless its two later commits are in."""
_QUERY_S, _SUBMIT_S = 20.0, 60.0
_LIBPYTHON = re.compile(rb"libpython(\d)\.(\d+)")
_PROC = Path("/proc")
_REJECTED = "rejected as filter hook"
_NOT_FOR_YOU = b"unauthorized to access hooks data"
_Ask = Callable[..., Completed]


def _asker(config: Config) -> _Ask:
    """Runs one of the batch system's commands."""
    commands = Commands(command_environment(config.commands))

    def ask(*argv: str, limit_s: float = _QUERY_S) -> Completed:
        return asyncio.run(commands.run(argv, limit_s))

    return ask


def openpbs_checks(options: Options, *, submits: bool) -> Iterator[Check]:
    """A line for each; none where it is no OpenPBS, and what cannot be asked is said.

    Args:
        options: where we run.
        submits: submit a held job and delete it again: the one proof that hooks let jobs in.
    """
    config = Config()
    with suppress(TorqueSchedError):
        config = read_config(options.config)
    if not is_openpbs(config):
        return
    ask = _asker(config)
    try:
        server = _attributes(ask("qstat", "-B", "-f", "-w"))
        scheds = _text(ask("qmgr", "-c", "list sched"))
        hooks = ask("qmgr", "-c", "list hook")
        yield _version(server.get("pbs_version", ""))
        yield _history(server)
        yield from native_schedulers(scheds, _processes(holder_of(options.lock)))
        yield _wake(hooks)
        yield _loads(ask("pbsnodes", "-av"), config)
        yield _json(ask("qstat", "-f", "-F", "json"))
        yield _submission(ask) if submits else _python_of_hooks(server.get("pbs_version", ""), config)
    except TorqueSchedError as error:
        yield wrong("OpenPBS", error.message, error.cure or "is the server up, and are its commands on PATH?")


def _text(done: Completed) -> str:
    return done.stdout.decode("utf-8", "replace")


def _attributes(done: Completed) -> dict[str, str]:
    """``name = value`` lines."""
    pairs = (line.strip().partition(" = ") for line in _text(done).splitlines())
    return {name: value.strip() for name, sign, value in pairs if sign}


def _version(version: str) -> Check:
    if version.startswith(_TESTED):
        return ok("version", f"OpenPBS {version}, asked as text")
    return warning("version", f"{version or 'unknown'}; tried with {_TESTED}", "watch it for a day")


def _history(server: dict[str, str]) -> Check:
    if server.get("job_history_enable") == "True":
        return ok("history", f"kept for {server.get('job_history_duration', '336:00:00')}")
    return warning(
        "history", "job_history_enable is off: how jobs ended is not seen, so nothing is learned from them",
        "qmgr -c 'set server job_history_enable = True'",
    )  # fmt: skip


def _processes(own: int | None) -> list[int]:
    """Processes on this host that are named pbs_sched and are not our daemon."""
    found = []
    for path in _PROC.glob("[0-9]*/comm"):
        with suppress(OSError, ValueError):
            pid = int(path.parent.name)
            if path.read_text(encoding="utf-8").startswith("pbs_sched") and pid != own:
                found.append(pid)
    return found


def native_schedulers(text: str, pids: list[int]) -> Iterator[Check]:
    """Whether OpenPBS's own scheduler would start jobs behind our back.

    Args:
        text: of ``qmgr -c 'list sched'``.
        pids: processes named pbs_sched on this host. ``state = idle`` stands there even without one.
    """
    blocks = [block for block in text.split("\n\n") if block.strip().startswith("Sched ")]
    if not blocks:
        yield warning(
            "native scheduler", "qmgr shows none to this user", "see qmgr -c 'list sched' as an operator"
        )
    for block in blocks:
        name = block.split()[1]
        known = dict(line.strip().partition(" = ")[::2] for line in block.splitlines()[1:])
        partition = known.get("partition", "pbs-default")
        if known.get("scheduling") != "True":
            yield ok("native scheduler", f"{name}: off (scheduling = False)")
        elif partition != "pbs-default":
            yield ok("native scheduler", f"{name}: has partition {partition} alone, which we leave to it")
        elif known.get("state") == "scheduling" or pids:
            who = f"process {pids[0]}" if pids else "it schedules just now"
            yield wrong(
                "native scheduler", f"{name}: on for all but other partitions ({who}): two would start jobs",
                "stop it and set PBS_START_SCHED=0 in pbs.conf, or give it a partition",
            )  # fmt: skip
        else:
            yield ok("native scheduler", f"{name}: no pbs_sched runs on this host")


def _wake(done: Completed) -> Check:
    """Whether our hook is there, enabled and for its events."""
    text = _text(done)
    if done.exit_code and _NOT_FOR_YOU in done.stderr + done.stdout:
        return warning(
            "hook", "not known: OpenPBS shows hooks to root on the server's host alone",
            f"as root there: qmgr -c 'list hook {hook.NAME}'",
        )  # fmt: skip
    head = f"Hook {hook.NAME}\n"
    block = next((each for each in text.split("\n\n") if each.lstrip().startswith(head)), "")
    if not block:
        return warning(
            "hook", "the server does not tell us of events; the timer alone starts cycles",
            "as root on the server's host: torque-sched install --openpbs --apply",
        )  # fmt: skip
    missing = [event for event in hook.EVENTS if event not in block]
    if "enabled = true" not in block or missing:
        return warning(
            "hook", f"{hook.NAME} is disabled or lacks events {', '.join(missing)}", "apply it anew"
        )
    return ok("hook", f"{hook.NAME} knocks at {', '.join(hook.EVENTS)}")


def _loads(done: Completed, config: Config) -> Check:
    """By which way the loads of nodes come."""
    blocks = read_blocks(done.stdout, "Vnode", "pbsnodes")
    files = read_files(Path(config.loads_folder), time.time()) if config.loads_folder else b""
    by_hook, all_of_them = samples_of(blocks, b""), samples_of(blocks, files)
    if all_of_them:
        n_by_file = len(all_of_them.keys() - by_hook.keys())
        return ok("loads", f"of {len(by_hook)} nodes by the hook on their MoM, of {n_by_file} by files")
    return warning(
        "loads", "none: jobs are placed by what they ask for alone",
        "run the sampler on each node with loads_folder, or the hook of torque-sched install --loads FILE",
    )  # fmt: skip


def _json(done: Completed) -> Check:
    """Any user's job can make JSON of it invalid: we read text, other programs of the site may not."""
    try:
        json.loads(done.stdout)
    except ValueError as error:
        why = f"qstat -F json is no JSON now ({error}): some job's variable or name breaks it"
        return warning("JSON", why, "torque-sched reads text; have no other program read it")
    return ok("JSON", "valid now, and not read: a job's variable (A=nan) can break it")


def _python_of_hooks(version: str, config: Config) -> Check:
    """The Python that pbs_server here was linked with."""
    qstat = shutil.which("qstat", path=command_environment(config.commands).get("PATH"))
    sbin = Path(qstat).resolve().parent.parent / "sbin" if qstat else Path("/opt/pbs/sbin")
    for name in ("pbs_server.bin", "pbs_server"):
        with suppress(OSError):
            match = _LIBPYTHON.search((sbin / name).read_bytes())
            if match is None:
                continue
            python = (int(match[1]), int(match[2]))
            text = f"pbs_server runs hooks with Python {python[0]}.{python[1]}"
            if python <= _PYTHON_OF_HOOKS or not version.startswith("23.06.06"):
                return ok("Python of hooks", text)
            return warning(
                "Python of hooks", f"{text}: without two later commits all fail in 23.06.06, and then every "
                "qsub is refused", "torque-sched doctor --submit tells; disable hooks, or build anew",
            )  # fmt: skip
    return ok("Python of hooks", "not known from this host; torque-sched doctor --submit tries a job")


def _submission(ask: _Ask) -> Check:
    """Submit a held job and delete it: hooks that fail refuse every qsub."""
    done = ask("qsub", "-h", "-N", "torque-sched-doctor", "--", "/bin/true", limit_s=_SUBMIT_S)
    words = done.last_line()
    if done.exit_code == 0:
        job = _text(done).strip()
        ask("qdel", job, limit_s=_SUBMIT_S)
        return ok("submission", f"{job} was taken, and deleted again")
    if _REJECTED in words:
        return wrong(
            "submission", f"a hook refuses every qsub: {words}",
            "qmgr -c 'set hook NAME enabled = false'; hooks of 23.06.06 fail with Python 3.10 and newer",
        )  # fmt: skip
    return warning("submission", f"refused for this user: {words}", "try it as an ordinary user")
