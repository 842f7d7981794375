"""The demo's HTML report and its tables on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.filesize import decimal
from rich.table import Table

from jobs.demo.record import DemoCheck, DemoRecord
from jobs.factorize.manifest import Done
from yarn_accel.report.pages import render


def facts(record: DemoRecord) -> list[tuple[str, str]]:
    """The run in a few figures: (figure, what it is)."""
    images = record.images.outcome
    return [
        (f"{record.total_s:.0f} s", "from nothing to this report"),
        (str(len(record.factorize.results)), "matrices factorized"),
        (f"{record.hdfs_bytes / 1e6:.0f} MB", "of input in HDFS"),
        (f"{record.worst_residual:.2f}", "worst residual (limit 30)"),
        (f"{len(images.results):,}", "images clustered"),
        (f"{100 * record.purity.share:.1f} %", "cluster purity"),
        (str(len(record.factorize.rejects) + len(images.rejects)), "bad records, all named"),
        (decimal(record.cluster.rss_bytes), f"resident, {record.cluster.n_daemons} daemons idle"),
    ]


def report_page(record: DemoRecord, checks: Sequence[DemoCheck], pictures: Mapping[str, bytes]) -> str:
    """The whole report as one HTML page."""
    cluster, factorize, images = record.cluster, record.factorize, record.images.outcome
    counters = {"factorize": factorize.counters, "images": images.counters}
    names = sorted({name for found in counters.values() for name in found})
    jobs = ", ".join((*factorize.job_ids, *images.job_ids))
    return render(
        Path(__file__).with_name("report.html"),
        title="cluster-accel: the demo",
        is_live=False,
        record=record,
        facts=facts(record),
        checks=[(check.what, check.ok, check.seen) for check in checks],
        pictures=pictures,
        groups=_groups(factorize.results),
        purity=[(name.replace("_", " "), round(n, 4)) for name, n in record.purity.by_photograph.items()],
        rejects=[(each.key, each.code, each.message) for each in (*factorize.rejects, *images.rejects)],
        servers=[
            (s.name, s.requests, s.done, s.rejected, s.failed, *map(decimal, (s.bytes_in, s.bytes_out)))
            for s in record.servers
        ],
        counter_columns=("job", *names),
        counters=[(job, *(found.get(name, 0) for name in names)) for job, found in counters.items()],
        phases=[(name, round(seconds, 1)) for name, seconds in record.phases.items()],
        matrices=[
            (r.key, r.operation, r.dtype, r.proven_residual, r.seconds[-1], r.server, r.node)
            for r in factorize.results
        ],
        footer=f"Jobs {jobs}. {cluster.n_jars} jars, {decimal(cluster.jar_bytes)}. Daemons: "
        f"{decimal(cluster.rss_bytes)} resident when idle, peaks add up to {decimal(cluster.peak_bytes)}.",
    )


def check_table(checks: Sequence[DemoCheck]) -> Table:
    """The checks for the terminal."""
    table = Table(title="checks", title_justify="left")
    for name in ("", "what must hold", "seen"):
        table.add_column(name)
    for check in checks:
        table.add_row("[green]ok[/green]" if check.ok else "[red]FAILED[/red]", check.what, check.seen)
    return table


def phase_table(record: DemoRecord) -> Table:
    """Seconds by phase, and the figures, for the terminal."""
    table = Table(title="the demo in figures", title_justify="left")
    table.add_column("what")
    table.add_column("value", justify="right")
    for name, seconds in record.phases.items():
        table.add_row(name, f"{seconds:.1f} s")
    table.add_section()
    for figure, what in facts(record):
        table.add_row(what, figure)
    return table


def _groups(rows: Sequence[Done]) -> list[tuple[object, ...]]:
    groups: dict[tuple[str, str], list[Done]] = {}
    for row in rows:
        groups.setdefault((row.operation, row.dtype), []).append(row)
    return [
        (
            operation,
            dtype,
            len(found),
            max(row.proven_residual for row in found),
            sum(row.seconds[2] for row in found),
            sum(row.seconds[4] for row in found),
            ", ".join(sorted({row.server for row in found})),
        )
        for (operation, dtype), found in sorted(groups.items())
    ]
