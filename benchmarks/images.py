"""The image job of the YARN paper (section 3: 50,000 images, LBP, colour, K-means) on the 4-node cluster.

The truth is known (patches of photographs), so figures of speed come with those of quality. The harder set
of photographs, with large even parts and look-alikes, is measured beside the demo's.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.result import Report, Row, observed
from jobs.demo.cluster import read_servers
from jobs.images.job import ImagesJob, ImagesOutcome, run_images
from jobs.images.make_input import ALL_PHOTOGRAPHS, PHOTOGRAPHS, PatchPlan, Photograph, purity, store_files
from jobs.runners.hadoop import HadoopRunner
from yarn_accel.hadoop.site import SiteSettings
from yarn_accel.storage import Store
from yarn_accel.testbed import Cluster, UpOptions, take_down

NAME = "bench-images"


def _rows(label: str, found: ImagesOutcome, note: str) -> list[Row]:
    outcome = found.outcome
    quality = purity(found.clustering.index)
    maps = [task for task in outcome.tasks if task.kind == "map"]
    map_phase_s = max(task.finish_s for task in maps) - min(task.start_s for task in maps)
    floor = f"one single cluster would reach {quality.largest_photograph:.3f}"
    return [
        observed(f"{label}: job wall time", outcome.wall_s, "s", note=note),
        observed(f"{label}: map phase", outcome.n_in / map_phase_s, "images/s", note=note),
        observed(f"{label}: purity", quality.share, "share", note=f"{quality.n_clusters} clusters; {floor}"),
        observed(f"{label}: rejected", len(outcome.rejects), "images", goal="<= 0"),
        observed(
            f"{label}: computed by a mapper's own CPU",
            outcome.counters.get("cpu_fallback", 0),
            "images",
            goal="<= 0",
        ),
    ]


def run(quick: bool, report: Callable[[str], None], record: Report, mode: str = "auto") -> None:
    """Measure both sets of photographs; the cluster is taken down whatever happens."""
    n_images, n_files = (500, 4) if quick else (50_000, 8)
    sets: dict[str, tuple[Photograph, ...]] = {"images": PHOTOGRAPHS}
    if not quick:
        sets["images, harder photographs"] = ALL_PHOTOGRAPHS
    note = f"{n_images} images of 64 x 64, PNG, {n_files} mappers, 2 servers" + ("; quick" if quick else "")
    try:
        cluster = Cluster.up(UpOptions(name=NAME, nodes=4, racks=2, accel_nodes=2, mode=mode), report)
        site = SiteSettings.read({"HADOOP_CONF_DIR": str(cluster.conf_dir)})
        store = Store(cluster.conf_dir)
        with HadoopRunner(site) as runner:
            for at, (label, photographs) in enumerate(sets.items()):
                plan = PatchPlan(n_images, photographs=photographs)
                uris = store_files(store, runner.home(f"input-{at}"), plan, n_files, report)
                job = ImagesJob(k=2 * len(photographs))
                outcome = run_images(runner, store, uris, n_images, job, report, f"images-{at}")
                record.add(_rows(label, outcome, note))
            servers = read_servers(cluster.pipeline_config_files)
        record.add(observed(f"requests done by {server.name}", server.done, "requests") for server in servers)
    finally:
        take_down(NAME, report)
