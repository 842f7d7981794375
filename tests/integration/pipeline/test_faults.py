"""Operations that misbehave, workers that die or hang, full disks, lost DataNodes: one request fails."""

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from tests.integration.pipeline.attackers import footprint, not_at_rest, statistics
from tests.integration.pipeline.bad_operations import FORGERIES, LIES, PATH
from tests.integration.pipeline.conftest import MASTER, ServerProcess
from yarn_accel.client.calls import Call, Reply, Tensor
from yarn_accel.client.client import Client
from yarn_accel.errors import AccelError, StorageError
from yarn_accel.wire.credential import issue

MIB = 1 << 20
#: Longer than a busy machine keeps a healthy worker from answering.
HANG_S = 3.0
X = np.arange(6.0)


@pytest.fixture(scope="module")
def credential():
    return issue(MASTER, "alice", int(time.time()) + 3600, "k1")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One server process with two workers and all bad operations, traced and observed."""
    folder = tmp_path_factory.mktemp("faulty")
    sizes = {"pool_bytes": 256 * MIB, "queue_bytes": 128 * MIB, "max_request_bytes": 32 * MIB}
    watched = {"http_port": 0, "trace_file": str(folder / "trace.json"), "unix_path": str(folder / "socket")}
    workers = {"workers": 2, "standby_workers": 1, "hang_min_s": HANG_S, "quarantine_s": 0.0}
    rights = {"alice": {"read_prefixes": ["file:///"], "write_prefixes": ["file:///"]}}
    options = {**sizes, **watched, **workers, "extra_operations": [PATH], "tenants": rights}
    process = ServerProcess(folder / "server", "w1", **options)
    try:
        process.wait_ready()
        process.data = folder
        yield process
    finally:
        process.stop()


@pytest.fixture
def call(server, credential):
    """A function that makes one call with an array."""
    with Client(server.endpoint, credential) as client:

        def make(operation, params=None, array=X, key=None, **options):
            key = key or f"{operation}-{time.monotonic_ns()}"
            return client.call(Call(key, operation, params or {}, (Tensor.of(array),), **options))

        make.stats = lambda: statistics(server, operator())
        yield make


@pytest.fixture(autouse=True)
def goes_on(server, credential):
    """The same process serves afterwards, with all its workers, and holds no memory."""
    yield
    assert server.process.poll() is None, (server.folder / "log").read_text()[-3000:]
    wait_for_workers(server)
    with Client(server.endpoint, credential) as client:
        reply = client.call(Call(f"life-{time.monotonic_ns()}", "lu", {}, (Tensor.of(np.eye(4)),)))
        assert reply.info["n"] == 4
        until_s = time.monotonic() + 60
        while held := not_at_rest(client.stats()):
            assert time.monotonic() < until_s, held
            time.sleep(0.05)


def operator():
    """The one who sees process ids and faults."""
    return issue(MASTER, "operator", int(time.time()) + 3600, "k1")


def wait_for_workers(server, n_workers=2, timeout_s=120.0):
    with Client(server.endpoint, operator()) as client:
        until_s = time.monotonic() + timeout_s
        while True:
            workers = client.stats()["workers"]
            if (
                sum(each["worker"] >= 0 and each["state"] in ("idle", "busy") for each in workers)
                >= n_workers
            ):
                return workers
            assert time.monotonic() < until_s, workers
            time.sleep(0.05)


# Operations


@pytest.mark.parametrize(
    ("operation", "text"),
    [
        ("raise", "ValueError: boom"),
        ("raise-memory", "memory"),
        *(
            (name, "")
            for name in ("raise-exit", "scribble", "none", "objects", "list", "too-large", "too-many")
        ),
        *((name, "") for name in ("place-too-large", "place-negative", "bad-names", "large-info")),
        ("bad-info", "info"),
    ],
)
def test_an_operation_that_raises_or_returns_nonsense(server, call, operation, text):
    """Its caller gets an error that says what happened; the next caller of the same worker a right answer."""
    try:
        reply = call(f"bad-{operation}")
    except AccelError as error:
        assert text in str(error)
        print(f"{operation}: {error}")
    else:
        # What can be repaired is: an array that is too large is copied, a read-only input is not harmed.
        assert operation in {"scribble", "too-large", "list", "bad-names", "too-many", "bad-info"}, reply
        assert json.dumps(dict(reply.info))
        print(f"{operation}: answered, {list(reply.tensors)[:2]}")
    assert np.array_equal(X, np.arange(6.0))
    assert np.array_equal(only(call("echo")), X)


def only(reply):
    """The single array of an answer."""
    (tensor,) = reply.tensors.values()
    return tensor.array()


@pytest.mark.parametrize("operation", ["bad-segfault", "bad-exit", "bad-close-everything"])
def test_an_operation_that_kills_its_worker_each_time(server, call, operation):
    """Tried on as many workers as configured (2), then an error, all in the log; no worker is missing."""
    before = n_lost(wait_for_workers(server))
    started_s = time.monotonic()
    key = f"{operation}-{time.monotonic_ns()}"
    with pytest.raises(AccelError) as caught:
        call(operation, key=key)
    log = (server.folder / "log").read_text().splitlines()
    said = [line.partition(f" request {key} ({operation}, tenant alice) ")[2] for line in log if key in line]
    assert [text.partition(":")[0] for text in said] == ["lost its worker process"] * 2 + ["failed"]
    print(f"{operation}: {caught.value} after {time.monotonic() - started_s:.2f} s")
    assert "worker" in str(caught.value)
    assert n_lost(wait_for_workers(server)) == before + 2


def n_lost(workers):
    return sum(each.get("n_lost", 0) for each in workers)


def test_a_crash_costs_one_worker_whose_place_the_standby_takes(server, call, tmp_path, wait_until):
    """The request is computed by another worker; no process has to be started for it."""
    wait_for_workers(server)

    def pids(*states):
        return {each["pid"] for each in call.stats()["workers"] if each["state"] in states}

    wait_until(lambda: pids("standby"), "somebody stands by")
    before, (standby,) = pids("idle", "busy"), pids("standby")
    started_s = time.monotonic()
    reply = call("bad-segfault", {"marker": str(tmp_path / "crashed")})
    answered_s = time.monotonic() - started_s
    wait_for_workers(server)
    replaced_s = time.monotonic() - started_s
    assert np.array_equal(only(reply), X + 1)
    print(f"answered after {answered_s:.3f} s, worker replaced after {replaced_s:.3f} s")
    assert pids("idle", "busy") - before == {standby}


@pytest.mark.parametrize("carrier", ["tcp", "unix", "memfd"])
def test_a_crash_after_the_inputs_were_destroyed(server, credential, tmp_path, carrier):
    """The client sends them again by itself, and the answer is that of what the user gave."""
    data = np.arange(100_000.0) if carrier == "memfd" else X
    node = "elsewhere" if carrier == "tcp" else None
    with Client(server.endpoint, credential, node=node) as client:
        params = {"marker": str(tmp_path / "crashed")}
        reply = client.call(
            Call(f"d{time.monotonic_ns()}", "bad-segfault-after-writing", params, (Tensor.of(data),))
        )
        assert np.array_equal(only(reply), np.arange(float(len(data))) + 1)
    assert (tmp_path / "crashed").exists()


@pytest.mark.parametrize("operation", ["bad-hang", pytest.param("bad-spin", marks=pytest.mark.slow)])
def test_an_operation_that_never_ends(server, credential, call, operation):
    """The watchdog replaces its workers; meanwhile the other worker serves."""
    failure = []

    def hang():
        with Client(server.endpoint, credential) as client:
            try:
                client.call(Call(f"h{time.monotonic_ns()}", operation, {}, (Tensor.of(X),)))
            except AccelError as error:
                failure.append(error)

    thread = threading.Thread(target=hang)
    started_s = time.monotonic()
    thread.start()
    time.sleep(0.2)
    n_served = 0
    while thread.is_alive():
        call("echo")
        n_served += thread.is_alive()
        assert time.monotonic() < started_s + 120, "it was never notified"
        time.sleep(0.05)
    thread.join()
    took_s = time.monotonic() - started_s
    print(f"{operation}: {failure[0]} after {took_s:.1f} s; {n_served} other calls meanwhile")
    assert "worker" in str(failure[0])
    assert took_s >= HANG_S, "it had its time"
    assert n_served >= 3, "nobody waited for it"


@pytest.mark.parametrize("lie", [*LIES, "x" * 30000], ids=range(len(LIES) + 1))
def test_a_worker_that_talks_nonsense(server, call, lie):
    """The server believes nothing that cannot be true: at worst the worker is replaced."""
    try:
        reply = call("bad-lie", {"text": lie, "times": 1})
    except AccelError as error:
        print(f"{lie[:20]!r}: {error}")
    else:
        assert np.array_equal(only(reply), X)


#: The others take another minute.
_SOME_FORGERIES = ("no change", "two answers", "another job", "unknown layout", "not a number")
_SOME_FORGERIES += ("a bit further", "far away", "another segment", "cut short")
_FORGERIES = FORGERIES if os.environ.get("YARN_ACCEL_LONG") else _SOME_FORGERIES


@pytest.mark.parametrize("what", _FORGERIES)
def test_a_worker_that_forges_its_answer(server, call, what):
    """An answer that cannot be true is believed by nobody; figures stay figures."""
    try:
        reply = call("bad-forge", {"what": what})
    except AccelError as error:
        print(f"{what}: {error}")
        assert what != "no change"
    else:
        found = [tensor.array() for tensor in reply.tensors.values()]
        assert all(np.array_equal(array, X) for array in found)
        assert 0 <= reply.seconds["compute"] < 10
    stats = call.stats()
    seconds = [stats["stage_busy"]["compute"], stats["tenants"]["alice"]["device_s"]]
    seconds += [stats["stage_seconds"]["compute"], *(each["busy_s"] for each in stats["workers"])]
    assert all(0 <= value < 3600 for value in seconds), seconds


def test_misbehaviour_leaves_nothing_behind(server, credential, call, wait_until):
    """After 60 errors and 6 lost workers the server is as large as before."""
    wait_until(server.has_loaded_all, "it has loaded all")
    before = footprint(server.process.pid)
    for number in range(60):
        with pytest.raises(AccelError):
            call(("bad-raise", "bad-none", "bad-objects")[number % 3])
    for _ in range(3):
        with pytest.raises(AccelError):
            call("bad-segfault")
        wait_for_workers(server)

    def is_small_again():
        now = footprint(server.process.pid)
        return now.n_fds <= before.n_fds + 12 and now.n_threads <= before.n_threads + 6

    wait_until(is_small_again, f"as few descriptors and threads as before: {before}")
    after = footprint(server.process.pid)
    assert after.own_bytes - before.own_bytes < 16 * MIB, (before, after)


# Workers


def worker_pids(call):
    return [each["pid"] for each in call.stats()["workers"] if each["worker"] >= 0]


def test_all_workers_killed_under_load(server, credential, call):
    """Every answer is right, and every call has exactly one."""
    n_calls, answered = 300, {}
    pids = worker_pids(call)
    with Client(server.endpoint, credential) as client:
        calls = [
            Call(f"l{time.monotonic_ns()}-{at}", "gemm", {}, (Tensor.of(np.full((60, 60), float(at))),) * 2)
            for at in range(n_calls)
        ]
        for at, (done, outcome) in enumerate(client.map(calls, window=16)):
            assert done.key not in answered
            answered[done.key] = outcome
            a = done.inputs[0].array()
            assert isinstance(outcome, Reply), outcome
            assert np.array_equal(only(outcome), a @ a)
            if at == 50:
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
    assert len(answered) == n_calls
    assert not set(pids) & set(worker_pids(call))


def test_stopped_workers_are_stuck_and_replaced(server, credential, call):
    """SIGSTOP stands for a device that does not answer."""
    pids = worker_pids(call)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    assert np.array_equal(only(call("echo")), X)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


# Storage


@pytest.fixture
def full_disk(tmp_path):
    """A file system with 1 MiB; needs the right to mount."""
    folder = tmp_path / "full"
    folder.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"cannot mount a small tmpfs: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)


def test_a_full_disk_at_remote_write(server, call, full_disk):
    """The request fails with what happened, leaves no partial file, and works when there is space."""
    large = np.random.default_rng(1).standard_normal((500, 500))
    with pytest.raises(StorageError) as caught:
        call("echo", array=large, output_uri=f"file://{full_disk}/a/x.npz")
    print(caught.value)
    assert re.search("no space|ENOSPC|space left", str(caught.value), re.IGNORECASE)
    left = [path for path in full_disk.rglob("*") if path.is_file() and path.stat().st_size]
    assert left == []
    small = call("echo", output_uri=f"file://{full_disk}/a/y.npz")
    assert small.tensors == {}
    with np.load(full_disk / "a" / "y.npz") as found:
        assert np.array_equal(next(iter(found.values())), X)


@pytest.mark.hadoop
@pytest.mark.root
@pytest.mark.slow
def test_an_unreachable_datanode_at_remote_write(spawn_server, hadoop_cluster, credential):
    """With one DataNode cut off the write goes to the others, or fails as transient: never half a file."""
    from yarn_accel.storage import Store

    store = Store(hadoop_cluster.conf_dir)
    server = spawn_server(
        "w9",
        workers=1,
        hdfs_conf_dir=str(hadoop_cluster.conf_dir),
        tenants={"alice": {"read_prefixes": ["hdfs:///"], "write_prefixes": ["hdfs:///"]}},
    ).wait_ready()
    data = np.random.default_rng(1).standard_normal((500, 500))
    outcomes = []
    node = hadoop_cluster.plan.workers[-1].name
    hadoop_cluster.cut(node)
    try:
        with Client(server.endpoint, credential, timeout_s=180) as client:
            for number in range(6):
                uri = f"hdfs:///tmp/cut/{number}.npz"
                try:
                    client.call(Call(f"cut{number}", "echo", {}, (Tensor.of(data),), uri))
                    outcomes.append((uri, None))
                except StorageError as error:
                    outcomes.append((uri, error))
            assert client.call(Call("alive", "echo", {}, (Tensor.of(X),))).server == "w9"
    finally:
        hadoop_cluster.heal(node)
    for uri, error in outcomes:
        if error is not None:
            assert error.transient, error
            assert not store.exists(uri)
        else:
            assert store.size(uri) > data.nbytes
    print(f"{sum(error is None for _, error in outcomes)} of 6 written with {node} cut off")
    store.delete("hdfs:///tmp/cut")


# To look at


def ask(server, path):
    port = json.loads(server.state_file.read_text())["http_port"]
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=300) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_metrics_and_health_of_the_running_server(server, call):
    call("lu", array=np.eye(50))
    status, text = ask(server, "/healthz")
    assert (status, json.loads(text)["ok"]) == (200, True), text
    status, text = ask(server, "/metrics")
    assert status == 200
    figures = dict(line.rsplit(" ", 1) for line in text.splitlines() if line and line[0] != "#")
    figures = {name.removeprefix("yarn_accel_pipeline_"): float(value) for name, value in figures.items()}
    assert figures['operation_requests_total{operation="lu",outcome="done"}'] >= 1
    assert figures['tenant_requests_total{tenant="alice"}'] >= 1
    assert figures["pool_bound_bytes"] == 256 * MIB
    assert figures['stage_busy_seconds_total{stage="compute"}'] > 0
    assert any(name.startswith("worker_busy_seconds_total{") for name in figures)
    assert any(name.startswith("request_seconds_bucket{") for name in figures)


def test_top_of_the_running_server(server, call):
    call("lu", array=np.eye(50))
    shown = server.command("top", "--once", "--interval", "0.3")
    assert shown.returncode == 0, shown.stderr
    print(shown.stdout)
    for word in ("w1", "pool", "compute", "alice", "lu", "cpu"):
        assert word in shown.stdout


def spans_of(server):
    """The trace so far; a part of it may be on its way into the file just then."""
    text = Path(server.data / "trace.json").read_text()
    try:
        return [event for event in json.loads(text + "]") if event["ph"] == "X"]
    except ValueError:
        return []


def times_of(spans):
    """When each of these began and ended."""
    return [(span["ts"], span["ts"] + span["dur"]) for span in spans]


def test_the_trace_shows_the_stages_overlapping(server, credential, wait_until):
    """While one request is computed, others are received and sent."""
    arrays = [np.random.default_rng(n).standard_normal((500, 500)) for n in range(4)]
    with Client(server.endpoint, credential, node="elsewhere") as client:
        calls = [
            Call(f"t{time.monotonic_ns()}-{n}", "qr", {}, (Tensor.of(arrays[n % 4]),)) for n in range(12)
        ]
        for _, outcome in client.map(calls, window=6):
            assert isinstance(outcome, Reply)
    computing, reading = [], []

    def are_all_notified():
        spans = spans_of(server)
        computing[:] = times_of(s for s in spans if s["cat"] == "compute" and s["name"] == "qr")
        reading[:] = times_of(s for s in spans if s["cat"] == "read")
        return len(computing) >= 12 and {s["cat"] for s in spans} >= {"read", "compute", "write"}

    wait_until(are_all_notified, "all stages of all requests are in the file")
    assert any(r[0] < c[1] and c[0] < r[1] for r in reading for c in computing), "reading while computing"
