"""Verbs against a small master in this process, which moves, dies and refuses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from tests.unit.launch.yarn import FakeRmClient, Yarn, app, report, rm_client
from yarn_accel.adapters.hadoop_rpc import ApplicationId
from yarn_accel.adapters.hadoop_rpc.records import ApplicationReport, ApplicationState
from yarn_accel.adapters.signed_http import RequestVerifier, guarded, sender_key
from yarn_accel.errors import AuthenticationError, RejectedError, UnavailableError
from yarn_accel.hadoop.control import Control

SECRET = b"s" * 32


class Master:
    """Answers signed orders, and remembers who gave them."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []
        self.port = 0
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Master:
        self.verifier = RequestVerifier(
            lambda sender: sender_key(SECRET, sender), not_before_s=time.time() - 1
        )
        application = web.Application()
        application.router.add_post("/v1/control/explain", guarded(self.verifier, self._explain))
        self._runner = web.AppRunner(application)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _explain(self, sender: str, document: Any) -> Any:
        self.heard.append((sender, document))
        if document["node"] == "w9":
            raise RejectedError("unknown-node", "there is no node w9")
        if document["node"] == "odd":
            return ["no", "object"]
        return {"text": f"about {document['node']}"}


Work = Callable[[Master, Yarn, Control], Awaitable[Any]]


@pytest.fixture
def run(tmp_path) -> Callable[..., Any]:
    def begin(work: Work, secret: bytes = SECRET, patience_s: float = 60.0) -> Any:
        async def inner() -> Any:
            ours: FakeRmClient = rm_client(tmp_path)
            async with Master() as master:
                ours.yarn.add(report(1, host="127.0.0.1", rpc_port=master.port))
                async with Control(ours, ours.yarn, app(1), secret, patience_s) as control:
                    return await work(master, ours.yarn, control)

        return asyncio.run(inner())

    return begin


def test_questions_are_signed_under_a_name_of_their_own(run) -> None:
    async def work(master: Master, _: Yarn, control: Control) -> None:
        assert await control.ask("explain", {"node": "w1"}) == {"text": "about w1"}
        await control.ask("explain", {"node": "w2"})
        assert [document["node"] for _, document in master.heard] == ["w1", "w2"]
        assert all(sender.startswith("control:") for sender, _ in master.heard)

    run(work)


def test_a_refusal_is_reported_and_not_repeated(run) -> None:
    async def work(master: Master, _: Yarn, control: Control) -> None:
        with pytest.raises(RejectedError, match=r"^there is no node w9$") as caught:
            await control.ask("explain", {"node": "w9"})
        assert caught.value.code == "unknown-node"
        assert len(master.heard) == 1

    run(work)


def test_another_secret_is_refused(run) -> None:
    async def work(_: Master, __: Yarn, control: Control) -> None:
        with pytest.raises(AuthenticationError, match="signature"):
            await control.ask("explain", {"node": "w1"})

    run(work, secret=b"x" * 32)


def test_a_master_whose_clock_is_ahead_is_asked_again(run) -> None:
    """It has just begun, by its clock after our question was signed."""

    async def work(master: Master, _: Yarn, control: Control) -> None:
        master.verifier._not_before_us = int((time.time() + 0.3) * 1e6)
        assert await control.ask("explain", {"node": "w1"}) == {"text": "about w1"}
        assert len(master.heard) == 1

    run(work)


def test_a_master_that_moved_is_found_again(run) -> None:
    async def work(master: Master, yarn: Yarn, control: Control) -> None:
        found = yarn.reports[app(1)]
        # First nobody, then an attempt that is not registered, then the new one.
        yarn.story = [report(1, host="127.0.0.1", rpc_port=1), found, report(1, rpc_port=-1), found, found]
        assert await control.ask("explain", {"node": "w1"}) == {"text": "about w1"}
        assert len(master.heard) == 1

    run(work)


def test_a_resource_manager_that_is_away_is_asked_again_by_who_has_patience(run, monkeypatch) -> None:
    async def work(master: Master, yarn: Yarn, control: Control) -> None:
        answering, n_left = yarn.report, 3

        async def report(application: ApplicationId) -> ApplicationReport:
            nonlocal n_left
            n_left -= 1
            if n_left >= 0:
                raise UnavailableError("no ResourceManager answers")
            return await answering(application)

        monkeypatch.setattr(yarn, "report", report)
        with pytest.raises(UnavailableError, match="no ResourceManager answers"):
            await control.ask("explain", {"node": "w1"})
        assert await control.ask("explain", {"node": "w1"}, patience_s=60.0) == {"text": "about w1"}
        assert len(master.heard) == 1

    run(work, patience_s=0.0)


def test_patience_ends(run) -> None:
    async def work(_: Master, yarn: Yarn, control: Control) -> None:
        yarn.add(report(1, rpc_port=-1))
        with pytest.raises(UnavailableError, match=r"does not run at the moment.*yarn application -status"):
            await control.ask("explain", {"node": "w1"})

    run(work, patience_s=0.0)


def test_nobody_waits_for_an_application_that_is_over(run) -> None:
    async def work(_: Master, yarn: Yarn, control: Control) -> None:
        yarn.add(report(1, ApplicationState.FINISHED, rpc_port=-1))
        with pytest.raises(UnavailableError, match="FINISHED"):
            await control.ask("explain", {"node": "w1"})

    run(work, patience_s=10_000.0)


def test_an_answer_that_is_no_object_is_none(run) -> None:
    async def work(_: Master, __: Yarn, control: Control) -> None:
        with pytest.raises(Exception, match="did not answer with an object"):
            await control.ask("explain", {"node": "odd"})

    run(work)
