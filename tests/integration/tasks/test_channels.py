"""Who may say what to a task service: the real master's HTTP server on a real socket, and hostile peers."""

from __future__ import annotations

import asyncio
import copy
import gzip
import json
import resource
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.served_tasks import ServedTasks, definition, report, served_tasks
from yarn_accel.core.tasks.attempt_orders import AttemptId
from yarn_accel.core.tasks.service.submission import app_document
from yarn_accel.core.tasks.worker_messages import (
    AttemptEnd,
    AttemptOutcome,
    AttemptPhase,
    AttemptReport,
    WorkerOrder,
    parse_order,
)
from yarn_accel.errors import AuthenticationError, RejectedError
from yarn_accel.worker.service import REPORT_PATH

OTHER_SECRET = b"another application's own secret"
HEARTBEAT = {"version": 1, "node": "n1", "devices": [], "server": None}


def play(folder: Path, story: Callable[[ServedTasks], Awaitable[None]], **settings: Any) -> None:
    async def work() -> None:
        async with served_tasks(folder, **settings) as site:
            await story(site)

    asyncio.run(asyncio.wait_for(work(), 120))


async def orders(site: ServedTasks, worker: str, sequence: int = 1, **more: Any) -> WorkerOrder:
    return parse_order(await site.ask(f"worker:{worker}", REPORT_PATH, report(worker, sequence, **more)))


async def with_attempt(site: ServedTasks, worker: str) -> tuple[WorkerOrder, int]:
    """Report until there is something to run; the order, and the number of the last report."""
    sequence, taken = 0, None
    while True:
        sequence += 1
        order = await orders(site, worker, sequence, order=taken)
        taken = order.number
        if order.attempts:
            return order, sequence


def ended(attempt: AttemptId, outcome: AttemptOutcome = AttemptOutcome.DONE) -> AttemptReport:
    return AttemptReport(attempt, AttemptPhase.ENDED, 0.0, end=AttemptEnd(outcome, 0))


def counts(site: ServedTasks, app: str = "a") -> dict[str, int]:
    status = site.service.status()
    found = status["apps"].get(app) or status["ended"][app]
    return {name: n for name, n in found["tasks"].items() if n}


def test_only_the_owner_submits_cancels_and_asks(tmp_path: Path) -> None:
    async def story(site: ServedTasks) -> None:
        await site.submit(definition("a"))
        uri = site.hand_in(definition("b"))
        for verb, document in (
            ("tasks-submit", {"uri": uri}),
            ("tasks-cancel", {"app": "a"}),
            ("tasks-outcome", {"app": "a"}),
            ("tasks-use", {"nodes": ["n1"]}),
        ):
            path = f"/v1/control/{verb}"
            with pytest.raises(AuthenticationError, match="the signature is not one of control:owner"):
                await site.ask("control:owner", path, document, OTHER_SECRET)
            for sender in ("worker:n1", "agent:n1", "somebody"):
                with pytest.raises(RejectedError, match="may not control") as refused:
                    await site.ask(sender, path, document)
                assert refused.value.code == "not-allowed"
            assert (await site.send(path, json.dumps(document), {}))[0] == 401
        assert list(site.service.status()["apps"]) == ["a"]
        assert counts(site) == {"ready": 3}
        assert (await site.control("tasks-outcome", {"app": "a"}))["rows"] == []
        assert (await site.control("tasks-use", {"nodes": ["n1"]}))["workers"] == {}
        await site.control("tasks-cancel", {"app": "a"})
        assert counts(site) == {"cancelled": 3}

    play(tmp_path, story)


def test_an_end_counts_only_from_the_worker_that_has_the_attempt(tmp_path: Path) -> None:
    async def story(site: ServedTasks) -> None:
        await site.submit(definition("a", 1))
        order, sequence = await with_attempt(site, "n1")
        forged = report("n1", 1 << 40, attempts=(ended(order.attempts[0].attempt),))
        for sender in ("worker:n2", "agent:n1", "control:owner"):
            with pytest.raises(RejectedError, match="may not report for n1") as refused:
                await site.ask(sender, REPORT_PATH, forged)
            assert refused.value.code == "not-yours"
        with pytest.raises(AuthenticationError):
            await site.ask("worker:n1", REPORT_PATH, forged, OTHER_SECRET)
        assert (await site.send(REPORT_PATH, json.dumps(forged), {}))[0] == 401
        # A worker that is one, of an attempt that it does not have.
        await orders(site, "n2", attempts=(ended(order.attempts[0].attempt),))
        assert counts(site) in ({"queued": 1}, {"running": 1})
        await orders(site, "n1", sequence + 1, attempts=(ended(order.attempts[0].attempt),))
        assert counts(site) == {"done": 1}

    play(tmp_path, story)


def test_the_end_of_an_earlier_attempt_is_not_that_of_the_next_one(tmp_path: Path) -> None:
    async def story(site: ServedTasks) -> None:
        await site.submit(definition("a", 1))
        first, sequence = await with_attempt(site, "n1")
        failed = ended(first.attempts[0].attempt, AttemptOutcome.FAILED)
        await orders(site, "n1", sequence + 1, order=first.number, attempts=(failed,))
        while True:
            sequence += 2
            second = await orders(site, "n1", sequence, order=first.number)
            if second.attempts and second.attempts[0].attempt != first.attempts[0].attempt:
                break
        await orders(site, "n1", sequence + 1, attempts=(ended(first.attempts[0].attempt),))
        assert "done" not in counts(site)

    play(tmp_path, story)


def test_what_was_received_once_or_is_from_before_this_master_is_refused(tmp_path: Path) -> None:
    async def story(site: ServedTasks) -> None:
        await site.submit(definition("a", 1))
        order, sequence = await with_attempt(site, "n1")
        body = json.dumps(report("n1", sequence + 1, attempts=(ended(order.attempts[0].attempt),))).encode()
        old = site.signed("worker:n1", REPORT_PATH, body, time.time() - 3600)
        status, text = await site.send(REPORT_PATH, body, dict(old.headers))
        assert (status, "clocks" in text) == (401, True)
        cancel = json.dumps({"app": "a"}).encode()
        sent = site.signed("control:owner2", "/v1/control/tasks-status", cancel)
        assert (await site.send("/v1/control/tasks-status", cancel, dict(sent.headers)))[0] == 200
        for path in ("/v1/control/tasks-status", "/v1/control/tasks-cancel"):
            assert (await site.send(path, cancel, dict(sent.headers)))[0] == 401, path
        assert "done" not in counts(site)

    play(tmp_path, story)


async def raw(site: ServedTasks, head: str, body: bytes = b"") -> tuple[asyncio.StreamReader, Any]:
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(head.encode() + body)
    await writer.drain()
    return reader, writer


def post(*headers: str) -> str:
    return "\r\n".join((f"POST {REPORT_PATH} HTTP/1.1", "Host: master", *headers, "", ""))


def test_a_body_that_is_too_long_is_refused_before_it_is_read(tmp_path: Path) -> None:
    async def story(site: ServedTasks) -> None:
        for head, status in (
            (post(f"Content-Length: {1 << 40}"), b"413"),
            (post("Transfer-Encoding: chunked"), b"411"),
        ):
            reader, writer = await raw(site, head)
            assert status in await reader.readline()
            writer.close()
        bomb = gzip.compress(bytes(1 << 28))
        before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        head = post("Content-Encoding: gzip", f"Content-Length: {len(bomb)}")
        reader, writer = await raw(site, head, bomb)
        assert b"401" in await reader.readline()
        writer.close()
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 64 * 1024
        await orders(site, "n1")

    play(tmp_path, story)


def test_who_stalls_in_a_request_is_cut_off_and_holds_nobody_up(tmp_path: Path) -> None:
    async def story(site: ServedTasks) -> None:
        large = 2 << 20
        stalled = [
            await raw(site, head, body)
            for head, body in (
                (post("Content-Length: 1000"), b"{"),
                (f"POST {REPORT_PATH} HT", b""),
                (post("Host: master")[:-2], b""),
                ("", b""),
                *[(post(f"Content-Length: {large}"), bytes(large - 1))] * 20,
            )
        ]
        await site.submit(definition("a", 1))
        await with_attempt(site, "n1")
        await site.ask("agent:n1", "/v1/heartbeat", HEARTBEAT)
        answers = [await reader.readline() for reader, _ in stalled]
        assert b"408" in answers[0]
        assert answers[1:4] == [b""] * 3
        assert all(b"408" in answer or b"503" in answer for answer in answers[4:])
        for _, writer in stalled:
            writer.close()

    play(tmp_path, story, idle_s=2.0)


def test_a_thousand_requests_of_one_user_at_once_hold_nobody_else_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_apps, is_readable = 20, threading.Event()

    async def story(site: ServedTasks) -> None:
        await site.submit(definition("a", 4))
        read = site.store.read_bytes

        def slow_read(uri: str, most: int) -> bytes:
            assert is_readable.wait(100)
            return read(uri, most)

        monkeypatch.setattr(site.store, "read_bytes", slow_read)
        for number in range(40):
            site.hand_in(definition(f"many-{number}", 1))
        submitting = [
            asyncio.create_task(
                site.control(
                    "tasks-submit",
                    {"uri": f"{site.uri}/submitted/many-{number % 40}.json"},
                    f"control:{number}",
                )
            )
            for number in range(1000)
        ]
        await site.until(lambda: site.service.status()["submissions"] >= 1000)
        # Heartbeats, reports, the journal behind them and cancellations go on.
        await site.ask("agent:n1", "/v1/heartbeat", HEARTBEAT)
        await with_attempt(site, "n1")
        await site.control("tasks-cancel", {"app": "a"})
        assert not any(each.done() for each in submitting)
        is_readable.set()
        found = await asyncio.gather(*submitting, return_exceptions=True)
        refused = [each for each in found if isinstance(each, RejectedError)]
        assert all("applications run already" in each.message for each in refused)
        assert len(found) - len(refused) == 1000 // 40 * (n_apps - 1)
        assert not [each for each in found if isinstance(each, BaseException) and each not in refused]

    try:
        play(tmp_path, story, max_apps=n_apps)
    finally:
        is_readable.set()


ESCAPE = "<script>alert(1)</script>\x1b]0;title\x07[bold]"


def put(*path: object, value: Any) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        put("definition", "app", value="<b>a</b>"),
        put("definition", "app", value="a\x1b[31m"),
        put("definition", "name", value=ESCAPE),
        put("definition", "name", value=["a"]),
        put("definition", "priority", value="high"),
        put("definition", "priority", value=1 << 70),
        put("definition", "demands", value={"cpu": ["1", 0, 0]}),
        put("definition", "demands", value={"cpu": [1 << 70, 0, 0]}),
        put("definition", "demands", value={"<b>": [1, 0, 0]}),
        put("definition", "programs", value={"cpu": ["true", "", {}]}),
        put("definition", "programs", value={"cpu": [["x" * 100_000], "", {}]}),
        put("definition", "programs", value={"cpu": [[], "", {}]}),
        put("definition", "programs", value={"cpu": [["a\0b"], "", {}]}),
        put("definition", "environment", value=[["A=B", "x"]]),
        put("definition", "environment", value=[[f"V{n}", "x" * 1000] for n in range(200)]),
        put("definition", "files", value=[["../up", "hdfs:///x"]]),
        put("definition", "files", value=[[f"f{n}", "hdfs:///x"] for n in range(65)]),
        put("definition", "max_attempts", value=1.5),
        put("definition", "time_limit_s", value=-1),
        put("definition", "silence_limit_s", value="1"),
        put("definition", "output", value=7),
        put("definition", "declared", value=[0, {}, {}]),
        put("definition", "declared", value=[1, {"cpu": [1]}, {}]),
        put("definition", "surprise", value=1),
        put("tasks", 0, 0, value="a\x1b[31m"),
        put("tasks", 0, 0, value="<i>"),
        put("tasks", 0, 1, value="b"),
        put("tasks", 0, 2, value=["hdfs:///x" + "y" * 5000, 0, 1, False]),
        put("tasks", 0, 2, value=["hdfs:///x", -1, 1, False]),
        put("tasks", 0, 2, value=["hdfs:///x", 0, 1, "no"]),
        put("tasks", 0, 3, value="../escaped"),
        put("tasks", 0, value=None),
        put("tasks", value={}),
        put("version", value=None),
    ],
)
def test_a_bad_application_is_refused_with_its_place_and_the_rest_goes_on(
    tmp_path: Path, change: Callable[[Any], None]
) -> None:
    async def story(site: ServedTasks) -> None:
        document = copy.deepcopy(app_document(definition("bad")))
        change(document)
        uri = site.hand_in_document("bad", document)
        with pytest.raises(RejectedError) as refused:
            await site.control("tasks-submit", {"uri": uri})
        assert refused.value.code in ("bad-app", "app-refused")
        assert "\x1b" not in str(refused.value)
        assert len(str(refused.value)) < 1000
        await site.submit(definition("a", 1))
        await with_attempt(site, "n1")
        assert list((await site.control("tasks-status"))["apps"]) == ["a"]

    play(tmp_path, story)


def test_words_of_workers_reach_no_terminal_as_they_are(tmp_path: Path) -> None:
    async def story(site: ServedTasks) -> None:
        await site.submit(definition("a", 1))
        order, sequence = await with_attempt(site, "n1")
        end = AttemptEnd(AttemptOutcome.FAILED, 1, error=ESCAPE)
        failed = AttemptReport(order.attempts[0].attempt, AttemptPhase.ENDED, 0.0, end=end)
        await orders(site, "n1", sequence + 1, attempts=(failed,), problem=ESCAPE)
        explained = (await site.control("tasks-explain", {"task": "a/000000"}))["text"]
        status = await site.control("tasks-status")
        assert "alert" in explained
        assert "alert" in status["workers"]["n1"]["problem"]
        assert "\x1b" not in explained + json.dumps(status, ensure_ascii=False)

    play(tmp_path, story)
