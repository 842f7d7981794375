"""PySpark on a real cluster: results equal to those without a server, whatever is killed meanwhile."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobs.factorize.job import FactorizeJob, run_factorize
from jobs.factorize.manifest import Done
from jobs.factorize.matrices import (
    GARBAGE_LINE,
    LIMIT,
    balance,
    make_bytes,
    manifest_of,
    plan_flawed,
    plan_matrices,
)
from jobs.runners.local import InlineRunner
from jobs.runners.spark import SparkRunner
from jobs.runners.step import Outcome, Runner
from tests.fixtures.yarn_site import Site
from tests.integration.spark import program
from tests.integration.spark.conftest import PYTHON, RUN_DIR, Submitter
from yarn_accel.client import Binding, Endpoint, connect, format_binding
from yarn_accel.client.client import Client
from yarn_accel.client.discovery import discover_servers
from yarn_accel.client.token_file import read_secrets
from yarn_accel.hadoop.site import HadoopSite
from yarn_accel.spark.records import RecordMapper
from yarn_accel.storage import Store
from yarn_accel.wire.credential import SECRET_ALIAS, decode

pytestmark = [pytest.mark.spark]

N_RECORDS = 320
Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def expected() -> dict[int, tuple[float | None, str | None, str | None]]:
    """By number: value, code and message, computed here."""
    mapper = RecordMapper(program.call_of, lambda _, reply: program.value_of(reply))
    with connect("inline", count_calls=False) as accel:
        results = mapper.results(accel, range(N_RECORDS), lambda name, amount: None)
        return {each.record: each[1:] for each in results}


def check(found: dict[str, Any], expected: dict[int, tuple[float | None, str | None, str | None]]) -> None:
    """Every record once, as expected, and all counted."""
    rows = found["rows"]
    assert Counter(row[0] for row in rows) == Counter(expected.keys())
    for number, facts, code, message in rows:
        value, wanted_code, wanted_message = expected[number]
        assert code == wanted_code, (number, message)
        assert message == wanted_message
        if value is not None:
            assert facts["value"] == pytest.approx(value, rel=1e-9, abs=1e-9)
    counters = found["counters"]
    n_bad = sum(code is not None for _, code, _ in expected.values())
    counted = [counters[name] for name in ("records_in", "done", "rejected", "cancelled", "cpu_fallback")]
    assert counted == [N_RECORDS, N_RECORDS - n_bad, n_bad, 0, 0]
    assert n_bad == 2 * N_RECORDS // program.CYCLE
    done = [facts for _, facts, _, _ in rows if facts]
    print(
        f"\n{found['application']}: session after {found['started_s']:.1f} s, {counters},"
        f" {dict(Counter(facts['server'] for facts in done))}"
    )


def attempts_of_master(found: dict[str, Any]) -> set[str]:
    """The numbers of the application master's attempts that executors belonged to."""
    containers = {facts["container"] for _, facts, _, _ in found["rows"] if facts}
    return {re.search(r"_(\d+)_\d+$", each).group(1) for each in containers}


def await_file(path: Path, submitter: Submitter, process: Any) -> dict[str, Any]:
    until_s = time.monotonic() + program.DEADLINE_S
    while not path.exists():
        assert process.poll() is None, submitter.log()[-6000:]
        assert time.monotonic() < until_s, submitter.log()[-6000:]
        time.sleep(0.05)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_an_rdd_with_bad_records_starts_at_the_first_attempt(run: Run, expected) -> None:
    """The first job of a new cluster: no node has Spark's jars, and the master is tried once."""
    found = run("rdd", N_RECORDS)
    check(found, expected)
    assert attempts_of_master(found) == {"01"}
    assert {facts["attempt"] for _, facts, _, _ in found["rows"] if facts} == {0}


def test_a_data_frame_with_bad_records(run: Run, expected) -> None:
    check(run("dataframe", N_RECORDS), expected)


@pytest.mark.parametrize("kind", ["rdd", "dataframe"])
@pytest.mark.parametrize("victim", ["executor", "server"])
def test_what_is_killed_costs_no_record(
    site: Site, submitter: Submitter, tmp_path: Path, expected, kind: str, victim: str
) -> None:
    """The kill comes while a task has calls under way; it waits until it has come."""
    site.until("all serve", site.is_whole)
    out, meeting = tmp_path / "out.json", tmp_path / "meeting"
    meeting.mkdir()
    process = submitter.begin(kind, "--records", str(N_RECORDS), "--out", str(out), "--meet", str(meeting))
    try:
        reached = await_file(meeting / "reached", submitter, process)
        if victim == "executor":
            (pid,) = executor_processes(site, reached["container"])
            os.kill(pid, signal.SIGKILL)
        else:
            site.kill(site.container(reached["server"], "server"))
        (meeting / "go-on").touch()
        found = submitter.result(process, out)
    finally:
        process.kill()
        process.wait()
    check(found, expected)
    attempts = {facts["attempt"] for _, facts, _, _ in found["rows"] if facts}
    containers = {facts["container"] for _, facts, _, _ in found["rows"] if facts}
    if victim == "executor":
        assert max(attempts) >= 1, "the task of the killed executor ran again"
        assert reached["container"] not in {
            facts["container"] for _, facts, _, _ in found["rows"] if facts and facts["attempt"]
        }
    else:
        assert attempts == {0}, f"no task was tried again in {containers}"
        assert found["counters"]["lost_servers"] >= 1, "it was in use"


def test_a_repeated_task_is_answered_without_computing(
    site: Site, run: Run, expected, tmp_path: Path
) -> None:
    """The first attempt at each task fails after its last record; the second makes calls of the same keys."""
    site.until("all serve", site.is_whole)
    host = site.others[0]
    agent = f"{RUN_DIR.format(node=host)}/agent.sock"
    server = discover_servers({"ACCEL_AGENT": agent, "NM_HOST": host}).endpoints()[0]
    binding = tmp_path / "binding.json"
    binding.write_text(format_binding(Binding((server,))))
    before = stats_of(server, site)
    found = run("rdd", N_RECORDS, "--binding", str(binding), "--fail-once")
    after = stats_of(server, site)
    check(found, expected)
    done = [facts for _, facts, _, _ in found["rows"] if facts]
    assert {(facts["server"], facts["attempt"]) for facts in done} == {(server.name, 1)}
    assert after["done"] - before["done"] == len(done)
    assert after["duplicates"] - before["duplicates"] >= len(done)


def stats_of(server: Endpoint, site: Site) -> dict[str, int]:
    """How many QRs a server has computed, and how many requests it has answered from another one's answer."""
    credential = decode(read_secrets(site.token_file().read_bytes())[SECRET_ALIAS])
    address = next(node.address for node in site.cluster.plan.workers if node.host == server.host)
    with Client(replace(server, host=address), credential, carriers=("tcp",)) as client:
        stats = client.stats()
    return {"done": stats["operations"].get("qr", {}).get("done", 0), "duplicates": stats["duplicates"]}


def executor_processes(site: Site, container: str) -> list[int]:
    """The Java process of an executor."""
    found = site.processes(container)
    return [
        pid
        for pid, command in found.items()
        if "CoarseGrainedExecutorBackend" in command and "bash" not in command
    ]


def test_failfast_fails_the_job_and_names_the_record(submitter: Submitter, tmp_path: Path) -> None:
    process = submitter.begin(
        "rdd", "--records", "8", "--out", str(tmp_path / "out.json"), "--mode", "FAILFAST",
        confs={"spark.task.maxFailures": "1"},
    )  # fmt: skip
    process.wait()
    assert process.returncode != 0
    assert re.search(r"RejectedError: record \d is bad \((invalid-record|not-finite)\)", submitter.log())


def test_the_factorize_job_is_in_spark_as_inline(
    site: Site, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every kind of flaw among the records; the zip of the job travels, and its counters add up."""
    for name in (
        "SPARK_HOME",
        "SPARK_CONF_DIR",
        "PYSPARK_PYTHON",
        "PYSPARK_DRIVER_PYTHON",
        "JAVA_TOOL_OPTIONS",
    ):
        monkeypatch.setenv(name, environ[name])
    hadoop = replace(HadoopSite.load(site.environ), binding_file=None)
    job = FactorizeJob(n_tasks=3, is_fallback_allowed=False, residual="all")
    spark = factorized(SparkRunner(hadoop, PYTHON, scratch=tmp_path), Store(hadoop.conf_dir), job)
    with InlineRunner(tmp_path / "inline") as runner:
        inline = factorized(runner, Store(), FactorizeJob(residual="all"))
    assert spark.job_ids[0].startswith("application_")
    assert {(row.key, row.operation, row.shape) for row in spark.results} == {
        (row.key, row.operation, row.shape) for row in inline.results
    }
    assert {(each.key, each.code) for each in spark.rejects} == {
        (each.key, each.code) for each in inline.rejects
    }
    assert len(spark.rejects) == 5
    assert all(row.proven_residual < LIMIT and row.device != "cpu:fallback" for row in spark.results)
    assert len({row.attempt for row in spark.results}) == job.n_tasks
    print(f"\n{spark.wall_s:.1f} s, {dict(spark.counters)}")


def factorized(runner: Runner, store: Store, job: FactorizeJob) -> Outcome[Done]:
    """The outcome of the same matrices with any runner."""
    matrices = balance((*plan_matrices(12, 32, 96), *plan_flawed(48)), job.n_tasks)
    for matrix in matrices:
        if matrix.flaw != "missing":
            store.write_atomic(f"{runner.home('in')}/{matrix.key}.bin", [make_bytes(matrix)])
    manifest = manifest_of(matrices, runner.home("in"), runner.home("out")) + GARBAGE_LINE + "\n"
    return run_factorize(runner, store, manifest, job, lambda text: None)
