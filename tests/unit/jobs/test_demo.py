from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from jobs.demo.pictures import mosaic_rows, overview, pictures
from jobs.demo.record import as_json, run_checks
from jobs.demo.report import report_page
from jobs.demo.run import InputSize, plan_input
from jobs.factorize.manifest import records
from jobs.runners.step import RejectedRecord
from tests.fixtures.page_reader import Reader

PNG = b"\x89PNG\r\n\x1a\n"


def failing(record) -> list[str]:
    return [check.what for check in run_checks(record) if not check.ok]


def with_counter(outcome, name, value):
    return replace(outcome, counters={**outcome.counters, name: value})


def test_a_good_run_passes_every_check(record):
    assert failing(record) == []


def test_a_record_computed_on_the_mappers_cpu_fails_the_demo(record):
    bad = replace(record, factorize=with_counter(record.factorize, "cpu_fallback", 1))
    assert failing(bad) == ["no record was computed on a mapper's own CPU"]
    bad = replace(
        record, images=replace(record.images, outcome=with_counter(record.images.outcome, "cpu_fallback", 2))
    )
    assert failing(bad) == ["no record was computed on a mapper's own CPU"]


def test_an_idle_or_missing_server_fails_the_demo(record):
    first, second = record.servers
    for servers in ((first, replace(second, done=0)), (first,), ()):
        assert failing(replace(record, servers=servers)) == ["every pipeline server's own counter is above 0"]


@pytest.mark.parametrize("residual", [30.0, float("inf"), float("nan")])
def test_a_large_residual_fails_the_demo(record, residual):
    rows = (replace(record.factorize.results[0], residual=residual), *record.factorize.results[1:])
    bad = replace(record, factorize=replace(record.factorize, results=rows))
    assert failing(bad) == ["every residual is below 30"]


def test_a_lost_record_fails_the_demo(record):
    bad = replace(record, factorize=replace(record.factorize, n_in=50))
    assert failing(bad) == ["records in = done + rejected"]


def test_a_reject_nobody_spoilt_fails_the_demo(record):
    rejects = (*record.factorize.rejects, RejectedRecord("good", "storage", "gone"))
    bad = replace(record, factorize=replace(record.factorize, rejects=rejects, n_in=50))
    assert failing(bad) == ["exactly the records spoilt on purpose were rejected"]


def test_a_node_without_mappers_fails_the_demo_and_is_named(record):
    tasks = tuple(task for task in record.factorize.tasks if task.node != "w4")
    bad = replace(record, factorize=replace(record.factorize, tasks=tasks))
    (check,) = [check for check in run_checks(bad) if not check.ok]
    assert check.seen == "3 of 4, none on w4"


def test_a_killed_attempt_does_not_count_as_a_mapper(record):
    tasks = tuple(replace(t, state="KILLED") if t.node == "w4" else t for t in record.factorize.tasks)
    bad = replace(record, factorize=replace(record.factorize, tasks=tasks))
    assert failing(bad) == ["factorize mappers ran on every node (job history)"]


def test_only_the_full_demo_asks_for_the_full_input(record):
    small = replace(record, hdfs_bytes=5)
    assert failing(small) == ["at least 300 MB in HDFS"]
    assert all(check.ok for check in run_checks(small, is_full=False))


def test_the_report_is_one_escaped_page_without_external_assets(record, patch_images):
    drawn = pictures(record, patch_images)
    assert set(drawn) == {"timeline", "requests", "stages", "residuals", "mosaic"}
    assert all(png.startswith(PNG) for png in drawn.values())
    reader = Reader(report_page(record, run_checks(record), drawn))
    assert "script" not in reader.tags
    assert "<script>alert(1)</script>" in reader.text
    assert len(reader.asked) == 5
    assert all(each.startswith("data:image/png;base64,") for each in reader.asked)
    assert "job_1_0001, job_1_0002" in reader.text


def test_the_overview_is_a_picture(record, patch_images):
    assert overview(record, patch_images).startswith(PNG)


def test_the_json_has_no_surprises(record):
    checks = [asdict(check) for check in run_checks(record)]
    document = json.loads(json.dumps(as_json(record, checks), allow_nan=False))
    assert document["ok"] is True
    assert len(document["factorize"]["results"]) == 48
    assert document["total_s"] == 52.0


def test_the_mosaic_marks_strangers(record, patch_images):
    rows = mosaic_rows(record.images.clustering.index, patch_images, 9)
    assert len(rows) == 8
    assert sum(not is_majority for row in rows for is_majority in row.is_majority) == 1
    assert "100 %" in rows[0].label


def test_the_demos_input_has_every_kind_of_bad_record():
    planned = plan_input(InputSize(), 8)
    lines = list(records(planned.manifest("hdfs://m/in", "hdfs://m/out").splitlines()))
    assert len(lines) == 60 + 4 + 1
    assert set(planned.spoilt()) >= {"bad-nan", "bad-indefinite", "bad-short", "bad-missing", "broken/002000"}
    assert len(planned.spoilt()) == 4 + 1 + 2
