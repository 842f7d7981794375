"""The benchmark `inference`: its peers predict the same, and its rows are of what they measured."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import inference
from benchmarks.inference import PEERS, Turn, bare_session, http_request, rows_of, write_model
from benchmarks.pipeline.fleet import Child
from yarn_accel.errors import JobError, StartupError


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    write_model(path)
    return path


def test_the_http_server_predicts_as_onnxruntime_in_this_process(tmp_path: Path, model: Path) -> None:
    rows = np.random.default_rng(1).standard_normal((8, 256)).astype(np.float32)
    expected = bare_session(str(model))(rows)
    assert expected.shape == (8, 128)
    assert expected.any()
    with Child("inference", "http", tmp_path / "log") as server, ExitStack() as resources:
        port = server.ask({"act": "serve", "model": str(model), "n_threads": 1})["port"]
        ask = http_request(port, resources)
        for _ in range(2):
            assert np.allclose(ask(rows), expected, rtol=1e-4, atol=1e-5)
        with pytest.raises(StartupError, match="answers 500"):
            ask(rows[:, :3])


def test_a_mapper_that_cannot_connect_says_why(tmp_path: Path, model: Path) -> None:
    address = {"secret": str(tmp_path / "none"), "port": 1, "unix": ""}
    with (
        Child("inference", "0", tmp_path / "log") as mapper,
        pytest.raises(JobError, match="FileNotFoundError"),
    ):
        mapper.ask({"act": "prepare", "model": str(model), "address": address, "http_port": 1})


def test_a_mapper_counts_its_requests_after_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setitem(inference._process.requests, "bare", asked.append)
    order = {"peer": "bare", "n_rows": 8, "start_s": time.monotonic(), "duration_s": 0.0001}
    found = inference.go(order)
    assert len(asked) == found["n"] + inference._WARM_UP_REQUESTS > inference._WARM_UP_REQUESTS
    assert {rows.shape for rows in asked} == {(8, 256)}
    assert 0 <= found["median_s"] <= found["p99_s"]


def test_rows_have_rates_latencies_and_our_rate_over_the_others() -> None:
    rounds = {
        peer: [Turn(rate * 100.0, 0.001 * rate, 0.002), Turn(rate * 300.0, 0.003 * rate, 0.004)]
        for rate, peer in enumerate(PEERS, 1)
    }
    rows = {row.what: row for row in rows_of("8 rows a request, 1 mapper", rounds, 2)}
    assert len(rows) == 3 * 2 + 2
    rate = rows["rate, 8 rows a request, 1 mapper: accel.infer"]
    assert (rate.value, rate.n, rate.spread, rate.unit) == (200.0, 2, (100.0, 300.0), "rows/s")
    latency = rows["latency, 8 rows a request, 1 mapper: onnxruntime behind HTTP"]
    assert (latency.value, latency.unit, latency.note) == (pytest.approx(6.0), "ms", "p99 3.00 ms")
    over = rows["rate, 8 rows a request, 1 mapper: accel.infer / onnxruntime behind HTTP"]
    assert over.value == pytest.approx(1 / 3)


def test_a_missing_library_is_named_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    inference.require(None)
    monkeypatch.setattr(inference, "_MODULES", ("onnxruntime", "no_such_library"))
    with pytest.raises(StartupError, match=r"not installed: no_such_library: run \./bootstrap\.sh"):
        inference.require(None)
