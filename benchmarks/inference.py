"""An ONNX model by ``accel.infer``, in the mapper's process, and behind plain HTTP: rates and latencies.

All peers are up at once and take their turns in each round. A mapper is a process with one request under way.
"""

from __future__ import annotations

import asyncio
import http.client
import importlib.util
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pipeline.fleet import Child
from benchmarks.pipeline.setting import OwnServer
from benchmarks.result import Report, Row, measured, ratio
from yarn_accel.client import Binding, connect
from yarn_accel.client.binding import Endpoint
from yarn_accel.errors import StartupError
from yarn_accel.wire.credential import issue

PEERS = ("ours", "bare", "http")
ROWS = (1, 8, 64)
N_MAPPERS = (1, 4)
_WIDTHS = (256, 512, 512, 128)
_NODE = "here"
_LEAD_S = 0.05
_PATIENCE_S = 60.0
_ANSWER_LIMIT_S = 120.0
_WARM_UP_REQUESTS = 5
_MODULES = ("aiohttp", "onnx", "onnxruntime")
_TEXT = {
    "ours": "accel.infer",
    "bare": "onnxruntime in the mapper",
    "http": "onnxruntime behind HTTP",
}


def require(_path: Path | None) -> None:
    """Refuse at once where a library is missing.

    Raises:
        StartupError: with the cure.
    """
    missing = [name for name in _MODULES if importlib.util.find_spec(name) is None]
    if missing:
        raise StartupError(
            f"not installed: {', '.join(missing)}", cure="run ./bootstrap.sh yarn,inference,dev"
        )


def run(quick: bool, say: Callable[[str], None], report: Report) -> None:
    """Measure every number of rows and mappers."""
    n_rounds, duration_s = (2, 0.3) if quick else (5, 2.0)
    n_cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="inference-") as name, ExitStack() as up:
        folder = Path(name)
        model = folder / "model.onnx"
        write_model(model)
        tenants = {"bench": {"read_prefixes": [folder.as_uri()]}}
        server = up.enter_context(OwnServer(folder / "server", workers=n_cores, tenants=tenants))
        plain = up.enter_context(Child("inference", "http", folder / "http.log"))
        port = plain.ask({"act": "serve", "model": str(model), "n_threads": n_cores})["port"]
        mappers = [
            up.enter_context(Child("inference", str(at), folder / f"mapper-{at}.log"))
            for at in range(max(N_MAPPERS))
        ]
        order = {"act": "prepare", "model": str(model), "address": server.address, "http_port": port}
        _ask(mappers, order)
        for n_mappers in N_MAPPERS:
            for n_rows in ROWS:
                what = f"{n_rows} rows a request, {n_mappers} mapper{'s' * (n_mappers > 1)}"
                say(what)
                rounds: dict[str, list[Turn]] = {peer: [] for peer in PEERS}
                for _ in range(n_rounds):
                    for peer in PEERS:
                        rounds[peer].append(_turn(mappers[:n_mappers], peer, n_rows, duration_s))
                report.add(rows_of(what, rounds, n_cores))


def write_model(path: Path) -> None:
    """A small network of three dense layers: 0.46 million weights, the same ones each time."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(36)
    nodes, weights = [], []
    pairs = list(pairwise(_WIDTHS))
    for at, (n_in, n_out) in enumerate(pairs):
        values = (random.standard_normal((n_in, n_out)) / n_in**0.5).astype(np.float32)
        weights.append(numpy_helper.from_array(values, f"w{at}"))
        nodes.append(helper.make_node("MatMul", [f"x{at}", f"w{at}"], [f"t{at}"]))
        nodes.append(helper.make_node("Relu", [f"t{at}"], [f"x{at + 1}"]))
    given, made = (
        helper.make_tensor_value_info(f"x{at}", TensorProto.FLOAT, ["rows", width])
        for at, width in ((0, _WIDTHS[0]), (len(pairs), _WIDTHS[-1]))
    )
    graph = helper.make_graph(nodes, "dense", [given], [made], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


# Turns


@dataclass(frozen=True, slots=True)
class Turn:
    """What all mappers measured with one peer in one round.

    Attributes:
        median_s, p99_s: of a request; the median over the mappers.
    """

    rows_per_s: float
    median_s: float
    p99_s: float


def _ask(mappers: Sequence[Child], order: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    for mapper in mappers:
        mapper.tell(order)
    return [mapper.hear(_ANSWER_LIMIT_S) for mapper in mappers]


def _turn(mappers: Sequence[Child], peer: str, n_rows: int, duration_s: float) -> Turn:
    start_s = time.monotonic() + _LEAD_S
    order = {"act": "go", "peer": peer, "n_rows": n_rows, "start_s": start_s, "duration_s": duration_s}
    answers = _ask(mappers, order)
    wall_s = max(answer["end_s"] for answer in answers) - start_s
    median_s, p99_s = (statistics.median(answer[key] for answer in answers) for key in ("median_s", "p99_s"))
    return Turn(n_rows * sum(answer["n"] for answer in answers) / wall_s, median_s, p99_s)


def rows_of(what: str, rounds: Mapping[str, Sequence[Turn]], n_cores: int) -> Iterator[Row]:
    """Rate and latency of each peer, and our rate over that of each other one."""
    rates = {peer: [turn.rows_per_s for turn in turns] for peer, turns in rounds.items()}
    for peer, turns in rounds.items():
        threads = "one thread a mapper" if peer == "bare" else f"{n_cores} at once on the server"
        p99_ms = 1e3 * statistics.median(turn.p99_s for turn in turns)
        latencies = [1e3 * turn.median_s for turn in turns]
        yield measured(f"rate, {what}: {_TEXT[peer]}", rates[peer], "rows/s", note=threads)
        yield measured(f"latency, {what}: {_TEXT[peer]}", latencies, "ms", note=f"p99 {p99_ms:.2f} ms")
    for peer in PEERS[1:]:
        yield ratio(f"rate, {what}: {_TEXT['ours']} / {_TEXT[peer]}", rates["ours"], rates[peer])


# In the processes of the mappers and of the HTTP server


Request = Callable[[Any], Any]
"""Rows in, predictions out; float32 both."""


@dataclass
class _Process:
    """What a process of this benchmark keeps between orders."""

    requests: dict[str, Request] = field(default_factory=dict)
    resources: ExitStack = field(default_factory=ExitStack)


_process = _Process()


def serve(order: Mapping[str, Any]) -> Mapping[str, Any]:
    """Serve a model by HTTP on this machine: ``POST /`` with rows as float32 gives predictions likewise."""
    listening = threading.Event()
    ports: list[int] = []

    async def main() -> None:
        from aiohttp import web

        session = bare_session(order["model"])
        pool = ThreadPoolExecutor(order["n_threads"])

        async def answer(request: web.Request) -> web.Response:
            rows = np.frombuffer(await request.read(), np.float32).reshape(-1, _WIDTHS[0])
            found = await asyncio.get_running_loop().run_in_executor(pool, session, rows)
            return web.Response(body=found.tobytes())

        app = web.Application()
        app.router.add_post("/", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ports.append(runner.addresses[0][1])
        listening.set()
        await asyncio.Event().wait()

    threading.Thread(target=asyncio.run, args=(main(),), daemon=True).start()
    if not listening.wait(_PATIENCE_S):
        raise StartupError("the HTTP server does not listen", cure="see its log")
    return {"port": ports[0]}


def bare_session(model: str) -> Request:
    """A model in this process; each run takes one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    return lambda rows: session.run(None, {given.name: rows})[0]


def http_request(port: int, resources: ExitStack) -> Request:
    """A client of `serve` by one connection that stays."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE_S)
    resources.callback(connection.close)

    def ask(rows: Any) -> Any:
        connection.request("POST", "/", rows.tobytes())
        response = connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise StartupError(f"the HTTP server answers {response.status}")
        return np.frombuffer(body, np.float32).reshape(len(rows), -1)

    return ask


def _our_request(model: str, address: Mapping[str, Any], resources: ExitStack) -> Request:
    master = bytes.fromhex(Path(address["secret"]).read_text(encoding="utf-8"))
    credential = issue(master, "bench", int(time.time()) + 24 * 3600, f"mapper-{os.getpid()}")
    binding = Binding((Endpoint("bench", "127.0.0.1", address["port"], address["unix"], _NODE),))
    accel = resources.enter_context(
        connect("hadoop", binding=binding, credential=credential, fallback=False, environ={"NM_HOST": _NODE})
    )
    uri = Path(model).as_uri()
    return lambda rows: accel.infer(uri, rows).outputs[f"x{len(_WIDTHS) - 1}"]


def prepare(order: Mapping[str, Any]) -> Mapping[str, Any]:
    """Connect to all peers, and see that they give the same predictions."""
    requests, resources = _process.requests, _process.resources
    requests["bare"] = bare_session(order["model"])
    requests["http"] = http_request(order["http_port"], resources)
    requests["ours"] = _our_request(order["model"], order["address"], resources)
    rows = _rows(max(ROWS))
    expected = requests["bare"](rows)
    for peer in PEERS:
        if not np.allclose(requests[peer](rows), expected, rtol=1e-4, atol=1e-5):
            raise StartupError(f"{_TEXT[peer]} gives other predictions than onnxruntime")
    return {}


def _rows(n: int) -> Any:
    return np.random.default_rng(os.getpid()).standard_normal((n, _WIDTHS[0])).astype(np.float32)


def go(order: Mapping[str, Any]) -> Mapping[str, Any]:
    """One request after the other from a moment on, at least one."""
    request, rows = _process.requests[order["peer"]], _rows(order["n_rows"])
    for _ in range(_WARM_UP_REQUESTS):
        request(rows)
    time.sleep(max(0.0, order["start_s"] - time.monotonic()))
    times_s = []
    now_s = time.monotonic()
    until_s = now_s + order["duration_s"]
    while now_s < until_s:
        request(rows)
        then_s, now_s = now_s, time.monotonic()
        times_s.append(now_s - then_s)
    times_s.sort()
    p99_s = times_s[int(0.99 * (len(times_s) - 1))]
    return {"n": len(times_s), "end_s": now_s, "median_s": statistics.median(times_s), "p99_s": p99_s}


ACTS: Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {
    "serve": serve,
    "prepare": prepare,
    "go": go,
}
