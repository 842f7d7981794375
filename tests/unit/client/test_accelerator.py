"""The object a mapper works with, computing in this process: values, errors, keys, counters, its end."""

import array
import doctest
import importlib
import os
import pickle
import struct
import subprocess
import sys
import zlib
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import yarn_accel.client
from yarn_accel.client import Call, Reference, RejectedError, Reply, TensorSpec, connect
from yarn_accel.client.accelerator import Accelerator, CallKeys
from yarn_accel.client.current_attempt import CurrentAttempt
from yarn_accel.client.reporter import Reporter
from yarn_accel.client.runners import ConnectSettings
from yarn_accel.client.task_servers import TaskServers, task_credential
from yarn_accel.errors import (
    AuthenticationError,
    ConfigError,
    LocalProtocolError,
    StorageError,
    UnavailableError,
)
from yarn_accel.wire.credential import issue

RNG = np.random.default_rng(16)
SQUARE = RNG.standard_normal((6, 6))
DEFINITE = SQUARE @ SQUARE.T + np.eye(6)
ID = "1_0001_m_000003"
TASK = {"mapreduce_job_id": "job_1_0001", "mapreduce_task_id": f"task_{ID}", "mapreduce_task_partition": "3"}
TASK |= {"mapreduce_task_attempt_id": f"attempt_{ID}_1"}


@pytest.fixture
def accel():
    with connect("inline") as accel:
        yield accel


def test_an_operation_may_have_a_parameter_called_operation(accel):
    factors = accel.lu(SQUARE)
    calls = [Call.of("residual", SQUARE, *factors[:2], operation="lu")]
    replies = [accel.submit("residual", SQUARE, *factors[:2], operation="lu").result()]
    replies += [accel.call("residual", SQUARE, *factors[:2], operation="lu"), accel.call(*calls)]
    assert all(reply.info["passed"] for reply in replies)


class Dispatcher:
    """Stands in for the real one: answers from a function, in order."""

    def __init__(self, answer):
        self.answer = answer
        self.counts = {"lost_servers": 0, "resubmitted": 0, "moved": 0}
        self.keys = []
        self.is_closed = False

    def map(self, calls, window, *, ordered=False, pack=1):
        for call in calls:
            self.keys.append(call.key)
            yield call, self.answer(call)

    def outcome(self, call):
        ((_, outcome),) = self.map((call,), 1)
        return outcome

    def close(self):
        self.is_closed = True


def done(call):
    return Reply({}, {}, "w1", "cpu", {}, 8, 0)


def scripted(answer, keys=None, **changes):
    """An accelerator over `Dispatcher`, and the list of those it made."""
    made = []

    def new():
        made.append(Dispatcher(answer))
        return made[-1]

    values = {"new_dispatcher": new, "keys": keys or CallKeys("task_1"), "window": 4, "pack": 1}
    values |= {"reporter": Reporter(is_silent=True), "counts_calls": True, "resources": ExitStack()}
    return Accelerator(**{**values, **changes}), made


@pytest.mark.parametrize("name", ["accelerator", "asynchronous", "calls", "runners"])
def test_the_examples_in_docstrings_run(name):
    result = doctest.testmod(importlib.import_module(f"yarn_accel.client.{name}"))
    assert result.failed == 0
    assert result.attempted > 0


def test_the_package_exports_what_it_lists_and_loads_it_late():
    for name in yarn_accel.client.__all__:
        found = getattr(yarn_accel.client, name)
        assert not isinstance(found, type) or found.__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'connct'"):
        yarn_accel.client.connct  # noqa: B018
    program = "import sys, yarn_accel.client; sys.exit('yarn_accel.client.dispatch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# Values


def test_factors_products_solutions_and_clusters_have_names(accel):
    b = RNG.standard_normal(6)
    expected = np.linalg.solve(SQUARE, b)
    lu, parts, qr = accel.lu(SQUARE), accel.separate_lu(SQUARE), accel.qr(SQUARE)
    for factors in (lu, parts, qr, accel.packed_qr(SQUARE)):
        assert np.allclose(accel.solve(factors, b).x, expected)
    assert np.allclose(np.triu(lu.lu), parts.u)
    assert np.allclose(qr.q @ qr.r, SQUARE)
    assert lu.singular_at == 0
    assert accel.lu(np.zeros((2, 2))).singular_at == 1
    whole = accel.solve(SQUARE, b)
    assert np.allclose(whole.x, expected)
    assert whole.reply.info["residual"] < 30
    assert np.allclose(accel.solve(DEFINITE, b, positive_definite=True).x, np.linalg.solve(DEFINITE, b))
    assert np.allclose(accel.lstsq(SQUARE[:, :3], b).x, np.linalg.lstsq(SQUARE[:, :3], b)[0])
    assert np.allclose(accel.inv(SQUARE).inv, np.linalg.inv(SQUARE))
    determinant = accel.slogdet(SQUARE)
    assert np.allclose((determinant.sign[0], determinant.logdet[0]), np.linalg.slogdet(SQUARE))
    cholesky = accel.cholesky(DEFINITE)
    triangle = accel.cholesky(DEFINITE, form="packed")
    for factors in (cholesky, triangle):
        assert np.allclose(accel.solve(factors, b).x, np.linalg.solve(DEFINITE, b))
    np.testing.assert_array_equal(accel.lu(SQUARE.astype(">f8")).lu, lu.lu)
    svd, eigh = accel.svd(SQUARE), accel.eigh(DEFINITE)
    assert np.allclose((svd.u * svd.s) @ svd.vh, SQUARE)
    assert np.allclose(DEFINITE @ eigh.v, eigh.v * eigh.w)
    alone = accel.svd(SQUARE, vectors=False)
    assert (alone.u, alone.vh) == (None, None)
    for a, factors in ((SQUARE, lu), (SQUARE, qr), (DEFINITE, cholesky), (SQUARE, svd), (DEFINITE, eigh)):
        check = accel.residual(a, factors)
        assert check.passed
        assert check.residual == max(check.residuals.values()) < check.limit
    assert np.allclose(accel.gemm(SQUARE, SQUARE, transpose_b=True).c, SQUARE @ SQUARE.T)
    points = np.concatenate([RNG.standard_normal((9, 2)), 100 + RNG.standard_normal((9, 2))])
    clusters = accel.kmeans(points, 2, seed=1)
    assert len(set(clusters.labels[:9])) == len(set(clusters.labels[9:])) == 1
    assert clusters.centroids.shape == (2, 2)
    near = accel.knn(points[[3, 12]], points, np.repeat([7, 8], 9), k=3)
    assert (near.neighbours.shape, near.neighbours[:, 0].tolist(), near.labels.tolist()) == (
        (2, 3),
        [3, 12],
        [7, 8],
    )
    assert np.all(near.distances[:, 0] <= near.distances[:, 2])
    assert accel.knn(points[:4], points).labels is None
    assert lu.reply.device == "cpu:fallback"


def test_results_that_are_written_elsewhere_are_inputs_all_the_same(accel, tmp_path):
    source = tmp_path / "a.npy"
    np.save(source, SQUARE)
    target = f"file://{tmp_path}/lu.npz"
    factors = accel.lu(source, output=target)
    assert (factors.lu, factors.piv, factors.output) == (None, None, target)
    assert accel.residual(f"file://{source}", factors).passed
    b = np.ones(6)
    assert np.allclose(accel.solve(factors, b).x, np.linalg.solve(SQUARE, b))
    (tmp_path / "raw").write_bytes(SQUARE.tobytes())
    raw = Reference(f"file://{tmp_path}/raw", TensorSpec("<f8", (6, 6)))
    assert np.allclose(accel.qr(raw).q, accel.qr(SQUARE).q)


def png(value, size=8):
    """A grey PNG of one value."""

    def chunk(name, content):
        body = name + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    head = struct.pack(">IIBBBBB", size, size, 8, 0, 0, 0, 0)
    rows = (b"\0" + bytes([value]) * size) * size
    parts = (chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def test_a_bad_image_costs_its_own_row(accel):
    found = accel.features([png(10), b"no image", png(200)], bins=59)
    assert found.features.shape[0] == 3
    assert found.features[0].any()
    assert not found.features[1].any()
    assert list(found.rejected) == [1]
    assert (found.rejected[1].item, found.rejected[1].place) == (1, "image 1")
    assert found.rejected[1].code


def test_inputs_are_arrays_buffers_lists_uris_and_paths(tmp_path):
    buffer = array.array("d", [1.0, 2.0])
    matrix = memoryview(struct.pack("<4f", 1, 2, 3, 4)).cast("B").cast("f", (2, 2))
    given = (buffer, b"abc", matrix, [[1, 2]], SQUARE.astype(">f8"), "hdfs:///a", tmp_path / "b")
    call = Call.of("echo", *given)
    specs = [(item.spec.dtype, item.spec.shape) for item in call.inputs[:5]]
    assert specs == [("<f8", (2,)), ("|u1", (3,)), ("<f4", (2, 2)), ("<i8", (1, 2)), ("<f8", (6, 6))]
    assert np.array_equal(call.inputs[4].array(), SQUARE)
    assert [item.uri for item in call.inputs[5:]] == ["hdfs:///a", f"file://{tmp_path}/b"]


@pytest.mark.parametrize(
    ("item", "code"),
    [
        (np.array(["text"]), "wrong-dtype"),
        *((item, "wrong-dtype") for item in ([object()], array.array("u", "text"), None, {1.0}, [1.0, None])),
        *((item, "wrong-dtype") for item in ([[1.0, "2"]], np.zeros(2, "M8[s]"), np.zeros(2, "i4,f8"))),
        (memoryview(b"abcd").cast("B")[::1].cast("c"), None),
        ([[1.0, 2.0], [3.0]], "wrong-layout"),
        ([[1.0, 2.0], 3.0], "wrong-layout"),
        ([np.ones(2), np.ones(3)], "wrong-layout"),
        (np.ma.masked_array([1.0, 2.0], mask=[True, False]), "wrong-layout"),
        (np.zeros((1,) * 9), "wrong-shape"),
        ([[[[[[[[[1.0]]]]]]]]], "wrong-shape"),
        ([2**70], "wrong-dtype"),
    ],
)
def test_what_cannot_travel_is_the_outcome_of_its_call_alone(accel, item, code):
    calls = (Call.of("echo", each, tag=tag) for tag, each in enumerate(([1.0], item, [2.0])))
    found = {call.tag: getattr(outcome, "code", None) for call, outcome in accel.map(calls, pack="auto")}
    assert found == {0: None, 1: code, 2: None}
    if code is not None:
        with pytest.raises(RejectedError, match="input 0") as caught:
            accel.call("echo", item)
        assert caught.value.code == accel.submit("echo", item).exception().code == code


# Errors


def test_an_error_names_the_record_and_the_reason(tmp_path):
    with connect("inline", key_prefix="job") as accel:
        missing = f"file://{tmp_path}/missing.npy"
        calls = [Call.of("cholesky", -DEFINITE), Call.of("lu", missing), Call.of("nonsense", SQUARE)]
        outcomes = [outcome for _, outcome in accel.map(calls, ordered=True)]
    assert [(error.code, error.place, error.transient) for error in outcomes] == [
        ("not-positive-definite", "job/1/cholesky", False),
        ("storage", f"job/2/lu ({missing})", False),
        ("unknown-operation", "job/3/nonsense", False),
    ]
    assert "leading minor" in outcomes[0].message
    assert str(outcomes[0]).startswith(f"{outcomes[0].message} [job/1/cholesky]")
    assert accel.reporter.total("rejected") == 3


def test_errors_survive_pickling():
    error = RejectedError("not-finite", "NaN at [1]", cure="clean the data")
    error.place = "job/1/lu"
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.code, str(copy), copy.place) == ("not-finite", str(error), "job/1/lu")
    busy = pickle.loads(pickle.dumps(UnavailableError("busy", retry_after_s=2.0)))
    assert (busy.code, busy.retry_after_s) == ("unavailable", 2.0)


# Keys


def keys_of(accel, n=3):
    calls = [Call.of("echo", b"x") for _ in range(n)]
    return [call.key for call, _ in accel.map(calls, ordered=True)]


def test_every_attempt_at_a_task_gives_a_record_the_same_key(monkeypatch):
    monkeypatch.setattr("yarn_accel.client.runners._NUMBERS", iter([1, 1, 2]))
    seen = []
    for attempt in range(3):
        environ = {**TASK, "mapreduce_task_attempt_id": f"attempt_1_0001_m_000003_{attempt}"}
        with connect("inline", environ=environ, reporter=Reporter(is_silent=True)) as accel:
            seen.append(keys_of(accel))
    first, again, second_of_a_process = seen
    assert first == again == [f"task_1_0001_m_000003/{n}/echo" for n in (1, 2, 3)]
    assert second_of_a_process[0] == "task_1_0001_m_000003.2/1/echo"


def test_outside_of_a_task_keys_are_of_this_object_alone():
    with connect("inline", environ={}) as one, connect("inline", environ={}) as other:
        assert not set(keys_of(one)) & set(keys_of(other))


def test_a_key_of_the_callers_own_stays_and_takes_a_position():
    accel, made = scripted(done)
    with accel:
        calls = [Call.of("lu", b"x"), Call.of("lu", b"x", key="mine"), Call.of("lu", b"x")]
        list(accel.map(calls))
    assert made[0].keys == ["task_1/1/lu", "mine", "task_1/3/lu"]


def test_a_key_that_another_attempt_used_otherwise_becomes_one_of_this_object():
    def answer(call):
        return RejectedError("key-reused", "used") if call.key in ("task_1/1/lu", "mine") else done(call)

    accel, made = scripted(answer)
    with accel:
        outcomes = list(accel.map([Call.of("lu", b"x"), Call.of("lu", b"x", key="mine")]))
    assert isinstance(outcomes[0][1], Reply)
    assert outcomes[1][1].code == "key-reused", "a key of the caller's own means what the caller says"
    first, mine, again = (key for each in made for key in each.keys)
    assert (first, mine) == ("task_1/1/lu", "mine")
    assert again.endswith("/task_1/1/lu")
    assert (accel.reporter.total("done"), accel.reporter.total("rejected")) == (1, 1)


# Counters and status


def test_records_in_are_done_rejected_or_failed():
    outcomes = {
        "good": done,
        "bad": lambda call: RejectedError("not-finite", "NaN"),
        "gone": lambda call: StorageError("no such file"),
        "waiting": lambda call: StorageError("DataNode gone", transient=True),
        "alone": lambda call: UnavailableError("nobody"),
    }
    accel, _ = scripted(lambda call: outcomes[call.tag](call))
    with accel:
        assert len(list(accel.map(Call.of("lu", b"x", tag=tag) for tag in outcomes))) == 5
    totals = {name: total for (_, name), total in accel.reporter.totals.items()}
    assert totals == {"records_in": 5, "sent": 5, "done": 1, "rejected": 2, "failed": 2, "bytes": 8}


def test_counters_of_lost_servers_are_of_every_dispatcher():
    accel, made = scripted(done)
    with accel:
        for _ in accel.map([Call.of("lu", b"x"), Call.of("lu", b"y")]):
            made[0].counts["lost_servers"] += 1
            accel.call("lu", b"z")
            made[1].counts["resubmitted"] += 1
    assert len(made) == 2, "the call within the loop has a dispatcher of its own, both times the same"
    assert accel.reporter.total("lost_servers") == 2
    assert accel.reporter.total("resubmitted") == 2


def test_hadoop_streaming_reads_counters_and_nobody_else_sees_a_line(capsys):
    for environ in ({}, TASK):
        with connect("inline", environ=environ) as accel:
            for _ in accel.map([Call.of("echo", b"x")] * 3):
                pass
            totals = dict(accel.reporter.totals)
        assert totals == {} or environ == {}, "single records cost no line"
        lines = capsys.readouterr().err.splitlines()
        if environ:
            assert "reporter:counter:yarn-accel,done,3" in lines
            assert lines[0].startswith("reporter:status:computing on this node's CPU")
        else:
            assert lines == []
    with connect("inline", environ=TASK, count_calls=False) as accel:
        accel.call("echo", b"x")
    assert not any("counter" in line for line in capsys.readouterr().err.splitlines())


def test_a_mapper_that_never_closes_loses_no_counter():
    program = (
        "from yarn_accel.client import connect\n"
        "accel = connect('inline', patience_s=0)\n"
        "accel.call('echo', b'x')\n"
    )
    argv = [sys.executable, "-c", program]
    ended = subprocess.run(argv, env={**os.environ, **TASK}, capture_output=True, text=True, check=True)
    assert "reporter:counter:yarn-accel,done,1" in ended.stderr.splitlines()


# Its end


def test_after_the_end_every_use_is_an_error_that_says_so():
    accel, made = scripted(done)
    with accel:
        outcomes = accel.map([Call.of("lu", b"x")] * 3)
        next(outcomes)
    accel.close()
    with pytest.raises(LocalProtocolError, match="is closed"):
        next(outcomes)
    assert made[0].is_closed
    for use in (lambda: accel.call("lu", b"x"), lambda: accel.submit("lu", b"x")):
        with pytest.raises(LocalProtocolError, match="is closed"):
            use()


def test_a_copy_made_by_fork_says_to_connect_again():
    with connect("inline") as accel:
        accel.call("echo", b"x")
        child = os.fork()
        if not child:
            try:
                accel.call("echo", b"x")
            except LocalProtocolError as error:
                accel.close()
                os._exit(42 if "connect() in each process" in error.cure else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
        assert accel.call("echo", b"x").arrays(), "the parent's own still works"


# Settings and discovery


@pytest.mark.parametrize(
    ("given", "environ", "named"),
    [
        ({"runner": "cloud"}, {}, "argument runner: expected one of hadoop, local, inline"),
        ({}, {"ACCEL_RUNNER": "cloud"}, "ACCEL_RUNNER"),
        ({"window": 0}, {}, "argument window: expected a number from 1"),
        ({}, {"ACCEL_WINDOW": "many"}, "ACCEL_WINDOW"),
        ({"fallback": "maybe"}, {}, "expected true or false"),
        ({}, {"ACCEL_FALLBACK": "2"}, "ACCEL_FALLBACK"),
        ({"pack": "some"}, {}, "argument pack"),
        ({}, {"ACCEL_PATIENCE_S": "nan"}, "ACCEL_PATIENCE_S"),
        ({"lost_after_s": 0.5}, {}, "seconds from 1 to 3600"),
    ],
)
def test_a_wrong_setting_is_named(given, environ, named):
    with pytest.raises(ConfigError, match=named):
        connect(**{"runner": "inline" if not environ else "", **given}, environ=environ)


def test_the_environment_decides_what_the_caller_leaves_open():
    environ = {"ACCEL_RUNNER": "inline", "ACCEL_WINDOW": "many"}
    with connect(environ=environ, window=3) as accel:
        assert accel.call("echo", b"x").device == "cpu:fallback"


NOBODY = {"ACCEL_AGENT": "nobody.sock", "NM_HOST": "w1"}
BINDING = yarn_accel.client.Binding((yarn_accel.client.Endpoint("s1", "127.0.0.1", 9, "", "w1"),))
ALICE = issue(bytes(32), "alice", 2**40, "k1")


def test_without_a_server_this_process_computes_or_says_whom_it_asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = []
    with connect(environ=NOBODY, on_wait=said.append, patience_s=0) as accel:
        assert accel.call("echo", b"x").device == "cpu:fallback"
    assert "nobody.sock" in said[0]
    with pytest.raises(ConfigError, match=r"no pipeline server and no fallback: .*nobody\.sock"):
        connect(environ=NOBODY, fallback=False)


def test_a_binding_wants_a_credential_of_the_tenant_that_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(yarn_accel.client.StartupError, match="HADOOP_TOKEN_FILE_LOCATION is not set"):
        connect(environ={}, binding=BINDING)
    with pytest.raises(AuthenticationError, match="is for tenant 'alice', expected 'bob'"):
        connect(environ={}, binding=BINDING, credential=ALICE, tenant="bob")
    with pytest.raises(yarn_accel.client.StartupError, match="missing cannot be read"):
        connect(environ={}, binding=tmp_path / "missing", credential=ALICE)
    servers = TaskServers({}, CurrentAttempt.from_environ({}), BINDING)
    assert task_credential(servers, {}, 0.0, ALICE) is ALICE
    assert [each.name for each in servers.now(True).endpoints] == ["s1"]


def test_a_server_that_refuses_the_credential_is_an_error_of_every_call(serve):
    endpoint = serve(lambda peer: None, lambda peer: None, master=b"another secret of the other site")
    binding = yarn_accel.client.Binding((endpoint,))
    with connect(environ={}, binding=binding, credential=ALICE) as accel:
        with pytest.raises(AuthenticationError):
            accel.call("echo", b"x")
        future = accel.submit("echo", b"x")
        assert isinstance(future.exception(120), AuthenticationError)
        assert future.exception().place


def test_the_page_for_mappers_has_every_setting():
    text = (Path(__file__).resolve().parents[3] / "docs" / "mapper-failures.md").read_text(encoding="utf-8")
    for name in ConnectSettings._fields:
        assert f"| `{name}` | `ACCEL_{name.upper()}` |" in text, name
