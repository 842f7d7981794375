from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from yarn_accel.core.tasks.attempt_orders import (
    AttemptId,
    AttemptOrder,
    FunctionCall,
    InputSplit,
    OutputFile,
    TaskFolder,
    attempt_id,
    attempt_names,
)
from yarn_accel.core.tasks.events import TaskMeasurement
from yarn_accel.core.tasks.values import AppId, Form, FormDemand, ResourceId, TaskId
from yarn_accel.core.tasks.worker_messages import (
    MAX_LISTED,
    AttemptEnd,
    AttemptOutcome,
    AttemptPhase,
    AttemptReport,
    Counter,
    IoSample,
    OrderNumber,
    OrderParser,
    WorkerOrder,
    WorkerReport,
    order_document,
    parse_order,
    parse_report,
    report_document,
)
from yarn_accel.errors import RemoteProtocolError

FIRST, SECOND = attempt_id(1700000000000, 7, 3, 0), attempt_id(1700000000000, 7, 4, 1)
THIRD = attempt_id(1700000000000, 7, 5, 0)
ORDER = WorkerOrder(
    OrderNumber(2, 17),
    "0123456789abcdef",
    41,
    (
        AttemptOrder(
            FIRST,
            AppId("app-7"),
            TaskId("app-7/3"),
            Form.GPU,
            ("./mapper.py", "--k", "4", ""),
            FormDemand(1, 1, 1 << 30),
            InputSplit("hdfs://nn/in/ä b", 128, 64, with_keys=True),
            OutputFile("hdfs://nn/out", "part-m-00003"),
            (("mapper.py", "hdfs://nn/code/mapper.py"),),
            (("A", ""), ("K", "v=1")),
            3600.0,
            600.0,
        ),
        AttemptOrder(SECOND, AppId("app-7"), TaskId("app-7/4"), Form.CPU, ("true",), FormDemand()),
        AttemptOrder(
            THIRD,
            AppId("app-7"),
            TaskId("app-7/5"),
            Form.CPU,
            (),
            FormDemand(),
            files=(("code.zip", "hdfs://nn/code/code.zip"),),
            inputs=(("left.npy", "hdfs://nn/lu/1/left.npy"), ("right.npy", "hdfs://nn/lu/2/right.npy")),
            output_folder=TaskFolder("hdfs://nn/lu", "5", ("tile.npy",)),
            function=FunctionCall("lu.tiles:gemm", '{"k": [1, "\u00e4"]}', ("code.zip",)),
        ),
    ),
)
REPORT = WorkerReport(
    ResourceId("w1"),
    "w1.example.org",
    "0123456789abcdef",
    42,
    OrderNumber(2, 17),
    cores=6,
    gpus=2,
    memory_bytes=1 << 34,
    attempts=(
        AttemptReport(FIRST, AttemptPhase.RUNNING, 1.5, "half of it", 32),
        AttemptReport(
            SECOND,
            AttemptPhase.ENDED,
            0.01,
            end=AttemptEnd(
                AttemptOutcome.FAILED,
                -9,
                "killed",
                (Counter("g", "n", -2), Counter("g", "m", 1)),
                wall_s=2.0,
                measured=TaskMeasurement(64.0, 1.0, 1.0, alone=True),
                result='{"residual": 1e-9}',
            ),
        ),
    ),
    io=IoSample(1e6, 2, 0.3),
    bandwidth_bytes_per_s=128e6,
    accelerator="a100",
)
DOCUMENTS = [(parse_order, order_document(ORDER)), (parse_report, report_document(REPORT))]


def sent(document: Any) -> Any:
    return json.loads(json.dumps(document, allow_nan=False))


def test_both_documents_come_back_as_they_were() -> None:
    assert parse_order(sent(order_document(ORDER))) == ORDER
    assert parse_report(sent(report_document(REPORT))) == REPORT
    empty = WorkerReport(ResourceId("w"), "w", "0" * 16, 0, None, 0, 0, 0)
    assert parse_report(sent(report_document(empty))) == empty


def test_what_an_order_lists_as_the_one_before_did_is_read_once() -> None:
    parser = OrderParser()
    first, other = parser.parse(sent(order_document(ORDER))), parser.parse(sent(order_document(ORDER)))
    assert other == ORDER
    assert all(one is two for one, two in zip(first.attempts, other.attempts, strict=True))

    def changed(**values: object) -> Any:
        document = sent(order_document(ORDER))
        document["attempts"][0].update(values)
        return document

    is_taken_back = not ORDER.attempts[0].take_back
    assert parser.parse(changed(take_back=is_taken_back)).attempts[0].take_back is is_taken_back
    with pytest.raises(RemoteProtocolError, match=r"order\.attempts\[0\]\.form"):
        parser.parse(changed(form="none"))
    doubled = {**changed(), "attempts": changed()["attempts"][:1] * 2}
    with pytest.raises(RemoteProtocolError, match="twice"):
        parser.parse(doubled)


FREE_NAMES = ("environment", "files", "inputs")


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of a document, but those of free names."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*path, key)
        if key not in FREE_NAMES:
            yield from places(value[key], (*path, key))


def at(document: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        document = document[key]
    return document


WRONG = [-(10**400), 10**400, 1e308, True, "\0", "\ud800", "x" * 100_000, [[]] * 1025, {"": 1}, object()]


@pytest.mark.parametrize(("parse", "document"), DOCUMENTS, ids=["order", "report"])
def test_what_is_no_such_document_is_one_clear_error(parse: Any, document: Any) -> None:
    for path in places(document):
        for wrong in WRONG:
            bad = copy.deepcopy(document)
            place = at(bad, path[:-1])
            if wrong is True and isinstance(place[path[-1]], bool):
                continue
            place[path[-1]] = wrong
            with pytest.raises(RemoteProtocolError) as caught:
                parse(bad)
            assert len(str(caught.value)) < 1000
            assert str(caught.value).startswith(("order", "report"))


@pytest.mark.parametrize(("parse", "document"), DOCUMENTS, ids=["order", "report"])
def test_missing_and_unknown_keys_are_refused(parse: Any, document: Any) -> None:
    for path in [(), *places(document)]:
        place = at(document, path)
        if not isinstance(place, dict) or path[-1:] in {(each,) for each in FREE_NAMES}:
            continue
        for key in place:
            bad = copy.deepcopy(document)
            del at(bad, path)[key]
            with pytest.raises(RemoteProtocolError, match=f"{key} is missing"):
                parse(bad)
        bad = copy.deepcopy(document)
        at(bad, path)["surplus"] = 1
        with pytest.raises(RemoteProtocolError, match="unknown key 'surplus'; known"):
            parse(bad)


def test_names_that_become_files_stay_in_their_folder() -> None:
    for name in ("../x", "a/b", ".hidden", "", "a\nb", "x" * 201):
        bad = sent(order_document(ORDER))
        bad["attempts"][0]["output"]["name"] = name
        with pytest.raises(RemoteProtocolError, match=r"output\.name"):
            parse_order(bad)
    for attempt in ("attempt_1_1_m_000001_0/..", "../attempt_1_1_m_000001_0", "attempt_1_1_r_000001_0", "x"):
        bad = sent(order_document(ORDER))
        bad["attempts"][1]["attempt"] = attempt
        with pytest.raises(RemoteProtocolError, match=r"attempts\[1\].attempt"):
            parse_order(bad)


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("argv", ["true"], "function excludes argv"),
        ("function", None, "argv names no program"),
        ("input", {"uri": "file:///a", "start": 0, "length": 1, "with_keys": False}, "function excludes"),
        ("output", {"folder": "file:///a", "name": "b"}, "output and output_folder exclude each other"),
        ("inputs", {"../a": "file:///a"}, "inputs"),
        ("inputs", {"tmp": "file:///a"}, "inputs has tmp, which is another file"),
        ("inputs", {"code.zip": "file:///a"}, "inputs has code.zip, which is another file"),
        ("inputs", {"tile.npy": "file:///a"}, "output_folder has tile.npy, which is another file"),
        ("inputs", {f"n{n}": "file:///a" for n in range(513)}, "inputs is no object of at most 512 keys"),
    ],
)
def test_an_order_whose_parts_do_not_fit_together_is_refused(key: str, value: Any, error: str) -> None:
    bad = sent(order_document(ORDER))
    bad["attempts"][2][key] = value
    with pytest.raises(RemoteProtocolError, match=rf"attempts\[2\]\.{error}"):
        parse_order(bad)


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("function", "os", "which has characters"),
        ("function", "a/b:c", "which has characters"),
        ("function", "a:b.c", "which has characters"),
        ("arguments", "{", "is no JSON"),
        ("arguments", "[" * 30_000, "is no JSON"),
        ("arguments", "7", "neither an object nor a list"),
        ("archives", ["other.zip"], "the archive other.zip, which is none of files"),
    ],
)
def test_a_function_is_named_and_its_arguments_are_json(key: str, value: Any, error: str) -> None:
    bad = sent(order_document(ORDER))
    bad["attempts"][2]["function"][key] = value
    with pytest.raises(RemoteProtocolError, match=error):
        parse_order(bad)


def test_files_that_a_task_leaves_have_plain_names() -> None:
    for name in ("../x", "a/b", ".hidden", "", "a\nb", "x" * 201):
        bad = sent(order_document(ORDER))
        bad["attempts"][2]["output_folder"]["files"] = [name]
        with pytest.raises(RemoteProtocolError, match=r"output_folder\.files"):
            parse_order(bad)
    bad["attempts"][2]["output_folder"]["files"] = ["a", "a"]
    with pytest.raises(RemoteProtocolError, match="has a, which is another file"):
        parse_order(bad)


def test_an_order_lists_an_attempt_once_and_not_too_many() -> None:
    bad = sent(order_document(ORDER))
    bad["attempts"][1]["attempt"] = FIRST
    with pytest.raises(RemoteProtocolError, match=f"{FIRST} twice"):
        parse_order(bad)
    bad["attempts"] = [bad["attempts"][0]] * (MAX_LISTED + 1)
    with pytest.raises(RemoteProtocolError, match="at most 128"):
        parse_order(bad)


def test_only_an_attempt_that_ended_has_an_end() -> None:
    bad = sent(report_document(REPORT))
    bad["attempts"][0]["phase"] = "ended"
    with pytest.raises(RemoteProtocolError, match=r"attempts\[0\].end belongs"):
        parse_report(bad)


def test_an_attempt_is_named_as_hadoop_names_it() -> None:
    assert FIRST == "attempt_1700000000000_0007_m_000003_0"
    names = attempt_names(FIRST)
    assert names == ("job_1700000000000_0007", "task_1700000000000_0007_m_000003", 3, 0)
    with pytest.raises(ValueError, match="is not like attempt_1700000000000_0001"):
        attempt_names(AttemptId("task_1_1_m_000001"))
