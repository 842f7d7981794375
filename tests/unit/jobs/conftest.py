"""A made-up demo record without fault for tests of what is made from one."""

from __future__ import annotations

import itertools

import pytest

from jobs.demo.record import ClusterFacts, DemoRecord, ServerFacts
from jobs.factorize.manifest import Done
from jobs.factorize.matrices import Check
from jobs.images.job import ImagesOutcome, Indexed
from jobs.images.make_input import PatchPlan, patches, photograph_of, purity
from jobs.images.rows import Clustering
from jobs.runners.step import Outcome, RejectedRecord, TaskRecord

NODES = ("w1", "w2", "w3", "w4")
STAGES_S = (0.1, 0.2, 0.5, 0.2, 1.0)
PLACES = [("w1", "cpu", node, "a") for node in NODES]


def done_rows() -> tuple[Done, ...]:
    kinds = itertools.product(("lu", "qr", "cholesky"), ("float32", "float64"), range(8))
    return tuple(
        Done(f"{op}-{dtype}-{i}", op, dtype, (300, 300), 0.1 + i, STAGES_S, 720_000, *PLACES[i % 4])
        for op, dtype, i in kinds
    )


def map_tasks(job: str, start_s: float) -> tuple[TaskRecord, ...]:
    maps = [
        TaskRecord(f"{job}_m_{i}", "map", NODES[i % 4], "SUCCEEDED", start_s + i, start_s + i + 9)
        for i in range(8)
    ]
    return (*maps, TaskRecord(f"{job}_m_7_1", "map", "w1", "KILLED", start_s + 8, start_s + 12))


def images_outcome(keys: list[str]) -> ImagesOutcome:
    truths = sorted({photograph_of(key) for key in keys})
    index = {key: truths.index(photograph_of(key)) for key in keys}
    index[keys[0]] = 1
    outcome = Outcome(
        len(keys) + 1,
        tuple(Indexed(key, cluster) for key, cluster in index.items()),
        (RejectedRecord("broken/000064", "broken-image", "image file is truncated"),),
        {"records_in": len(keys) + 1, "done": len(keys), "rejected": 1, "sent": 5, "bytes": 1000},
        (*map_tasks("i", 130.0), TaskRecord("i_r_0", "reduce", "w2", "SUCCEEDED", 150.0, 155.0)),
        30.0,
        ("job_1_0002",),
    )
    return ImagesOutcome(outcome, Clustering(index, {}, {}, {"k": len(truths), "inertia": 1.5}))


@pytest.fixture(scope="session")
def patch_images() -> dict[str, bytes]:
    return dict(patches(PatchPlan(n_images=64, side_px=32)))


@pytest.fixture
def record(patch_images) -> DemoRecord:
    rows = done_rows()
    images = images_outcome(list(patch_images))
    counters = {"records_in": 49, "done": 48, "rejected": 1, "sent": 97, "bytes": 48 * 720_000}
    reject = RejectedRecord("bad-nan", "not-finite", "<script>alert(1)</script> & NaN at [3, 4]")
    nodes = dict(zip(NODES, ("/rack1", "/rack1", "/rack2", "/rack2"), strict=True))
    return DemoRecord(
        started_at="2026-01-01 00:00:00",
        machine="2 cores",
        cluster=ClusterFacts(
            "netns", nodes, NODES, ("w1", "w3"), 13, "3.5.0", 191, 102 << 20, 2 << 30, 3 << 30
        ),
        phases={"start": 12.0, "factorize": 40.0},
        hdfs_bytes=310_000_000,
        spoilt=("bad-nan", "broken/000064"),
        factorize=Outcome(49, rows, (reject,), counters, map_tasks("f", 100.0), 40.0, ("job_1_0001",)),
        verified=(Check(rows[0].key, (("A-PLU", 0.2),)),),
        images=images,
        purity=purity(images.clustering.index),
        servers=tuple(
            ServerFacts(name, 60, 50, 1, 0, 10**8, 10**8, {"lu": 20, "residual": 30}, {"read": 1.0})
            for name in ("w1", "w3")
        ),
    )
