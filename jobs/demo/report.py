"""The demo's HTML report and its tables on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.filesize import decimal
from rich.table import Table

from jobs.demo.checks import DemoCheck
from jobs.demo.page import Page
from jobs.demo.record import DemoRecord
from jobs.factorize.rows import Done


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
    cluster = record.cluster
    page = Page(
        "cluster-accel: the demo",
        f"A real Hadoop {cluster.hadoop_version} cluster of {len(cluster.nodes)} nodes in "
        f"{len(set(cluster.nodes.values()))} racks, on one machine ({record.machine}; {cluster.mode} mode), "
        f"ran two Hadoop Streaming jobs whose work was done by {len(record.servers)} pipeline servers. "
        f"Started {record.started_at}.",
    )
    page.cards(facts(record))
    page.heading("Checks")
    page.table(("what must hold", "", "seen"), [(check.what, check.ok, check.seen) for check in checks])
    page.heading("What ran where")
    page.picture(
        pictures["timeline"],
        "task attempts by node over time",
        "From the job history. Mappers spread because each asks for one acct/slot; nodes without a server "
        "send their work to one in their rack.",
    )
    page.picture(pictures["requests"], "requests by server and operation", "The servers' own counters.")
    page.heading("Factorizations")
    page.picture(pictures["stages"], "mean seconds per stage", "read: from HDFS, write: factors to HDFS.")
    page.picture(
        pictures["residuals"],
        "residuals by operation and dtype",
        "The LAPACK way, computed from the factors read back from HDFS.",
    )
    page.table(_GROUP_HEADER, _groups(record.factorize.results))
    page.heading("Images")
    page.picture(
        pictures["mosaic"], "a sample of each cluster", "Patches of real photographs; the label is the truth."
    )
    page.table(
        ("photograph", "share of its images in clusters of its own"),
        [(name.replace("_", " "), round(share, 4)) for name, share in record.purity.by_photograph.items()],
        fold="purity by photograph",
    )
    _rest(page, record)
    return page.text()


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


def _rest(page: Page, record: DemoRecord) -> None:
    page.heading("Rejected records")
    rejects = [*record.factorize.rejects, *record.images.outcome.rejects]
    page.table(
        ("record", "code", "reason"), [(reject.key, reject.code, reject.message) for reject in rejects]
    )
    page.heading("Servers, counters, seconds")
    page.table(
        ("server", "requests", "done", "rejected", "failed", "bytes in", "bytes out"),
        [
            (s.name, s.requests, s.done, s.rejected, s.failed, *map(decimal, (s.bytes_in, s.bytes_out)))
            for s in record.servers
        ],
    )
    counters = {"factorize": record.factorize.counters, "images": record.images.outcome.counters}
    names = sorted({name for found in counters.values() for name in found})
    page.table(
        ("job", *names), [(job, *(found.get(name, 0) for name in names)) for job, found in counters.items()]
    )
    page.table(("phase", "seconds"), [(name, round(seconds, 1)) for name, seconds in record.phases.items()])
    page.table(
        ("matrix", "operation", "dtype", "residual", "total s", "server", "node"),
        [
            (r.key, r.operation, r.dtype, r.proven_residual, r.seconds[-1], r.server, r.node)
            for r in record.factorize.results
        ],
        fold=f"all {len(record.factorize.results)} matrices",
    )
    jobs = ", ".join((*record.factorize.job_ids, *record.images.outcome.job_ids))
    page.footer(
        f"Jobs {jobs}. {record.cluster.n_jars} jars, {decimal(record.cluster.jar_bytes)}. "
        f"Daemons: {decimal(record.cluster.rss_bytes)} resident when idle, peaks add up to "
        f"{decimal(record.cluster.peak_bytes)}."
    )


_GROUP_HEADER = ("operation", "dtype", "matrices", "worst residual", "compute s", "total s", "servers")


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
