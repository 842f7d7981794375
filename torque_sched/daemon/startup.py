"""From options to a running daemon, or to one cycle without it: checks, settings, sockets, lock, history."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torque_sched.adapters.commands import Commands
from torque_sched.adapters.home import LockFile, check_folder
from torque_sched.adapters.journal import Journal
from torque_sched.adapters.log_file import Event, LogFile, LogHandler, dialect_of
from torque_sched.adapters.metrics import Figures, serve_figures
from torque_sched.adapters.state_file import read_plain
from torque_sched.batch.cluster_clock import ClusterClock
from torque_sched.batch.connect import new_server, server_by_commands, server_host
from torque_sched.batch.cycle_lock import CycleLock
from torque_sched.batch.system import BatchSystem
from torque_sched.batch.torque.event_port import (
    Callers,
    EventPort,
    SchedCommand,
    addresses_of,
    bind_all,
    parse_callers,
)
from torque_sched.batch.torque.parse.sched_config import parse_usage
from torque_sched.batch.torque.pbs import START_COMMAND
from torque_sched.daemon.answers import LastLook, Teller, open_port
from torque_sched.daemon.c_policy import CFiles, SettingsInForce, half_life_s, read_c_files
from torque_sched.daemon.comments import CommentPlan
from torque_sched.daemon.config import Config, read_config
from torque_sched.daemon.cycle import CycleReport, SchedulingCycle
from torque_sched.daemon.decision_engine import DecisionEngine
from torque_sched.daemon.paths import Options, this_user
from torque_sched.daemon.pending_orders import PendingOrders
from torque_sched.daemon.records import Records
from torque_sched.daemon.service import Ending, Pace, Service
from torque_sched.daemon.shadow import Shadow
from torque_sched.decide.context import Context, PendingStart
from torque_sched.decide.decide import decide
from torque_sched.decide.rules import Rates
from torque_sched.errors import ConfigError, NoSpaceError, RecordError, StartupError
from torque_sched.learn import History, HistorySettings
from torque_sched.model.decisions import Decision, Start
from torque_sched.model.snapshot import Snapshot

logger = logging.getLogger(__name__)


@dataclass
class Prepared:
    """Everything that can fail, done; what is left is to run."""

    options: Options
    config: Config
    c_files: CFiles
    in_force: SettingsInForce
    callers: Callers
    listeners: list[socket.socket]
    log: LogFile
    started_in: str = ""


def read_callers(options: Options, config: Config) -> Callers:
    """The hosts that may knock: the ``-c`` file and our own settings.

    Raises:
        ConfigError: the file is unreadable or has a line nobody knows.
    """
    callers = Callers()
    if options.callers_file is not None:
        try:
            text = options.callers_file.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise ConfigError(f"{options.callers_file}: {error.strerror}") from error
        callers = parse_callers(text, str(options.callers_file))
    return Callers(callers.client_hosts, (*callers.restricted, *config.restricted))


def prepare(options: Options) -> Prepared:
    """Check and open everything; nothing is left open when it fails.

    Raises:
        StartupError: folder, log or port; ConfigError: settings.
    """
    if not options.sched_priv.is_dir():
        raise StartupError(
            f"{options.sched_priv} is no folder",
            cure="name the PBS home with -d or PBS_HOME, and make it there",
        )
    check_folder(options.sched_priv)
    try:
        options.own.mkdir(mode=0o755, exist_ok=True)
    except OSError as error:
        raise StartupError(f"{options.own}: {error.strerror}", cure="give this user the folder") from error
    config = read_config(options.config)
    c_files = read_c_files(options.sched_priv, config)
    in_force = SettingsInForce(config, c_files)
    callers = read_callers(options, config)
    log = LogFile(
        options.logs,
        options.log_file,
        dialect=_dialect(options, config),
        filter_mask=c_files.sched.log_filter if c_files.sched else 256,
    )
    try:
        listeners = bind_all(_addresses(options, config), _port(options, config))
    except StartupError as error:
        log.record(Event.ERROR, "Svr", "pbs_sched", f"LOG_ERROR::{error.message} in main, bind")
        log.record(Event.SYSTEM, "Svr", "die", "abnormal termination")
        log.close()
        raise
    return Prepared(options, config, c_files, in_force, callers, listeners, log, _here())


def _here() -> str:
    """The folder we are in; empty where it is gone."""
    try:
        return os.getcwd()  # noqa: PTH109 -- as text
    except OSError:
        return ""


def _dialect(options: Options, config: Config) -> int:
    """Until the server's version is known, as the scheduler before wrote."""
    if config.log_dialect == "auto":
        return dialect_of(options.logs, options.log_file)
    return 4 if config.log_dialect == "4" else 6


def _port(options: Options, config: Config) -> int:
    if options.port is not None:
        return options.port
    return config.shadow_port if options.shadow else config.port


def _addresses(options: Options, config: Config) -> tuple[str, ...]:
    """Where to listen: the addresses of the server's host name that are ours, and localhost."""
    if config.addresses:
        return config.addresses
    found = {
        each: None
        for host in (server_host(options.home), socket.gethostname())
        for each in addresses_of(host)
    }
    return (*(each for each in found if _is_ours(each)), *(() if "127.0.0.1" in found else ("127.0.0.1",)))


def _is_ours(address: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def open_history(options: Options, config: Config, c_files: CFiles, *, in_memory: bool = False) -> History:
    """The learning store as the settings say; ``in_memory`` reads its file and writes none.

    Raises:
        StartupError: its file cannot be used.
    """
    settings, rates = _history_settings(config, c_files)
    path = Path(config.learning.history) if config.learning.history else options.history
    if in_memory and path.exists():
        return History.copy_of(path, settings, rates)
    accounting = None if in_memory else accounting_folder(options, config)
    try:
        return History.open(None if in_memory else path, settings, rates, accounting)
    except NoSpaceError as error:
        # Jobs are to start all the same.
        logger.error("%s; what is learned is forgotten with this process", error)
        return History.open(None, settings, rates, accounting, lasting_trouble=error.message)


def _history_settings(config: Config, c_files: CFiles) -> tuple[HistorySettings, dict[str, Rates]]:
    """How much is learned, and the speeds of nodes."""
    learning, nodes = config.learning, config.rules()[0]
    settings = HistorySettings(
        sample_lag_s=nodes.sample_lag_s,
        half_life_s=half_life_s(config, c_files),
        gpu_weight=config.fair_share.gpu_weight,
        predictors=learning.predictors,
        max_jobs=learning.max_jobs,
        min_similar=learning.min_similar,
    )
    return settings, dict(nodes.rates)


def accounting_folder(options: Options, config: Config) -> Path | None:
    """The server's accounting, where it is to be read and can be."""
    folder = options.home / "server_priv" / "accounting"
    return folder if config.learning.accounting and os.access(folder, os.R_OK | os.X_OK) else None


USAGE = "usage"
"""pbs_sched's own store of fair-share usage, in ``sched_priv``."""


def without_effect(options: Options) -> list[str]:
    """Options that were given and do nothing, a sentence each."""
    if options.mom_port is None:
        return []
    return [f"-R {options.mom_port} has no effect: moms are not asked, their reports to the server are read"]


def take_over_usage(history: History, options: Options) -> str:
    """Count the fair-share usage that pbs_sched kept, as of its last writing.

    It is read at each start and never written, so going back to pbs_sched finds it as it was. Jobs that ended
    since are in the history by themselves.

    Returns:
        What was done or why not, for the log; empty without such a file.
    """
    path = options.sched_priv / USAGE
    try:
        data, at_s = read_plain(path), path.stat().st_mtime
        usage = parse_usage(data, str(path))
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{path}: {error.strerror}; fair share begins without it"
    except RecordError as error:
        return f"{error}; fair share begins without it"
    if not usage:
        return ""
    if history.take_over_usage(usage, at_s):
        return f"fair-share usage of {len(usage)} users and groups was taken over from {path}"
    return f"{path} is not read: the accounting tells the same jobs"


AT_ONCE = frozenset(
    {
        "accounts", "back_off", "backfill", "black_holes", "comment_moved", "comment_refresh_s",
        "comments_renewed_per_s", "delete_impossible", "fair_share", "gpus", "limits", "look_rest",
        "max_starts", "memory", "nodes", "offline_black_holes", "order", "pbs_sched_reasons_only",
        "placement", "qos", "queues", "reservations", "restricted", "retry_s", "settle_s",
        "standing_reservations", "throttling", "timer_s", "watch_s",
    }
)  # fmt: skip
"""Keys in force from the next cycle on; the others belong to what is open or remembered."""


def changes_of(old: Config, new: Config) -> tuple[str, ...]:
    """Keys whose values differ, in their order."""
    return tuple(key for key in Config.model_fields if getattr(old, key) != getattr(new, key))


def taken_at_once(old: Config, new: Config) -> Config:
    """The old settings with those of the new ones that a running daemon can take."""
    return old.model_copy(update={key: getattr(new, key) for key in changes_of(old, new) if key in AT_ONCE})


def without_root(options: Options) -> list[str]:
    """What this user cannot do, a sentence each; none for root."""
    if os.geteuid() == 0:
        return []
    lines = [
        f"not root: this user must be a Torque operator (qmgr -c 'set server operators += {this_user()}'), "
        "else nothing can be started",
    ]
    if not os.access(options.home / "server_priv" / "accounting", os.R_OK | os.X_OK):
        lines.append(
            "not root: the server's accounting cannot be read; learning uses completed jobs in qstat"
        )
    if not os.access(options.home / "sched_logs", os.W_OK) and options.log_file is None:
        lines.append("not root: sched_logs is not writable; name a log with -L")
    return lines


def run(
    prepared: Prepared,
    ready: Callable[[], None] = lambda: None,
    new_teller: Callable[[], Teller] | None = None,
) -> int:
    """Take the lock and run until it is to stop; returns the exit code.

    Args:
        prepared: everything checked and open.
        ready: called when it is up.
        new_teller: gives what answers users' questions (`daemon.answers`); None: nobody does.

    Raises:
        StartupError: another scheduler has the lock, or the history or the metrics' port cannot be used.
    """
    options, log = prepared.options, prepared.log
    lock = LockFile(options.lock)
    try:
        lock.take()
    except StartupError as error:
        why = error.__cause__
        words = f"{why.strerror} ({why.errno}) in pbs_sched, " if isinstance(why, OSError) else ""
        log.record(Event.ERROR, "Svr", "pbs_sched", f"LOG_ERROR::{words}{error.message}")
        log.close()
        raise
    handler = LogHandler(log)
    root = logging.getLogger("torque_sched")
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        for text in (*prepared.c_files.warnings, *without_effect(options), *without_root(options)):
            logger.warning("%s", text)
        ending = asyncio.run(_serve(prepared, ready, new_teller))
        if not ending.exit_code:
            log.record(Event.SYSTEM, "Svr", "main", f"pbs_sched normal finish pid {os.getpid()}")
        return ending.exit_code
    finally:
        root.removeHandler(handler)
        log.close()
        lock.release()


async def _serve(
    prepared: Prepared, ready: Callable[[], None], new_teller: Callable[[], Teller] | None
) -> Ending:
    options, config = prepared.options, prepared.config
    history = open_history(options, config, prepared.c_files)
    taken_over = take_over_usage(history, options)
    if taken_over:
        logger.info("%s", taken_over)
    figures = Figures()
    stop_metrics: Callable[[], None] | None = None
    to_server, clock = config.server(options.home), ClusterClock()
    commands = to_server.new_commands()
    server = new_server(to_server, commands, clock)
    try:
        if config.metrics.port:
            stop_metrics = serve_figures(figures, config.metrics.address, config.metrics.port)
        service, records = _service(prepared, history, figures, commands, server, clock)
        if new_teller is not None and config.answers and not options.shadow:
            service.answers = open_port(options.home, new_teller, lambda: service.wake("asked"))

        def up() -> None:
            prepared.log.record(Event.SYSTEM, "Svr", "main", f"pbs_sched startup pid {os.getpid()}")
            ready()

        service.on_up = up
        ending = await service.run()
        await records.finish()
        return ending
    finally:
        if stop_metrics is not None:
            stop_metrics()
        await server.close()
        history.close()


def _engine(in_force: SettingsInForce, config: Config, c_files: CFiles, history: History) -> DecisionEngine:
    return DecisionEngine(
        in_force.at, history, reservations=config.reservations_at, dedicated=c_files.dedicated
    )


def _pace(prepared: Prepared) -> Pace:
    options, config = prepared.options, prepared.config
    return Pace(
        config.shadow_timer_s if options.shadow else config.timer_s,
        config.settle_s, config.retry_s, options.alarm_s, config.look_rest, config.watch_s,
    )  # fmt: skip


def _take_anew(prepared: Prepared, service: Service, engine: DecisionEngine, records: Records) -> None:
    """Read our settings again, and use those that a running daemon can take.

    Raises:
        ConfigError: they are wrong; the old ones stay in force.
    """
    wanted = read_config(prepared.options.config)
    config = taken_at_once(prepared.config, wanted)
    in_force = SettingsInForce(config, prepared.c_files)
    changed = changes_of(prepared.config, wanted)
    now = [key for key in changed if key in AT_ONCE]
    later = [key for key in changed if key not in AT_ONCE]
    prepared.config = records.config = config
    prepared.in_force = in_force
    engine.use(in_force.at, config.reservations_at)
    engine.history.use(*_history_settings(config, prepared.c_files))
    service.cycle.orders.use(config.back_off_rules(), config.black_hole_rules())
    service.cycle.use(
        config.cycle_limits(), config.renewal(),
        deletes_impossible=config.delete_impossible, offlines_black_holes=config.offline_black_holes,
    )  # fmt: skip
    service.pace = _pace(prepared)
    if now:
        logger.info("settings in force from now on: %s", ", ".join(now))
        service.wake("settings")
    if later:
        logger.warning("settings that count after a restart: %s", ", ".join(later))


def _cycle(
    options: Options,
    config: Config,
    history: History,
    engine: DecisionEngine,
    server: BatchSystem,
    clock: ClusterClock,
) -> SchedulingCycle:
    orders = PendingOrders(config.back_off_rules(), config.black_hole_rules())
    orders.restore(history.pauses, clock())
    return SchedulingCycle(
        server,
        engine,
        orders,
        CommentPlan(config.renewal()) if config.comments else None,
        config.cycle_limits(),
        clock,
        lock=CycleLock(options.cycle_lock, START_COMMAND, config.order_timeout_s),
        deletes_impossible=config.delete_impossible,
        offlines_black_holes=config.offline_black_holes,
    )


def _service(
    prepared: Prepared,
    history: History,
    figures: Figures,
    commands: Commands,
    server: BatchSystem,
    clock: ClusterClock,
) -> tuple[Service, Records]:
    options = prepared.options
    records = _records(prepared, history, figures)
    shadow = _shadow(prepared) if options.shadow else None
    engine = _engine(prepared.in_force, prepared.config, prepared.c_files, history)
    service = Service(
        _cycle(options, prepared.config, history, engine, server, clock), None, prepared.log, commands,
        _pace(prepared),
        dry=options.shadow,
        started_in=prepared.started_in,
    )  # fmt: skip

    def heard(command: SchedCommand) -> None:
        if command is SchedCommand.QUIT:
            service.quit()
        elif command is SchedCommand.CONFIGURE:
            service.begin_anew()
        elif command.asks_for_cycle:
            service.wake(command.name.lower())

    port = EventPort(prepared.listeners, prepared.callers, heard)
    service.port = port

    def reported(report: CycleReport, cause: str) -> None:
        _fit_dialect(prepared, report)
        figures.n_events = port.n_events
        records.cycle(report, cause)
        if service.answers is not None:
            service.answers.last = _last_look(prepared, history, report)
        if shadow is not None:
            shadow.cycle(report)

    def hung_up() -> None:
        _take_anew(prepared, service, engine, records)
        port.callers = read_callers(options, prepared.config)

    service.on_report, service.on_hang_up, service.on_failure = reported, hung_up, records.failure
    if shadow is not None:
        service.on_end = shadow.end
    return service, records


def _last_look(prepared: Prepared, history: History, report: CycleReport) -> LastLook:
    assert report.look is not None
    assert report.context is not None
    snapshot = report.look.snapshot
    started = tuple(
        PendingStart(each.job, each.allocation, report.started_s[each.job])
        for each in report.decisions
        if isinstance(each, Start) and each.job in report.started_s
    )
    return LastLook(
        snapshot, prepared.in_force.at(snapshot.now_s), report.context, history, started, prepared.config,
        _journal_folder(prepared), prepared.options.state, report.looked_monotonic_s[1],
    )  # fmt: skip


def _journal_folder(prepared: Prepared) -> Path:
    named = prepared.config.journal.folder
    return Path(named) if named else prepared.options.journal


def _shadow(prepared: Prepared) -> Shadow:
    def answers(snapshot: Snapshot, context: Context) -> tuple[Decision, ...]:
        return decide(snapshot, prepared.in_force.at(snapshot.now_s), context)

    return Shadow(prepared.options.own / "report.json", answers)


def _records(prepared: Prepared, history: History, figures: Figures) -> Records:
    options, config = prepared.options, prepared.config
    journal = None
    if config.journal.enabled:
        journal = Journal(
            _journal_folder(prepared), file_bytes=config.journal.file_bytes, n_files=config.journal.n_files
        )
    return Records(
        prepared.log, options.state, journal, figures, config, dict(prepared.c_files.texts),
        "shadow" if options.shadow else "serve", lambda: history.troubles,
        lambda: history.predictions().errors,
    )  # fmt: skip


def _fit_dialect(prepared: Prepared, report: CycleReport) -> None:
    """Lines as the server's own generation writes them."""
    if prepared.config.log_dialect == "auto" and report.look is not None:
        version = report.look.snapshot.server.version
        prepared.log.dialect = 4 if version[:2] in {"4.", "3.", "2."} else 6


async def run_once(options: Options, *, dry: bool, note: Callable[[str], None]) -> CycleReport:
    """Look, decide, and unless ``dry`` act; ``note`` is called with what the look waits for.

    A dry run writes no file at all; it decides by what the daemon has learned, promised and left alone.

    Raises:
        ConfigError: settings. StartupError: a scheduler runs already. SnapshotError: no look at the cluster.
    """
    config = read_config(options.config)
    c_files = read_c_files(options.sched_priv, config)
    lock = LockFile(options.lock)
    if not dry:
        check_folder(options.sched_priv)
        lock.take()
    try:
        return await _one_cycle(options, config, c_files, dry=dry, note=note)
    finally:
        lock.release()


async def _one_cycle(
    options: Options, config: Config, c_files: CFiles, *, dry: bool, note: Callable[[str], None]
) -> CycleReport:
    history = open_history(options, config, c_files, in_memory=dry)
    try:
        clock = ClusterClock()
        to_server = config.server(options.home)
        server = server_by_commands(to_server, to_server.new_commands(), clock, note)
        engine = _engine(SettingsInForce(config, c_files), config, c_files, history)
        cycle = _cycle(options, config, history, engine, server, clock)
        report = await cycle.run(dry=dry)
        n_later, _ = await cycle.write_comments()
        report.n_commented += n_later
        report.n_comments_left = cycle.n_comments_owed
        return report
    finally:
        history.close()
