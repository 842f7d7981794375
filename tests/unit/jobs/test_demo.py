from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from jobs.demo.pictures import mosaic_rows, overview, pictures
from jobs.demo.record import as_json, run_checks
from jobs.demo.report import report_page
from jobs.demo.run import InputSize, plan_input
from jobs.demo.secure import SecureRecord
from jobs.factorize.manifest import records
from jobs.runners.step import RejectedRecord
from tests.fixtures.page_reader import Reader

PNG = b"\x89PNG\r\n\x1a\n"


def failing(record) -> list[str]:
    return [check.what for check in run_checks(record) if not check.ok]


def test_a_good_run_passes_every_check(record):
    assert failing(record) == []


def with_fallback(outcome):
    return replace(outcome, counters={**outcome.counters, "cpu_fallback": 1})


def with_residual(factorize, residual):
    rows = (replace(factorize.results[0], residual=residual), *factorize.results[1:])
    return {"factorize": replace(factorize, results=rows)}


def with_a_reject(factorize):
    rejects = (*factorize.rejects, RejectedRecord("good", "storage", "gone"))
    return {"factorize": replace(factorize, rejects=rejects, n_in=50)}


def killed_on_w4(factorize):
    tasks = tuple(replace(t, state="KILLED") if t.node == "w4" else t for t in factorize.tasks)
    return {"factorize": replace(factorize, tasks=tasks)}


ON_A_CPU = "no record was computed on a mapper's own CPU"
IDLE = "every pipeline server's own counter is above 0"
LARGE = "every residual is below 30"


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (lambda r: {"factorize": with_fallback(r.factorize)}, ON_A_CPU),
        (lambda r: {"images": replace(r.images, outcome=with_fallback(r.images.outcome))}, ON_A_CPU),
        (lambda r: {"servers": (r.servers[0], replace(r.servers[1], done=0))}, IDLE),
        (lambda r: {"servers": r.servers[:1]}, IDLE),
        (lambda r: {"servers": ()}, IDLE),
        (lambda r: with_residual(r.factorize, 30.0), LARGE),
        (lambda r: with_residual(r.factorize, float("inf")), LARGE),
        (lambda r: with_residual(r.factorize, float("nan")), LARGE),
        (lambda r: {"factorize": replace(r.factorize, n_in=50)}, "records in = done + rejected"),
        (lambda r: with_a_reject(r.factorize), "exactly the records spoilt on purpose were rejected"),
        (lambda r: killed_on_w4(r.factorize), "factorize mappers ran on every node (job history)"),
    ],
)
def test_what_went_wrong_fails_one_check_of_the_demo(record, change, check):
    assert failing(replace(record, **change(record))) == [check]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda r: {}, []),
        (lambda r: {"factorize": with_fallback(r.factorize)}, [ON_A_CPU]),
        (lambda r: {"servers": ()}, [IDLE]),
        (lambda r: {"verified": ()}, ["factors read back pass an independent check here"]),
        (lambda r: {"spoilt": ()}, ["exactly the records spoilt on purpose were rejected"]),
    ],
)
def test_what_went_wrong_fails_one_check_of_the_demo_with_kerberos(record, change, expected):
    rejected = tuple(reject.key for reject in record.factorize.rejects)
    secure = SecureRecord(record.factorize, rejected, record.verified, record.servers)
    assert [each.what for each in replace(secure, **change(record)).checks() if not each.ok] == expected


def test_a_node_without_mappers_fails_the_demo_and_is_named(record):
    tasks = tuple(task for task in record.factorize.tasks if task.node != "w4")
    bad = replace(record, factorize=replace(record.factorize, tasks=tasks))
    (check,) = [check for check in run_checks(bad) if not check.ok]
    assert check.seen == "3 of 4, none on w4"


def test_only_the_full_demo_asks_for_the_full_input(record):
    small = replace(record, hdfs_bytes=5)
    assert failing(small) == ["at least 300 MB in HDFS"]
    assert all(check.ok for check in run_checks(small, is_full=False))


def test_the_report_is_one_escaped_page_without_external_assets(record, patch_images):
    assert overview(record, patch_images).startswith(PNG)
    drawn = pictures(record, patch_images)
    assert set(drawn) == {"timeline", "requests", "stages", "residuals", "mosaic"}
    assert all(png.startswith(PNG) for png in drawn.values())
    reader = Reader(report_page(record, run_checks(record), drawn))
    assert "script" not in reader.tags
    assert "<script>alert(1)</script>" in reader.text
    assert len(reader.asked) == 5
    assert all(each.startswith("data:image/png;base64,") for each in reader.asked)
    assert "job_1_0001, job_1_0002" in reader.text


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
