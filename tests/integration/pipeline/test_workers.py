"""Worker processes that are real: what they compute, and how they are lost and replaced."""

from __future__ import annotations

import mmap
import os
import signal
import threading
import time
from collections import namedtuple
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.fixtures.fake_nvml import LOST
from tests.fixtures.waiting import until
from yarn_accel.core.requests.records import EXPIRED
from yarn_accel.pipeline.config import PipelineConfig
from yarn_accel.pipeline.loop import EventLoop
from yarn_accel.pipeline.supervisor import WorkerSupervisor, has_places, problems_of
from yarn_accel.pipeline.workers.protocol import Area, Job, Lost
from yarn_accel.wire import TensorSpec

ROOT = Path(__file__).resolve().parents[3]
FAULTY = "tests.unit.pipeline.workers.faulty:OPERATIONS"
VECTOR = TensorSpec("<f8", (16,))
OUTPUT = 4096
PATIENCE_S = 60.0
#: Longer than a busy machine keeps a healthy worker from beginning what it was sent.
HANG_S = 3.0


class Segment:
    """A piece of shared memory as the server's pool makes it."""

    def __init__(self, number, n_bytes=1 << 16):
        self.id = number
        self.n_bytes = n_bytes
        self.fd = os.memfd_create("test-segment", os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, n_bytes)
        self.memory = mmap.mmap(self.fd, n_bytes)

    def array(self, area):
        spec = area.spec
        return np.ndarray(spec.shape, spec.dtype, self.memory, area.offset, order=spec.order)


WorkerUp = namedtuple("WorkerUp", "worker device device_kind")


WorkerDown = namedtuple("WorkerDown", "worker device reason lost detail")


class Pool:
    """The supervisor in a loop of its own, asked from the test's thread."""

    def __init__(self, config, owner):
        self.loop = EventLoop()
        self.owner = owner
        self.supervisor = WorkerSupervisor(config, self.loop, owner.segments.__getitem__, owner)
        self._thread = threading.Thread(target=self._run)
        self._is_closed = False

    def start(self):
        self._thread.start()

    def _run(self):
        self.supervisor.start()
        self.loop.run()

    def send(self, worker, jobs, expected_s=0.0):
        process = self.owner.processes[worker]
        return self.loop.ask(lambda: process.send(jobs, expected_s), PATIENCE_S)

    def drop_segment(self, segment):
        for process in self.owner.processes.values():
            self.loop.ask(partial(process.drop, segment), PATIENCE_S)

    def info(self):
        return self.loop.ask(self.supervisor.info, PATIENCE_S)

    def close(self):
        if not self._is_closed:
            self._is_closed = True
            self.loop.stop()
            self._thread.join()
            self.supervisor.close()
            self.loop.close()


class Owner:
    """A server reduced to what workers see of it."""

    def __init__(self, **settings):
        self.segments, self.processes, self.answers = {}, {}, {}
        self.ups, self.downs, self.found, self.batches = [], [], [], []
        self._news = threading.Condition()
        defaults = {"workers": 1, "calibrate": False, "extra_operations": (FAULTY,)}
        config = PipelineConfig(master_secret_file=Path("/none"), **{**defaults, **settings})
        self.pool = Pool(config, self)
        self.pool.start()

    def worker_done(self, process, answers):
        with self._news:
            self.batches.append((process.worker, [answer.job for answer in answers]))
            self.answers.update({answer.job: answer for answer in answers})
            self._news.notify_all()

    def worker_started(self, process, device, kind):
        with self._news:
            self.processes[process.worker] = process
            self.ups.append(WorkerUp(process.worker, device, kind))
            self._news.notify_all()

    def worker_lost(self, process, lost):
        with self._news:
            down = WorkerDown(process.worker, process.device, process.fate, lost, process.detail)
            self.downs.append(down)
            self._news.notify_all()

    def measured(self, found):
        self.found.append(found)

    def wait_for(self, condition, timeout_s=PATIENCE_S):
        with self._news:
            assert self._news.wait_for(condition, timeout_s), (self.ups, self.downs, self.answers)
            return condition()

    @property
    def worker(self):
        """The worker that started last."""
        self.wait_for(lambda: len(self.ups) > len(self.downs))
        return self.ups[-1].worker

    def job(self, number, operation, params=None, may_overwrite=True):
        """A job on a vector 1, 2, ..., 16 of its own segment."""
        segment = self.segments.setdefault(number, Segment(number))
        area = Area(number, 64, VECTOR)
        segment.array(area)[:] = np.arange(1, 17)
        return Job(number, operation, params or {}, (area,), number, OUTPUT, 2048, may_overwrite)

    def call(self, number, operation, **more):
        """The answer to one job, which may take its time: on a busy machine nobody is called stuck for it."""
        self.answers.pop(number, None)
        assert self.pool.send(self.worker, [self.job(number, operation, **more)], expected_s=PATIENCE_S)
        answer = self.wait_for(lambda: self.answers.get(number))
        return answer

    def result(self, answer, name="a"):
        area = dict(answer.tensors)[name]
        return self.segments[area.segment].array(area)


@pytest.fixture
def make_owner():
    made = []

    def make(**settings):
        made.append(Owner(**settings))
        return made[-1]

    yield make
    for owner in made:
        owner.pool.close()


@pytest.fixture(scope="module")
def owner():
    """One pool for all tests that leave it as it was, or at least working."""
    one = Owner()
    yield one
    one.pool.close()


# What is computed, and where


def test_echo_answers_with_the_memory_of_its_input(owner):
    answer = owner.call(1, "echo", params={"x": [1, None]})
    assert dict(answer.tensors) == {"input_0": Area(1, 64, VECTOR)}
    assert answer.info == {"params": {"x": [1, None]}}
    assert not answer.overwritten
    assert answer.error is None
    assert answer.compute_s >= answer.kernel_s > 0


def test_work_in_place_needs_no_copy(owner):
    answer = owner.call(1, "double")
    assert dict(answer.tensors)["a"] == Area(1, 64, VECTOR)
    assert answer.overwritten
    assert owner.result(answer).tolist() == list(range(2, 34, 2))


def test_inputs_that_must_stay_are_not_touched(owner):
    answer = owner.call(1, "double", may_overwrite=False)
    assert dict(answer.tensors)["a"].offset == OUTPUT
    assert owner.result(answer).tolist() == list(range(2, 34, 2))
    assert owner.segments[1].array(Area(1, 64, VECTOR)).tolist() == list(range(1, 17))
    assert not answer.overwritten
    assert answer.info == {"nan": None, "n": 3}


def test_an_operation_that_says_it_does_not_overwrite_cannot(owner):
    answer = owner.call(1, "write_anyway")
    assert answer.error is not None
    assert "read-only" in answer.error.message


@pytest.mark.parametrize(
    ("what", "values", "offset"),
    [
        ("big-endian", list(range(1, 17)), OUTPUT),
        ("strided", [[1, 3, 5, 7], [9, 11, 13, 15]], OUTPUT),
        ("middle", [3, 4, 5], 64 + 16),
        ("scalar", 4.0, OUTPUT),
        ("empty", [], OUTPUT),
    ],
)
def test_outputs_of_any_kind_arrive(owner, what, values, offset):
    answer = owner.call(1, "odd", params={"what": what})
    assert owner.result(answer).tolist() == values
    assert dict(answer.tensors)["a"].offset == offset


def test_a_batch_is_answered_at_once_and_in_order(owner):
    jobs = [owner.job(i, "double" if i % 2 else "echo") for i in range(100, 400)]
    owner.pool.send(owner.worker, jobs)
    owner.wait_for(lambda: 399 in owner.answers)
    assert owner.batches[-1][1] == list(range(100, 400))
    assert owner.result(owner.answers[399])[0] == 2


def test_more_shapes_than_are_remembered(owner):
    for i in range(1500):
        assert owner.call(1, "echo", params={"i": i}).info["params"]["i"] == i
    assert owner.call(1, "echo", params={"i": 0}).info["params"]["i"] == 0


def test_a_batched_form_gets_equal_jobs_together(owner):
    jobs = [owner.job(i, "together") for i in (1, 2, 3)] + [owner.job(4, "echo")]
    owner.segments[2].array(Area(2, 64, VECTOR))[0] = 0
    owner.answers.clear()
    owner.pool.send(owner.worker, jobs)
    owner.wait_for(lambda: 4 in owner.answers)
    assert owner.answers[1].info["n_together"] == owner.answers[3].info["n_together"] == 3
    assert owner.answers[2].error == ("rejected", "zero", "begins with zero", "", False)
    assert owner.result(owner.answers[3]).tolist() == list(range(2, 34, 2))


# What goes wrong inside an operation, and costs this job only


@pytest.mark.parametrize(
    ("how", "kind", "code", "is_transient"),
    [
        ("rejected", "rejected", "not-finite", False),
        ("storage", "storage", "storage", True),
        ("memory", "unavailable", "out-of-memory", True),
        ("exit", "internal", "internal-error", False),
        ("broken", "internal", "internal-error", False),
    ],
)
def test_errors_are_reported_in_the_words_of_the_wire(owner, how, kind, code, is_transient):
    before = owner.worker
    error = owner.call(1, "fail", params={"how": how}).error
    assert (error.kind, error.code, error.transient, owner.worker) == (kind, code, is_transient, before)


# What costs a worker


def replaced(owner, lose):
    """Lose the worker; what was reported. The process that stood by, and no new one, has its place then."""
    old, n_downs = owner.worker, len(owner.downs)
    standby = wait_for_standby(owner)
    lose(old)
    owner.wait_for(lambda: len(owner.downs) > n_downs)
    started_s = time.monotonic()
    assert owner.call(1, "double").error is None
    print(f"\nthe next one answered {1000 * (time.monotonic() - started_s):.1f} ms after the loss")
    assert owner.worker != old
    assert pid_of(owner, owner.worker) == standby
    return owner.downs[-1]


def wait_for_standby(owner):
    """Wait for a process that stands by; its pid."""
    until(lambda: any(one["state"] == "standby" for one in owner.pool.info()))
    return int(next(one["pid"] for one in owner.pool.info() if one["state"] == "standby"))


def pid_of(owner, worker):
    return int(next(one["pid"] for one in owner.pool.info() if one["worker"] == worker))


@pytest.mark.parametrize(
    ("operation", "detail"), [("die", "SIGSEGV"), ("fault", "SIGSEGV"), ("leave", "status 7")]
)
def test_a_crash_costs_one_worker_and_is_explained(owner, operation, detail):
    job = owner.job(2, operation, {"value": 1.0})
    down = replaced(owner, lambda worker: owner.pool.send(worker, [job]) or None)
    assert down.reason == "died"
    assert detail in down.detail
    assert down.lost == (Lost(2, operation == "die", True),)
    if "SIGSEGV" in detail:
        assert "faulty.py" in down.detail


def test_only_the_job_a_worker_was_at_is_suspect(owner, tmp_path):
    barrier = tmp_path / "barrier"
    jobs = [owner.job(i, "die", {"value": 99.0, "barrier": str(barrier)}) for i in (2, 3, 4)]
    owner.segments[3].array(Area(3, 64, VECTOR))[0] = 99.0
    more = [owner.job(5, "die", {"value": 99.0})]

    def lose(worker):
        owner.pool.send(worker, jobs)
        owner.pool.send(worker, more)
        barrier.touch()

    down = replaced(owner, lose)
    assert down.lost == (
        Lost(2, True, False),
        Lost(3, True, True),
        Lost(4, False, False),
        Lost(5, False, False),
    )


def test_all_jobs_computed_together_are_suspect(owner):
    jobs = [owner.job(i, "together") for i in (2, 3)]
    owner.segments[3].array(Area(3, 64, VECTOR))[0] = -1
    down = replaced(owner, lambda worker: owner.pool.send(worker, jobs) or None)
    assert down.lost == (Lost(2, True, True), Lost(3, True, True))


def test_what_is_due_while_it_waits_behind_another_is_not_begun(owner):
    """Both were sent; the second was late when its turn came, and its inputs are what they were."""
    first = owner.job(1, "wait", {"seconds": 0.3})
    late = owner.job(2, "double")._replace(due_s=time.monotonic() + 0.1)
    in_time = owner.job(3, "double")._replace(due_s=time.monotonic() + PATIENCE_S)
    for job in (first, late, in_time):
        owner.answers.pop(job.id, None)
        owner.pool.send(owner.worker, [job])
    owner.wait_for(lambda: 3 in owner.answers)
    answer = owner.answers[2]
    assert answer.error == EXPIRED
    assert (answer.compute_s, answer.overwritten, answer.tensors) == (0.0, False, ())
    assert owner.segments[2].array(late.inputs[0])[0] == 1.0
    assert owner.result(owner.answers[3])[0] == 2.0


def test_of_a_batch_computed_as_one_only_the_late_are_left_out(owner):
    jobs = [owner.job(i, "together") for i in range(10, 16)]
    for i in (0, 2, 5):
        jobs[i] = jobs[i]._replace(due_s=time.monotonic() - 1e-3)
    owner.pool.send(owner.worker, jobs)
    owner.wait_for(lambda: 15 in owner.answers)
    assert owner.batches[-1][1] == list(range(10, 16))
    answers = [owner.answers[i] for i in range(10, 16)]
    assert [answer.error for answer in answers] == [EXPIRED, None, EXPIRED, None, None, EXPIRED]
    assert [answer.info.get("n_together") for answer in answers] == [None, None, None, 2, 2, None]


@pytest.mark.parametrize(
    "message",
    [
        "00",
        "02",
        "0200000005000000",
        "0200000001000000",
        "7b22",
        "ff" * 100,
        # an answer to the job, with a tensor of a layout nobody has heard of
        "0200000001000000" + "0300000000000000" + "0000" + "0100" + "09000000" + "02000000" + "00" * 16
        + "0300000000000000" + "4000000000000000" + b"{}".hex(),
    ],
)  # fmt: skip
def test_a_worker_that_lies_is_replaced(owner, message):
    job = owner.job(3, "lie", {"message": message})
    down = replaced(owner, lambda worker: owner.pool.send(worker, [job]) or None)
    assert down.lost == (Lost(3, True, True),)
    assert "it lied" in down.detail


# Memory


def test_a_dropped_segment_is_unmapped(owner):
    first = owner.call(40, "maps").info["segments"]
    owner.call(41, "echo")
    assert owner.call(40, "maps").info["segments"] == first + 1
    owner.pool.drop_segment(41)
    assert owner.call(40, "maps").info["segments"] == first
    owner.pool.drop_segment(41)
    assert owner.call(41, "echo").error is None


def test_a_busy_worker_unmaps_when_it_is_done(owner, tmp_path):
    owner.pool.drop_segment(41)
    first = owner.call(40, "maps").info["segments"]
    owner.call(41, "echo")
    barrier = tmp_path / "barrier"
    owner.pool.send(owner.worker, [owner.job(42, "wait", {"barrier": str(barrier)})], expected_s=PATIENCE_S)
    owner.pool.drop_segment(41)
    owner.pool.drop_segment(42)
    assert owner.pool.info()[0]["state"] == "busy"
    barrier.touch()
    owner.wait_for(lambda: 42 in owner.answers)
    assert owner.call(40, "maps").info["segments"] == first


def test_an_operation_that_keeps_its_input_breaks_nothing(owner):
    owner.call(43, "keep")
    owner.pool.drop_segment(43)
    assert owner.call(44, "double").error is None


def test_one_descriptor_per_segment_is_enough_for_the_worker(owner, wait_until):
    def n_fds():
        return len(list(Path(f"/proc/{pid_of(owner, owner.worker)}/fd").iterdir()))

    before = n_fds()
    for number in range(50, 80):
        for _ in range(3):
            owner.call(number, "echo")
    # A worker loads what operations will need while it has nothing to do, and reads files meanwhile.
    wait_until(lambda: n_fds() <= before + 30, "one for each segment")
    for number in range(50, 80):
        owner.pool.drop_segment(number)
    owner.call(1, "echo")
    wait_until(lambda: n_fds() <= before + 1, "none for those that are gone")


# Surroundings


def test_places_and_facts(owner, tmp_path):
    wait_for_standby(owner)
    worker = owner.worker
    facts = next(one for one in owner.pool.info() if one["worker"] == worker)
    assert facts["device"] == "cpu"
    assert facts["state"] == "idle"
    assert facts["rss_bytes"] >= facts["own_bytes"] > 0
    assert owner.call(1, "wait").info["affinity"] == facts["affinity"]
    barrier = tmp_path / "barrier"
    owner.pool.send(worker, [owner.job(2, "wait", {"barrier": str(barrier)})], expected_s=PATIENCE_S)
    assert next(one for one in owner.pool.info() if one["worker"] == worker)["state"] == "busy"
    barrier.touch()
    owner.wait_for(lambda: 2 in owner.answers)


def test_each_device_gets_its_worker(make_owner):
    owner = make_owner(workers=2, standby_workers=0)
    owner.wait_for(lambda: len(owner.ups) == 2)
    for up in owner.ups:
        owner.pool.send(up.worker, [owner.job(up.worker, "wait")])
    owner.wait_for(lambda: len(owner.answers) == 2)
    affinities = [answer.info["affinity"] for answer in owner.answers.values()]
    assert len(os.sched_getaffinity(0)) < 2 or affinities[0] != affinities[1]


def test_an_absent_gpu_is_said(make_owner):
    owner = make_owner(devices=("cpu", "cuda:0"), standby_workers=0)
    assert owner.call(1, "double").error is None
    gpu = owner.pool.info()[-1]
    assert gpu["device"] == "cuda:0"
    if gpu["state"] == "absent":
        assert gpu["last_fault"]


NOT_TO_BE_LOADED = """
import os, time
with open("/proc/self/stat") as stat:
    started_s = int(stat.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
with open("LOG", "a") as log:
    print(started_s, time.clock_gettime(time.CLOCK_BOOTTIME), file=log)
import no.such
"""


def test_operations_that_cannot_be_loaded_do_not_spin(make_owner, monkeypatch, tmp_path):
    """After each process that failed there is a pause, twice as long as the one before."""
    log = tmp_path / "log"
    (tmp_path / "not_to_be_loaded.py").write_text(NOT_TO_BE_LOADED.replace("LOG", str(log)))
    monkeypatch.syspath_prepend(str(tmp_path))
    owner = make_owner(extra_operations=("not_to_be_loaded:OPERATIONS",))
    until(lambda: log.exists() and log.read_text().count("\n") >= 4)
    assert owner.ups == []
    assert owner.pool.info()[0]["state"] == "starting"
    assert "No module named 'no'" in owner.pool.info()[0]["last_fault"]
    tries_s = [tuple(map(float, line.split())) for line in log.read_text().splitlines()]
    for least_s, (_, failed_s), (started_s, _) in zip((0.2, 0.4, 0.8), tries_s, tries_s[1:], strict=False):
        assert started_s - failed_s > least_s - 0.02, tries_s  # a clock that ticks a hundred times a second


@pytest.mark.slow
def test_calibration_measures_idle_workers_and_keeps_what_it_found(make_owner, tmp_path):
    path = tmp_path / "kept" / "calibration.json"
    owner = make_owner(calibrate=True, calibration_file=str(path))
    owner.wait_for(lambda: owner.ups)
    deadline_s = time.monotonic() + 5 * PATIENCE_S
    while not path.exists():
        assert time.monotonic() < deadline_s, owner.found
        time.sleep(0.1)
    found = list(owner.found)
    assert {one.operation for one in found} >= {"lu", "qr", "cholesky", "gemm"}
    assert all(one.seconds > 0 and one.n_bytes > 0 for one in found)
    assert len(found) > 8
    assert owner.call(1, "double").error is None
    owner.pool.close()
    second = make_owner(calibrate=True, calibration_file=str(path))
    second.wait_for(lambda: second.ups)
    while len(second.found) < len(found):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    # The file may be there a moment before its last measurement reaches the owner.
    assert second.found[: len(found)] == found


def test_close_ends_every_process_also_a_busy_one(make_owner):
    owner = make_owner()
    wait_for_standby(owner)
    pids = [one["pid"] for one in owner.pool.info()]
    owner.pool.send(owner.worker, [owner.job(1, "hang")])
    started_s = time.monotonic()
    owner.pool.close()
    print(f"\nclosed after {time.monotonic() - started_s:.2f} s")
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert owner.downs == []
    owner.pool.close()


# A GPU: the worker's side of it, against a stand-in for CuPy


@pytest.fixture
def fake_cupy(monkeypatch):
    """Workers import the stand-in."""
    monkeypatch.syspath_prepend(str(ROOT / "tests/unit/pipeline/workers/fake_gpu"))


@pytest.fixture
def on_gpus(make_owner, fake_cupy, eight_gpus, monkeypatch):
    """A function that starts workers on some of the GPUs of a node with eight."""

    def start(visible):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        settings = {"devices": ("auto",), "cpu_workers_per_gpu_worker": 0}
        return make_owner(**settings, quarantine_s=600.0, standby_workers=0, probe_gpus=False)

    return start


@pytest.fixture
def gpu_owner(make_owner, fake_cupy, monkeypatch, request):
    from yarn_accel.pipeline import devices, supervisor

    monkeypatch.setattr(supervisor, "find_devices", lambda config: (devices.Device("cuda:0", "cuda"),))
    settings = {"quarantine_s": 1.0, "hang_min_s": HANG_S, "hang_factor": 1.0}
    settings["probe_gpus"] = False  # The stand-in computes nothing.
    return make_owner(**{**settings, **getattr(request, "param", {})})


@pytest.fixture
def two_gpus(fake_cupy, monkeypatch):
    from yarn_accel.pipeline import devices, supervisor

    found = tuple(devices.Device(f"cuda:{i}", "cuda") for i in range(2))
    monkeypatch.setattr(supervisor, "find_devices", lambda config: found)


def test_a_gpu_worker_pins_memory_and_has_three_lanes(gpu_owner):
    owner = gpu_owner
    answer = owner.call(1, "gpu")
    assert owner.ups[0].device_kind == "cuda"
    assert owner.result(answer).tolist() == list(range(3, 51, 3))
    assert answer.info["pinned"] == 1
    owner.call(2, "gpu")
    owner.pool.drop_segment(2)
    assert owner.call(1, "gpu").info["pinned"] == 1
    for number, seconds in ((3, 0.2), (4, 0.0), (5, 0.0)):
        job = owner.job(number, "gpu", {"meets_others": True, "seconds": seconds})
        owner.pool.send(owner.worker, [job], expected_s=PATIENCE_S)
    owner.wait_for(lambda: owner.answers.keys() >= {3, 4, 5})
    assert [owner.answers[number].error for number in (3, 4, 5)] == [None] * 3, "all were begun"
    assert sorted(jobs for _, jobs in owner.batches[-3:]) == [[3], [4], [5]]


def test_the_standby_of_the_only_gpu_has_a_context_and_takes_over_with_it(gpu_owner, wait_until):
    owner = gpu_owner
    assert owner.call(1, "gpu").error is None

    def standbys():
        return {row["device"]: row["pid"] for row in owner.pool.info() if row["state"] == "standby"}

    wait_until(lambda: "cuda:0" in standbys(), "it is ready for the GPU")
    pid = standbys()["cuda:0"]
    os.kill(pid_of(owner, owner.worker), signal.SIGKILL)
    owner.wait_for(lambda: len(owner.ups) == 2)
    assert pid_of(owner, owner.ups[-1].worker) == pid
    assert owner.call(1, "gpu").error is None
    wait_until(lambda: "cuda:0" in standbys(), "the next one, too")


def test_each_gpu_has_a_standby_that_takes_over_with_its_context(make_owner, two_gpus, wait_until):
    owner = make_owner(quarantine_s=600.0, probe_gpus=False)

    def standbys():
        return {row["device"]: row["pid"] for row in owner.pool.info() if row["state"] == "standby"}

    wait_until(lambda: standbys().keys() == {"cuda:0", "cuda:1"}, "one is ready for each GPU")
    pid = standbys()["cuda:1"]
    lost = next(up.worker for up in owner.ups if up.device == "cuda:1")
    os.kill(pid_of(owner, lost), signal.SIGKILL)
    owner.wait_for(lambda: len(owner.ups) == 3)
    assert owner.ups[-1].device == "cuda:1"
    assert pid_of(owner, owner.ups[-1].worker) == pid
    wait_until(lambda: standbys().keys() == {"cuda:0", "cuda:1"}, "the next one is ready")


def test_workers_count_the_memory_of_a_standby_that_comes_and_goes(gpu_owner, wait_until):
    owner = gpu_owner
    assert owner.call(1, "gpu").error is None
    process = owner.processes[owner.worker]

    def standby():
        rows = (row for row in owner.pool.info() if row["state"] == "standby" and row["device"])
        return [row["pid"] for row in rows]

    wait_until(lambda: standby() and process.beside == standby(), "it counts the first one")
    first = standby()
    os.kill(first[0], signal.SIGKILL)
    wait_until(lambda: process.beside == [], "it no longer counts it")
    assert owner.call(1, "gpu").error is None
    assert owner.downs == []


def test_a_gpu_that_hangs_while_it_is_made_ready_rests_and_comes_back(
    make_owner, two_gpus, tmp_path, monkeypatch, wait_until
):
    hangs = tmp_path / "hangs"
    hangs.touch()
    monkeypatch.setenv("FAKE_GPU_HANGS_WHILE", str(hangs))
    owner = make_owner(quarantine_s=1.0, standby_workers=0, probe_gpus=False, gpu_start_timeout_s=0.5)
    wait_until(
        lambda: all("not ready and probed after 0.5 s" in row["last_fault"] for row in owner.pool.info()),
        "both are given up",
    )
    assert {row["state"] for row in owner.pool.info()} <= {"quarantined", "starting"}
    hangs.unlink()
    patient = {"gpu_start_timeout_s": PATIENCE_S}  # Here the machine may be as slow as it likes.
    owner.pool.supervisor._config = owner.pool.supervisor._config.model_copy(update=patient)
    owner.wait_for(lambda: len({up.device for up in owner.ups}) == 2)
    assert owner.call(1, "gpu").error is None


def test_each_worker_sees_its_own_gpu_and_a_lost_one_stops_no_other(on_gpus, eight_gpus):
    owner = on_gpus("7,5")
    owner.wait_for(lambda: len(owner.ups) == 3)
    for up in owner.ups:
        owner.pool.send(up.worker, [owner.job(up.worker, "gpu")])
    owner.wait_for(lambda: len(owner.answers) == 3)
    seen = {up.device: owner.answers[up.worker].info["visible"] for up in owner.ups}
    parts = {f"cuda:5:{part.part}": part.uuid for part in eight_gpus.parts}
    assert seen == {"cuda:7": eight_gpus.gpus[7].uuid, **parts}
    eight_gpus.gpus[7].state = LOST
    eight_gpus.write()
    owner.wait_for(lambda: owner.downs)
    assert owner.downs[0].reason == "sick"
    states = {row["device"]: row["state"] for row in owner.pool.info()}
    assert states == {"cuda:7": "quarantined", "cuda:5:0": "idle", "cuda:5:2": "idle"}
    assert has_places(owner.pool.info()), "the server is well"
    assert problems_of(owner.pool.info()) == ["cuda:7: quarantined: sick: GPU is lost"]


def test_what_two_lanes_do_at_a_time_is_paid_for_once_and_is_no_lie(gpu_owner):
    """The second is answered as soon as the first, though it took far longer than since then."""
    owner = gpu_owner
    worker, started_s = owner.worker, time.monotonic()
    for number in (1, 2):
        owner.pool.send(worker, [owner.job(number, "gpu", {"seconds": 1.5})], expected_s=PATIENCE_S)
    owner.wait_for(lambda: owner.answers.keys() >= {1, 2} or owner.downs)
    took_s = time.monotonic() - started_s
    assert owner.downs == []
    answers = [owner.answers[number] for number in (1, 2)]
    assert sum(answer.compute_s for answer in answers) <= took_s
    assert all(answer.kernel_s >= 1.5 for answer in answers)


def test_an_operation_without_a_form_for_the_gpu_runs_on_the_cpu_of_its_worker(gpu_owner):
    done = gpu_owner.call(1, "double")
    assert done.error is None
    assert done.info["computed_on"] == "cpu"


def test_a_full_gpu_fails_its_job_only(gpu_owner):
    error = gpu_owner.call(1, "gpu", params={"error": "OutOfMemoryError"}).error
    assert error is not None
    assert (error.code, error.transient) == ("out-of-memory", True)
    assert gpu_owner.call(1, "gpu").error is None
    assert gpu_owner.downs == []


@pytest.mark.parametrize("gpu_owner", [{"quarantine_s": 600.0}], indirect=True)
def test_a_sick_gpu_rests(gpu_owner):
    owner = gpu_owner
    wait_for_standby(owner)
    error = owner.call(1, "gpu", params={"error": "CUDARuntimeError"}).error
    assert error is not None
    assert (error.code, error.transient) == ("sick-device", True)
    owner.wait_for(lambda: owner.downs)
    assert owner.downs[0].reason == "sick"
    assert owner.pool.info()[0]["state"] == "quarantined"
    assert not has_places(owner.pool.info()), "a server without any other is not well"
    assert len(owner.ups) == 1, "nobody took its place"


def test_where_the_driver_reports_a_fault_no_process_that_broke_is_blamed(on_gpus, eight_gpus, wait_until):
    """Whichever is seen first."""
    owner = on_gpus("7")
    assert owner.call(1, "gpu").error is None
    wait_until(lambda: owner.pool.supervisor.gpu_monitor.asked_s > 0, "the driver was not asked")
    eight_gpus.xids.append((7, 79, -1))
    eight_gpus.write()
    owner.pool.send(owner.worker, [owner.job(2, "gpu", {"error": "CUDARuntimeError", "status": 719})])
    owner.wait_for(lambda: owner.downs)
    assert owner.downs[0].reason == "sick"
    assert "Xid 79" in owner.downs[0].detail
    assert owner.pool.info()[0]["state"] == "quarantined"


def test_what_ends_a_process_of_a_gpu_costs_that_process_and_one_request_no_gpu(gpu_owner):
    """However often that request is tried, the GPU does not rest; different requests may mean the GPU."""
    owner = gpu_owner
    bad = {"error": "CUDARuntimeError", "status": 700}

    def lose_one(request):
        n_lost, job = len(owner.downs), owner.job(1, "gpu", bad)._replace(request=request, is_alone=True)
        owner.pool.send(owner.worker, [job], expected_s=PATIENCE_S)
        owner.wait_for(lambda: len(owner.downs) > n_lost)
        return owner.downs[-1]

    for _ in range(4):
        down = lose_one("x")
        assert (down.reason, down.lost) == ("broke", (Lost(1, True, True, "x"),))
        assert down.detail == "CUDARuntimeError: it broke"
    assert owner.call(2, "gpu").error is None, "it goes on"
    assert lose_one("y").reason == "broke"
    assert owner.pool.info()[0]["state"] != "quarantined"
    lose_one("z")
    assert owner.pool.info()[0]["state"] == "quarantined"


def test_a_sick_gpu_comes_back(gpu_owner):
    owner = gpu_owner
    wait_for_standby(owner)
    started_s = time.monotonic()
    owner.call(1, "gpu", params={"error": "CUDARuntimeError"})
    owner.wait_for(lambda: len(owner.ups) == 2)
    assert time.monotonic() - started_s >= 1.0, "it had its rest"
    for _ in range(10):
        assert owner.call(1, "gpu").error is None


def test_lanes_of_a_lost_gpu_worker_are_distinguished(gpu_owner):
    owner = gpu_owner
    owner.call(1, "gpu")
    jobs = [[owner.job(i, "gpu", {"seconds": PATIENCE_S}) for i in batch] for batch in ((2, 3), (4, 5))]
    for batch in jobs:
        owner.pool.send(owner.worker, batch)
    owner.wait_for(lambda: owner.downs)
    assert owner.downs[0].reason == "stuck"
    assert [(one.job, one.is_suspect) for one in owner.downs[0].lost] == [
        (2, True),
        (3, False),
        (4, True),
        (5, False),
    ]
