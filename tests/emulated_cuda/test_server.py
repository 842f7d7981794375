"""A pipeline server whose workers compute on two emulated GPUs, each with the real CuPy."""
# ruff: noqa: F811 -- fixtures are imported

import json
import os
import re
import signal
import threading
import time
from itertools import repeat

import numpy as np
import pytest

from benchmarks.gpu.overlap import overlap_of
from benchmarks.gpu.traced import PREFIX, STAGES_KEY
from benchmarks.pipeline.setting import calls, replies
from tests.emulated_cuda.asking import N_CLIENTS, ask
from tests.emulated_cuda.bad_operations import PATH
from tests.emulated_cuda.build import UUIDS
from tests.fixtures.fake_nvml import GpuRow
from tests.fixtures.waiting import until
from tests.integration.pipeline.conftest import credential, start_server  # noqa: F401 -- fixtures
from tests.unit.operations.linear import general
from yarn_accel.client.calls import Call, Tensor
from yarn_accel.client.client import Client
from yarn_accel.client.dispatch import Dispatcher
from yarn_accel.errors import AccelError, RejectedError
from yarn_accel.pipeline.workers.measuring import PROBLEMS

INVALID, MEMORY, ECC, ILLEGAL_ADDRESS, LAUNCH_FAILURE, UNKNOWN = 1, 2, 214, 700, 719, 999


@pytest.fixture
def gpu_server(start_server, eight_gpus, monkeypatch, tmp_path):
    """``gpu_server(...)`` starts one; ``gpu_server.faults(...)`` has calls of its GPUs fail from then on."""
    faults = tmp_path / "faults"
    faults.touch()
    monkeypatch.setenv("EMULATED_CUDA_FAULTS", str(faults))
    eight_gpus.gpus = [GpuRow(index, uuid) for index, uuid in enumerate(UUIDS)]
    eight_gpus.parts = []
    eight_gpus.write()

    def start(devices=("cuda:0", "cuda:1"), **settings):
        return start_server(devices=devices, **settings)

    def fail(*lines):
        fresh = tmp_path / "faults.new"
        fresh.write_text("".join(f"{UUIDS[gpu]} {call} {error}\n" for gpu, call, error in lines))
        fresh.rename(faults)

    start.faults = fail
    return start


@pytest.fixture
def two_gpus(gpu_server):
    return gpu_server()


def states(server):
    return {row["device"]: row["state"] for row in server.stats()["workers"]}


def both_at_work(server, credential):
    """Wait until both GPUs have answered."""
    seen, deadline_s = set(), time.monotonic() + 120
    while seen != {"cuda:0", "cuda:1"}:
        assert time.monotonic() < deadline_s, (seen, server.stats()["workers"])
        devices, codes = ask(server, credential, 10_000 * int(time.monotonic()), 2)
        assert codes == []
        seen |= devices


def test_many_at_a_time_use_both_and_each_gets_its_own(two_gpus, credential):
    both_at_work(two_gpus, credential)
    devices, codes = ask(two_gpus, credential, 0, 25)
    assert devices <= {"cuda:0", "cuda:1"}
    assert codes == []


def test_one_is_copied_in_and_another_out_while_a_third_is_computed(gpu_server, credential, monkeypatch):
    """Requests that are too large to share a batch: each is in a lane of its own."""
    # Each copy takes a while, however busy the machine is.
    monkeypatch.setenv("EMULATED_CUDA_DELAY_US", "20000")
    server = gpu_server(devices=("cuda:0",), extra_operations=("benchmarks.gpu.traced:OPERATIONS",))
    tensor = Tensor.of(general((700, 700)))
    with Client(server.endpoint, credential) as client:
        for _ in range(40):
            work = calls(f"{PREFIX}lu", {}, repeat(tensor, 8))
            trace = [reply.info[STAGES_KEY] for reply in replies(client, work, 8)]
            if overlap_of(trace).all_three:
                return
    pytest.fail("never all three at a time")


def test_matrices_above_256_kib_travel_in_packs_and_are_computed_together(gpu_server, credential):
    server = gpu_server(devices=("cuda:0",))
    given = [general((200, 200), seed=seed) for seed in range(30)]
    with Dispatcher([server.endpoint], credential) as dispatcher:
        dispatcher.outcome(Call("first", "lu", {}, (Tensor.of(given[0]),)))
        before = server.stats()["done"]
        work = (Call(f"{i}", "lu", {"form": "separate"}, (Tensor.of(a),), tag=i) for i, a in enumerate(given))
        found = {call.tag: outcome.arrays() for call, outcome in dispatcher.map(work, pack="auto")}
    assert server.stats()["done"] - before == 2, "by 26 and 4: 8 MiB hold 26"
    for i, a in enumerate(given):
        found_a = found[i]["l"] @ found[i]["u"]
        rows = np.arange(200)
        for row, other in enumerate(found[i]["piv"]):
            rows[[row, other]] = rows[[other, row]]
        np.testing.assert_allclose(found_a, a[rows], atol=1e-12)


def test_two_workers_share_each_gpu(gpu_server, credential):
    server = gpu_server(workers_per_gpu=2)
    seen, deadline_s = [], time.monotonic() + 120
    while seen != [("cuda:0", True), ("cuda:0", True), ("cuda:1", True), ("cuda:1", True)]:
        assert time.monotonic() < deadline_s, seen
        assert ask(server, credential, 10_000 * int(time.monotonic()), 2)[1] == []
        rows = [row for row in server.stats()["workers"] if row["worker"] >= 0]
        seen = sorted((row["device"], row["n_jobs"] > 0) for row in rows)


def test_the_standby_of_the_only_gpu_takes_over_with_its_context(gpu_server, credential):
    server = gpu_server(devices=("cuda:0",), standby_workers=1)

    def pids(is_standby):
        rows = [row for row in server.stats()["workers"] if (row["state"] == "standby") == is_standby]
        return [row["pid"] for row in rows if row["device"] == "cuda:0"]

    until(lambda: pids(True), "a standby that is ready")
    (first,), (standby,) = pids(False), pids(True)
    os.kill(first, signal.SIGKILL)
    until(lambda: pids(False) == [standby], "the standby has its place")
    assert ask(server, credential, 0, 5) == ({"cuda:0"}, [])


def test_bad_input_is_the_requests_own_fault(two_gpus, credential):
    matrix = general((30, 30))
    matrix[3, 4] = np.nan
    with Client(two_gpus.endpoint, credential) as client, pytest.raises(AccelError) as caught:
        client.call(Call("k", "lu", {}, (Tensor.of(matrix),)))
    assert caught.value.code == "not-finite"
    assert "quarantined" not in states(two_gpus).values()


@pytest.mark.parametrize("in_library", [False, True], ids=["seen by CUDA", "seen by cuSOLVER"])
@pytest.mark.parametrize("error", [ILLEGAL_ADDRESS, LAUNCH_FAILURE, UNKNOWN])
def test_a_request_that_breaks_its_process_costs_nobody_else(gpu_server, credential, error, in_library):
    """It is tried with a second process, then rejected; no GPU rests, and all others get their results."""
    server = gpu_server(quarantine_s=600.0, extra_operations=(PATH,), probe_gpus=False)
    both_at_work(server, credential)
    before = {row["pid"] for row in server.stats()["workers"] if row["device"]}
    params = {"error": error, "in_library": in_library}
    others = []
    asking = threading.Thread(target=lambda: others.append(ask(server, credential, 10**6, 20)))
    asking.start()
    with Client(server.endpoint, credential) as client:
        for key in ("bad", "bad", "worse"):
            with pytest.raises(RejectedError) as caught:
                client.call(Call(key, "break-gpu", params, (Tensor.of(general((9, 9))),)))
            assert caught.value.code == "gpu-failed"
            assert "this request was with 2 workers" in caught.value.message
            assert ("CUDA: " in caught.value.message) == in_library
    asking.join()
    assert [codes for _, codes in others] == [[]]
    assert "quarantined" not in states(server).values()
    both_at_work(server, credential)
    now = {row["pid"] for row in server.stats()["workers"] if row["device"]}
    n_lost = sum(row["n_lost"] for row in server.stats()["workers"] if row["device"])
    assert (n_lost, now != before) == (4, True), "two processes for each of the two bad requests"


def test_a_sick_device_that_only_cusolver_noticed_rests(gpu_server, credential):
    server = gpu_server(quarantine_s=600.0, extra_operations=(PATH,), probe_gpus=False)
    both_at_work(server, credential)
    call = Call("k", "break-gpu", {"error": ECC, "in_library": True}, (Tensor.of(general((9, 9))),))
    with Client(server.endpoint, credential) as client, pytest.raises(AccelError) as caught:
        client.call(call)
    assert caught.value.code == "unavailable", "so it goes elsewhere"
    until(lambda: "quarantined" in states(server).values(), "a GPU that rests")


@pytest.mark.parametrize(
    ("call", "error"),
    [("launch", ECC), ("launch", ILLEGAL_ADDRESS), ("launch", LAUNCH_FAILURE), ("any", UNKNOWN)],
)
def test_a_gpu_that_goes_on_failing_rests(gpu_server, credential, call, error):
    """A sick one at once; where a new process may be well, after it has failed different requests."""
    server = gpu_server(quarantine_s=600.0)
    both_at_work(server, credential)
    gpu_server.faults((0, call, error))
    codes, begun = [], 0
    deadline_s = time.monotonic() + 240
    while states(server)["cuda:0"] != "quarantined":
        assert time.monotonic() < deadline_s, server.stats()["workers"]
        begun += 1
        codes += ask(server, credential, 10**8 * begun, 10, 300)[1]
    assert set(codes) <= {"unavailable", "gpu-failed"}
    # Who fails twice in a row on the sick GPU cannot know better.
    assert codes.count("gpu-failed") <= 2
    assert len(codes) <= N_CLIENTS * (1 if error == ECC else 3), "only what was on it failed"
    gpu_server.faults()
    assert ask(server, credential, 2 * 10**6, 5) == ({"cuda:1"}, []), "it rests"


def test_what_the_library_refuses_is_the_requests_own(gpu_server, credential):
    """No process is replaced for it, and no GPU rests."""
    server = gpu_server(quarantine_s=600.0)
    both_at_work(server, credential)
    pids = {row["pid"] for row in server.stats()["workers"] if row["device"]}
    gpu_server.faults((0, "copy", INVALID), (1, "copy", INVALID))
    _, codes = ask(server, credential, 10**6, 5)
    assert set(codes) == {"gpu-refused"}
    gpu_server.faults()
    assert ask(server, credential, 2 * 10**6, 5)[1] == []
    assert {row["pid"] for row in server.stats()["workers"] if row["device"]} == pids


def test_a_gpu_that_failed_comes_back(gpu_server, credential):
    server = gpu_server(quarantine_s=1.0)
    both_at_work(server, credential)
    gpu_server.faults((1, "launch", LAUNCH_FAILURE))
    ask(server, credential, 10**6, 10, 300)
    gpu_server.faults()
    both_at_work(server, credential)


def test_memory_that_is_short_rests_no_gpu(gpu_server, credential):
    server = gpu_server(quarantine_s=600.0)
    both_at_work(server, credential)
    gpu_server.faults((0, "malloc", MEMORY))
    devices, codes = ask(server, credential, 10**6, 10, 300)
    assert "cuda:1" in devices
    assert set(codes) <= {"unavailable", "out-of-memory"}
    assert "quarantined" not in states(server).values()
    gpu_server.faults()
    both_at_work(server, credential)


TOTAL_MIB = 2048


def held_by_others(gpu_server, n_free_mib):
    gpu_server.faults(*((gpu, "held", TOTAL_MIB - n_free_mib) for gpu in (0, 1)))


def test_memory_that_others_use_is_waited_for(gpu_server, credential):
    server = gpu_server(gpu_memory_wait_s=240.0)
    both_at_work(server, credential)
    held_by_others(gpu_server, 24)
    found = []
    asking = threading.Thread(target=lambda: found.append(ask(server, credential, 10**6, 1, 2000)))
    asking.start()
    until(lambda: {states(server)[name] for name in ("cuda:0", "cuda:1")} == {"busy"}, "both at work")
    assert found == []
    gpu_server.faults()
    asking.join()
    assert [codes for _, codes in found] == [[]]
    assert "quarantined" not in states(server).values()


def test_memory_that_others_keep_is_named_with_figures_and_small_requests_go_on(gpu_server, credential):
    server = gpu_server(gpu_memory_wait_s=0.2)
    both_at_work(server, credential)
    held_by_others(gpu_server, 24)
    with Client(server.endpoint, credential) as client:
        with pytest.raises(AccelError) as caught:
            client.call(Call("large", "lu", {}, (Tensor.of(general((2000, 2000))),)))
        assert caught.value.transient, "another server or a CPU may take it"
        figures = r"needs at least \d+ MiB .* 24 MiB are free, other processes hold 2024 MiB"
        assert re.search(figures, str(caught.value))
        client.call(Call("small", "lu", {}, (Tensor.of(general((20, 20))),)))
    gpu_server.faults()
    assert ask(server, credential, 10**6, 2, 2000)[1] == []


def test_each_gpu_is_measured(gpu_server, tmp_path):
    found = tmp_path / "calibration.json"
    gpu_server(calibrate=True, calibration_file=str(found))
    until(lambda: found.exists() and len(json.loads(found.read_text())) == len(UUIDS), "all are measured")
    for measured in json.loads(found.read_text()).values():
        assert {operation for operation, *_ in measured} == {name for name, _ in PROBLEMS}
