"""``torque-sched simulate``: a log, or a site's own accounting, under one or several settings."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torque_sched.errors import ConfigError, TorqueSchedError
from torque_sched.model.units import size_bytes

if TYPE_CHECKING:
    from torque_sched.simulate.memory import Rules
    from torque_sched.simulate.results import Experiment
    from torque_sched.simulate.site import Site
    from torque_sched.simulate.workload import Workload

_FILE = click.Path(path_type=Path, dir_okay=False)
_FOLDER = click.Path(path_type=Path, file_okay=False)
_POSITIVE = click.IntRange(min=1)
_MOST_SHOWN = 20


@click.command()
@click.option("--trace", type=click.Path(path_type=Path), metavar="FILE.swf[.gz]",
              help="A log in the Standard Workload Format.")  # fmt: skip
@click.option("-d", "--home", type=_FOLDER, metavar="HOME",
              help="A server's PBS home in place of a log: accounting, nodes and settings.")  # fmt: skip
@click.option("--accounting", type=_FOLDER, metavar="FOLDER", help="[HOME/server_priv/accounting]")
@click.option("--from", "from_day", metavar="YYYY-MM-DD", help="Only jobs that could run from this day on.")
@click.option("--to", "to_day", metavar="YYYY-MM-DD", help="... and before this day.")
@click.option("--nodes", "nodes_file", type=_FILE, metavar="FILE",
              help="A nodes file, or what pbsnodes printed. [HOME/server_priv/nodes]")  # fmt: skip
@click.option("--node-memory", metavar="SIZE", help="Memory of each node, such as 64gb. [as pbsnodes says]")
@click.option("--slots-per-node", type=_POSITIVE, metavar="N", help="Of a log's nodes. [1]")
@click.option("--qmgr", "qmgr_file", type=_FILE, metavar="FILE",
              help="Queues and limits: what qmgr -c 'print server' printed.")  # fmt: skip
@click.option("--outages", "outages_file", type=_FILE, metavar="FILE",
              help="Lines NODE FROM TO: nodes that fail, seconds since the epoch.")  # fmt: skip
@click.option("--settings", "settings_files", type=_FILE, multiple=True, metavar="FILE.yaml",
              help="As torque_sched.yaml; several times: one column each.")  # fmt: skip
@click.option("--procs", type=_POSITIVE, metavar="N", help="Processors of the machine. [the log's MaxProcs]")
@click.option("--policy", metavar="NAME", help="A backfill, such as easy. [as the settings say, else aged]")
@click.option("--compare", metavar="A,B,...", default="", help="Several backfills, one column each.")
@click.option("--overrun", type=click.Choice(["kill", "extend"]), default="kill", show_default=True,
              help="A job past its limit ends there, or runs on.")  # fmt: skip
@click.option("--max-jobs", type=_POSITIVE, metavar="N", help="Only the first N jobs that count.")
@click.option("--cap-width", is_flag=True, help="Run jobs wider than the machine on all of it.")
@click.option("--allocated", is_flag=True, help="Width is what jobs got, not what they asked for.")
@click.option("--check", is_flag=True, help="Check the invariants; exit code 1 if one is broken.")
@click.option("--json", "json_file", type=_FILE, help="Write all figures.")
@click.option("--starts", type=_FILE, metavar="FILE.csv", help="Write job,start_s.")
@click.option("--html", type=_FILE, help="Write a report with pictures.")
@click.option("--counts", is_flag=True,
              help="Count processors, without nodes and settings: fast.")  # fmt: skip
@click.option("--estimates", default="user", show_default=True, metavar="NAME",
              help="Counts: plan with user, exact, learned or upper (9 of 10 keep it).")  # fmt: skip
@click.option("--order", default="fcfs", show_default=True, metavar="NAME",
              help="Counts: who is considered first: fcfs, priority, fair_share or sjf.")  # fmt: skip
@click.option("--priority", default="", metavar="QUEUE=N,...", help="Of the log's queues, for that order.")
@click.option("--half-life-h", type=click.FloatRange(min=0, min_open=True), default=24.0, show_default=True,
              help="After which usage counts half, for fair_share.")  # fmt: skip
@click.option("--compress/--no-compress", default=True, show_default=True,
              help="Conservative: move reservations forward when a job ends early.")  # fmt: skip
@click.option("--threshold", type=click.FloatRange(min=1), default=2.0, show_default=True,
              help="Selective: reserve a start from this expansion factor on.")  # fmt: skip
@click.option("--depth", type=_POSITIVE, metavar="K", help="Reserve a start for the first K only.")
@click.option("--max-tested", type=_POSITIVE, metavar="N",
              help="Jobs without a reservation that one pass tests. [all]")  # fmt: skip
@click.option(
    "--window-h", type=click.FloatRange(min=0, min_open=True), help="Reserve nothing further ahead."
)
@click.option("--resolution-s", type=click.FloatRange(min=0), default=0.0, help="Round planned ends up.")
@click.pass_context
def simulate(context: click.Context, /, **given: Any) -> None:
    """Simulate the log of a machine, or a site's last month, under a policy, and show figures.

    The scheduler's own decisions are made at each event, as the daemon makes them, with nodes, memory, GPUs,
    limits and reservations. Deterministic: the same input gives the same schedule hash.
    """
    try:
        experiment = _counted(given) if _by_counts(context, given) else _live(given)
        _check_has_jobs(experiment.workload)
        _show(experiment)
        _write(experiment, given)
    except TorqueSchedError as error:
        click.echo(f"torque-sched simulate: {error}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        click.echo(f"torque-sched simulate: {error.filename}: {error.strerror}", err=True)
        sys.exit(1)
    broken = [text for each in experiment.results for text in each.problems or ()]
    for text in broken:
        click.echo(f"torque-sched simulate: invariant broken: {text}", err=True)
    if broken:
        sys.exit(1)


_OF_COUNTS = (
    "estimates", "order", "priority", "half_life_h", "compress", "threshold", "depth", "max_tested",
    "window_h", "resolution_s",
)  # fmt: skip
_OF_NODES = {
    "home": "--home", "accounting": "--accounting", "from_day": "--from", "to_day": "--to",
    "nodes_file": "--nodes", "node_memory": "--node-memory", "slots_per_node": "--slots-per-node",
    "qmgr_file": "--qmgr", "outages_file": "--outages", "settings_files": "--settings",
}  # fmt: skip


def _by_counts(context: click.Context, given: dict[str, Any]) -> bool:
    """Whether the count-only engine is meant: by ``--counts``, or by an option that only it has.

    Raises:
        ConfigError: options of both.
    """
    is_given = [
        name for name in _OF_COUNTS
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    ]  # fmt: skip
    with_nodes = [option for name, option in _OF_NODES.items() if given[name]]
    if not (given["counts"] or is_given):
        return False
    words = f"--{is_given[0].replace('_', '-')}" if is_given else "--counts"
    if with_nodes:
        raise ConfigError(
            f"{words} is for counts of processors (--counts), {with_nodes[0]} for nodes",
            cure="leave one of them out; a settings file says the order and the backfill with nodes",
        )
    if given["trace"] is None:
        raise ConfigError("no log to simulate", cure="give --trace FILE.swf")
    if not given["counts"]:
        click.echo(
            f"note: {words} is an option of --counts, so processors are counted, without nodes", err=True
        )
    return True


def _counted(given: dict[str, Any]) -> Experiment:
    from torque_sched.simulate.counts.experiment import Plan, run
    from torque_sched.simulate.counts.scheduler import PolicySettings
    from torque_sched.simulate.workload import LogSelection, Overrun, read_trace

    plan = Plan(
        policies=_names(given["policy"], given["compare"]),
        estimates=given["estimates"],
        order=given["order"],
        priorities=_priorities(given["priority"]),
        half_life_s=given["half_life_h"] * 3600.0,
        settings=PolicySettings(
            depth=given["depth"],
            compress=given["compress"],
            threshold=given["threshold"],
            window_s=(given["window_h"] or math.inf) * 3600.0,
            resolution_s=given["resolution_s"],
            max_jobs=given["max_tested"] or math.inf,
        ),
        choice=LogSelection(
            given["procs"], Overrun(given["overrun"]), given["max_jobs"], given["cap_width"],
            given["allocated"],
        ),
        check=given["check"],
    )  # fmt: skip
    path: Path = given["trace"]
    trace = read_trace(path)
    _show_left_out([str(each) for each in trace.problems], trace.n_problems)
    with _progress() as progress:
        return run(path.name, trace, plan, progress)


def _show_left_out(problems: Sequence[str], n_all: int = 0) -> None:
    for text in problems[:_MOST_SHOWN]:
        click.echo(f"left out: {text}", err=True)
    n_more = max(n_all, len(problems)) - _MOST_SHOWN
    if n_more > 0:
        click.echo(f"left out: {n_more:,} more", err=True)


def _check_has_jobs(workload: Workload) -> None:
    """Refuse figures of nothing.

    Raises:
        ConfigError: each line was rejected.
    """
    from torque_sched.simulate.workload import Rejected

    if workload.jobs:
        return
    why = ", ".join(f"{reason.value}: {n:,}" for reason, n in workload.rejected.items())
    too_wide = Rejected.TOO_WIDE in workload.rejected
    raise ConfigError(
        f"no job is left of {workload.n_lines:,} lines ({why})",
        cure=f"give --procs N: {workload.procs:,} processors are simulated"
        if too_wide
        else "give another log",
    )


def _live(given: dict[str, Any]) -> Experiment:
    from torque_sched.simulate.comparison import compare

    site = _site(given)
    for text in site.notes:
        click.echo(f"note: {text}", err=True)
    _show_left_out(site.problems)
    with _progress() as progress:
        return compare(site, _all_rules(given), progress, is_checked=given["check"])


def _site(given: dict[str, Any]) -> Site:
    """The site of a log, or of a PBS home.

    Raises:
        ConfigError: neither is named, or both are. DocumentError: a file cannot be read.
    """
    from torque_sched.simulate import site_files
    from torque_sched.simulate.site import equal_nodes, site_of_log
    from torque_sched.simulate.workload import LogSelection, Overrun, read_trace, workload_of

    home: Path | None = given["home"]
    accounting: Path | None = given["accounting"] or (home and home / "server_priv" / "accounting")
    if (given["trace"] is None) == (accounting is None):
        raise ConfigError("one workload is needed", cure="give --trace FILE.swf, or --home HOME of a server")
    mem_bytes = size_bytes(given["node_memory"]) if given["node_memory"] else None
    nodes_file: Path | None = given["nodes_file"] or (home and home / "server_priv" / "nodes")
    nodes, problems = site_files.read_nodes(nodes_file, mem_bytes) if nodes_file else ((), ())
    limits = None
    if given["qmgr_file"] is not None:
        limits, more = site_files.read_limits(given["qmgr_file"])
        problems += more
    if accounting is None:
        path: Path = given["trace"]
        trace = read_trace(path)
        procs = given["procs"] or (sum(node.slots for node in nodes) if nodes else None)
        choice = LogSelection(
            procs, Overrun(given["overrun"]), given["max_jobs"], given["cap_width"], given["allocated"]
        )
        workload = workload_of(trace, choice)
        nodes = nodes or equal_nodes(workload.procs, given["slots_per_node"] or 1, mem_bytes)
        site = site_of_log(path.name, trace, workload, nodes)
        site = replace(site, problems=(*(str(each) for each in trace.problems), *problems))
    else:
        if not nodes:
            raise ConfigError("no nodes", cure="give --nodes FILE")
        ended = site_files.read_accounting(accounting, _day_s(given["from_day"]), _day_s(given["to_day"]))
        site = site_files.site_of_files(
            str(accounting), ended, nodes, limits, max_jobs=given["max_jobs"], problems=problems
        )
    if given["outages_file"] is None:
        return site
    outages, more = site_files.read_outages(given["outages_file"], site.nodes)
    return replace(site, outages=outages, problems=(*site.problems, *more))


def _day_s(text: str | None) -> float | None:
    """The begin of a day by this host's clock.

    Raises:
        ConfigError: it is no day.
    """
    if text is None:
        return None
    try:
        return datetime.strptime(text, "%Y-%m-%d").astimezone().timestamp()
    except ValueError:
        raise ConfigError(f"{text!r} is no day", cure="write YYYY-MM-DD, such as 2026-11-01") from None


def _all_rules(given: dict[str, Any]) -> list[Rules]:
    """One for each column: every settings file, or else every backfill named.

    Raises:
        ConfigError: a settings file or a name is wrong.
    """
    from torque_sched.daemon.c_policy import CFiles, read_c_files
    from torque_sched.daemon.config import NamedSettings, read_config
    from torque_sched.daemon.paths import DEFAULT_NAME

    home: Path | None = given["home"]
    own = home / "sched_priv" / DEFAULT_NAME if home is not None else None
    files: list[Path | None] = [*given["settings_files"]] or [own if own and own.is_file() else None]
    found: list[Rules] = []
    names = [name.strip() for name in (given["policy"] or "", *given["compare"].split(","))]
    names = list(dict.fromkeys(filter(None, names)))
    for file in files:
        config = read_config(file)
        c_files = read_c_files(home / "sched_priv", config) if home is not None else CFiles()
        stem = file.stem if file is not None and given["settings_files"] else ""
        for name in names or [None]:
            made = config
            if name is not None and (config.backfill is None or config.backfill.name != name):
                made = config.model_copy(update={"backfill": NamedSettings(name=name)})
            column = " ".join(filter(None, (stem, name))) or (made.backfill.name if made.backfill else "aged")
            found.append(_rules(column, made, c_files))
    return _distinguished(found)


def _distinguished(found: list[Rules]) -> list[Rules]:
    """The same, each with a name of its own."""
    names = Counter(each.name for each in found)
    return [
        replace(each, name=f"{each.name} ({at})") if names[each.name] > 1 else each
        for at, each in enumerate(found, 1)
    ]


def _rules(name: str, config: Any, c_files: Any) -> Rules:
    from torque_sched.daemon.c_policy import SettingsInForce, half_life_s
    from torque_sched.simulate.memory import Rules

    in_force, learning = SettingsInForce(config, c_files), config.learning
    changes = in_force.prime != in_force.non_prime
    return Rules(
        name,
        in_force.at if changes else lambda now_s: in_force.prime,
        changes,
        tuple(each.value() for each in config.reservations),
        c_files.dedicated,
        learning.predictors,
        learning.min_similar,
        half_life_s(config, c_files),
        config.fair_share.gpu_weight,
        {
            "order": type(in_force.prime.order).__name__,
            "placement": config.placement.name,
            "backfill": type(in_force.prime.backfill).__name__,
        },
        config.standing_during,
        config.planned_s,
    )


def _names(policy: str | None, compare: str) -> tuple[str, ...]:
    """The policy asked for, then those to compare with, each once."""
    several = [name.strip() for name in compare.split(",") if name.strip()]
    first = [policy] if policy else []
    return tuple(dict.fromkeys(first + several)) or ("easy",)


def _priorities(text: str) -> dict[int, float]:
    """``3=10,1=5`` as queue -> priority."""
    found: dict[int, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        queue, _, priority = part.partition("=")
        try:
            found[int(queue)] = float(priority)
        except ValueError:
            raise ConfigError(f"--priority {part!r}", cure="write QUEUE=NUMBER, such as 3=10,1=5") from None
    return found


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar on a terminal for each policy: (policy, jobs that ended, jobs)."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bars: dict[str, TaskID] = {}
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:

        def say(policy: str, n_done: int, n_jobs: int) -> None:
            if policy not in bars:
                bars[policy] = progress.add_task(policy, total=n_jobs)
            progress.update(bars[policy], completed=n_done)

        yield say


def _show(experiment: Experiment) -> None:
    from rich.console import Console

    from torque_sched.simulate.results import class_rows, rows, summary

    console = Console(width=None if sys.stdout.isatty() else 160)
    click.echo(summary(experiment.workload))
    for lines in (rows(experiment.results), class_rows(experiment.results)):
        console.print(_table(lines))
    for each in experiment.results:
        for number, words in each.schedule.never[:_MOST_SHOWN]:
            click.echo(f"{each.schedule.name}: job {number} never started: {words}")
        if len(each.schedule.never) > _MOST_SHOWN:
            click.echo(f"{each.schedule.name}: {len(each.schedule.never) - _MOST_SHOWN:,} more never started")


def _table(lines: Sequence[Sequence[str]]) -> Any:
    from rich.table import Table

    table = Table()
    for at, head in enumerate(lines[0]):
        table.add_column(head, justify="left" if at == 0 else "right")
    for line in lines[1:]:
        table.add_row(*line)
    return table


def _write(experiment: Experiment, given: dict[str, Any]) -> None:
    from torque_sched.simulate.results import document, starts_text

    json_file, starts, html = given["json_file"], given["starts"], given["html"]
    if json_file is not None:
        json_file.write_text(json.dumps(document(experiment), indent=1) + "\n", encoding="utf-8")
    if starts is not None:
        for at, result in enumerate(experiment.results):
            # The policy asked for has the name as given, those it is compared with have their own.
            path = starts if at == 0 else starts.with_stem(f"{starts.stem}-{result.schedule.name}")
            path.write_text(starts_text(result.schedule), encoding="utf-8")
    if html is not None:
        from torque_sched.simulate.page import page

        html.write_text(page(experiment), encoding="utf-8")
