"""Operation tasks: records in, one line out for each, in order; what is read is said to the worker."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from yarn_accel.adapters.hadoop_rpc.tokens import Token, TokenFile, read_token_file, write_token_file
from yarn_accel.client import Call, Reply, Tensor, connect
from yarn_accel.client.token_file import read_secrets, write_secrets
from yarn_accel.core.tasks.applications import OPERATION_PROGRAM
from yarn_accel.core.tasks.attempt_orders import AttemptId, AttemptOrder
from yarn_accel.core.tasks.values import AppId, Form, FormDemand, TaskId
from yarn_accel.errors import ConfigError, UnavailableError
from yarn_accel.storage import Store
from yarn_accel.wire.credential import SECRET_ALIAS
from yarn_accel.worker.operation_program import OperationProgram, operation_program
from yarn_accel.worker.operation_task import InputReader, run_records


def saved(folder: Path, name: str, array: np.ndarray) -> str:
    np.save(folder / name, array)
    return f"file://{folder}/{name}.npy"


def rows(lines: list[str], operation: str, keep=None, log=None) -> list[str]:
    with connect("inline") as accel:
        reader = InputReader(Store(), log or io.StringIO())
        return list(run_records(lines, operation, {}, accel.map, reader, keep or (lambda *_: "x.npz")))


def test_each_record_is_one_line_in_the_order_of_the_input(tmp_path):
    good = saved(tmp_path, "good", np.diag([4.0, 9.0]))
    bad = saved(tmp_path, "bad", np.diag([-1.0, 9.0]))
    missing = f"file://{tmp_path}/missing.npy"
    (tmp_path / "torn.npy").write_bytes(b"\x93NUMPY\x01")
    torn = f"file://{tmp_path}/torn.npy"
    lines = [f"{bad}\n", "\n", f"{good}\n", "# a comment\n", f"{missing}\n", f"{torn}\n", "no-uri\n", good]
    found = [row.split("\t") for row in rows(lines, "cholesky")]
    assert [row[:2] for row in found] == [
        [bad, "rejected"],
        [good, "done"],
        [missing, "rejected"],
        [torn, "rejected"],
        ["no-uri", "rejected"],
        [good, "done"],
    ]
    assert [row[2] for row in found if row[1] == "rejected"][:3] == [
        "not-positive-definite",
        "storage",
        "bad-npy",
    ]
    assert json.loads(found[1][2])["results"] == {"l": [[2.0, 0.0], [0.0, 3.0]]}


def test_an_error_of_plain_bytes_says_which_name_made_them_so(tmp_path):
    (tmp_path / "a.raw").write_bytes(bytes(32))
    (row,) = rows([f"file://{tmp_path}/a.raw"], "lu")
    assert "a.raw is read as plain bytes because its name ends neither in .npy nor in .npz" in row


def test_several_inputs_of_a_record_are_read_in_their_order(tmp_path):
    a = saved(tmp_path, "a", np.array([[1.0, 2.0]]))
    b = saved(tmp_path, "b", np.array([[3.0], [4.0]]))
    (row,) = rows([f"{a}\t{b}"], "gemm")
    assert json.loads(row.split("\t")[3])["results"] == {"c": [[11.0]]}


def test_large_and_complex_results_go_to_a_file(tmp_path):
    kept = {}

    def keep(number: int, reply: Reply) -> str:
        kept[number] = reply.arrays()
        return f"file-{number}"

    large = saved(tmp_path, "large", np.eye(65))
    complexes = saved(tmp_path, "complex", np.eye(2, dtype=complex))
    found = [json.loads(row.split("\t")[2]) for row in rows([large, complexes], "cholesky", keep)]
    assert [each["file"] for each in found] == ["file-0", "file-1"]
    assert kept[0]["l"].shape == (65, 65)


def test_what_is_no_fault_of_a_record_fails_the_task(tmp_path):
    uri = saved(tmp_path, "a", np.eye(2))

    def send(calls):
        for call in calls:
            yield call, UnavailableError("nobody answers")

    with pytest.raises(UnavailableError, match="nobody answers"):
        list(run_records([uri], "lu", {}, send, InputReader(Store(), io.StringIO()), lambda *_: ""))


def test_lines_keep_their_order_whatever_that_of_the_answers_is(tmp_path):
    uris = [saved(tmp_path, str(i), np.full((1, 1), float(i))) for i in range(5)]

    def send(calls):
        for call in reversed(list(calls)):
            reply = Reply({"n": float(call.inputs[0].array()[0, 0])}, {}, "s", "d", {}, 0, 0)
            yield call, reply

    found = list(run_records(uris, "lu", {}, send, InputReader(Store(), io.StringIO()), lambda *_: ""))
    assert [json.loads(row.split("\t")[2])["info"]["n"] for row in found] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_it_says_what_it_reads_and_reads_what_lines_share_once(tmp_path):
    model = saved(tmp_path, "model", np.array([[3.0], [4.0]]))
    points = [saved(tmp_path, str(i), np.array([[1.0, float(i)]])) for i in range(3)]
    log = io.StringIO()
    assert len(rows([f"{each}\t{model}" for each in points], "gemm", log=log)) == 3
    said = [line for line in log.getvalue().splitlines() if line.startswith("reporter:read:")]
    n_bytes = sum(Path(uri.removeprefix("file://")).stat().st_size for uri in (*points, model))
    assert said[-1].startswith(f"reporter:read:{n_bytes},")
    assert said[-1].endswith(",done")


def order(form: Form, *argv: str) -> AttemptOrder:
    return AttemptOrder(AttemptId("a"), AppId("a"), TaskId("a/1"), form, argv, FormDemand(3))


def test_the_credential_reaches_the_task_in_a_file_of_its_own(tmp_path):
    token = tmp_path / "token"
    token.write_bytes(write_secrets({"yarn-accel.node": b"key", SECRET_ALIAS: b"secret"}))
    for _ in range(2):  # a worker that was started again finds the file of the one before
        program = operation_program(tmp_path, "/run/agent.sock", {"HADOOP_TOKEN_FILE_LOCATION": str(token)})
    own = Path(program.token_file)
    assert own.stat().st_mode & 0o777 == 0o600
    assert read_secrets(own.read_bytes()) == {SECRET_ALIAS: b"secret"}
    asking = order(Form.GPU, OPERATION_PROGRAM, "lu", "{}")
    found = program.environment(asking)
    assert found["HADOOP_TOKEN_FILE_LOCATION"] == str(own)
    assert found["ACCEL_AGENT"] == "/run/agent.sock"
    assert found["OMP_NUM_THREADS"] == "3"
    assert "secret" not in " ".join((*found.values(), *program.argv(asking)))
    assert program.argv(asking)[3:] == ("hadoop", "lu", "{}")
    computing = order(Form.CPU, OPERATION_PROGRAM, "lu", "{}")
    assert program.argv(computing)[3:] == ("inline", "lu", "{}")
    assert "HADOOP_TOKEN_FILE_LOCATION" not in program.environment(computing)
    other = order(Form.GPU, "./mapper")
    assert (program.argv(other), program.environment(other)) == (("./mapper",), {})


def test_every_task_gets_the_hdfs_tokens_and_nothing_else_of_the_workers_own(tmp_path):
    hdfs = Token(b"i", b"p", "HDFS_DELEGATION_TOKEN", "10.0.0.1:8020")
    manager = Token(b"i", b"q", "RM_DELEGATION_TOKEN", "")
    given = TokenFile({"h": hdfs, "r": manager}, {"yarn-accel.node": b"key", SECRET_ALIAS: b"secret"})
    (tmp_path / "token").write_bytes(write_token_file(given))
    environ = {"HADOOP_TOKEN_FILE_LOCATION": str(tmp_path / "token")}
    program = operation_program(tmp_path, "", environ, "hdfs://10.0.0.1:8020")
    asking, computing = (order(form, OPERATION_PROGRAM, "lu", "{}") for form in (Form.GPU, Form.CPU))
    for each, secrets in (
        (order(Form.CPU, "./mapper"), {}),
        (computing, {}),
        (asking, {SECRET_ALIAS: b"secret"}),
    ):
        found = program.environment(each)
        own = Path(found["HADOOP_TOKEN_FILE_LOCATION"])
        assert read_token_file(own.read_bytes()) == TokenFile({"h": hdfs}, secrets)
        assert own.stat().st_mode & 0o777 == 0o600
        assert found["fs_defaultFS"] == "hdfs://10.0.0.1:8020"
    newer = TokenFile({"h": replace(hdfs, password=b"newer")}, given.secrets)
    (tmp_path / "newer").write_bytes(write_token_file(newer))
    (tmp_path / "newer").rename(tmp_path / "token")
    own = Path(program.environment(computing)["HADOOP_TOKEN_FILE_LOCATION"])
    assert read_token_file(own.read_bytes()).tokens["h"].password == b"newer", "as the master renews it"
    other = replace(order(Form.CPU, "./mapper"), environment=(("HADOOP_TOKEN_FILE_LOCATION", "mine"),))
    assert "HADOOP_TOKEN_FILE_LOCATION" not in program.environment(other)


def test_without_a_credential_no_server_is_asked(tmp_path):
    program = operation_program(tmp_path, "", {})
    assert program == OperationProgram(folder=tmp_path)
    with pytest.raises(ConfigError, match="no credential for pipeline servers"):
        program.environment(order(Form.GPU, OPERATION_PROGRAM, "lu", "{}"))


def test_the_call_has_the_content_not_the_address(tmp_path):
    seen: list[Call] = []

    def send(calls):
        seen.extend(calls)
        return iter(())

    reader = InputReader(Store(), SimpleNamespace(write=lambda _: None, flush=lambda: None))
    uri = saved(tmp_path, "a", np.eye(2))
    list(run_records([uri], "lu", {"form": "packed"}, send, reader, lambda *_: ""))
    ((tensor,), params) = seen[0].inputs, seen[0].params
    assert isinstance(tensor, Tensor)
    assert params == {"form": "packed"}
