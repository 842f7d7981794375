"""Verbs against a small master in this process, which moves, dies and refuses; and its secret here."""

from __future__ import annotations

import asyncio
import errno
import stat
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.unit.launch.yarn import FakeRmClient, Yarn, app, report, rm_client
from yarn_accel.adapters.credentials import create_master_secret, read_master_secret
from yarn_accel.adapters.hadoop_rpc import ApplicationId
from yarn_accel.adapters.hadoop_rpc.records import ApplicationReport, ApplicationState
from yarn_accel.adapters.signed_http import RequestVerifier, guarded, sender_key
from yarn_accel.errors import AuthenticationError, ConfigError, RejectedError, StartupError, UnavailableError
from yarn_accel.hadoop import control as retained_module
from yarn_accel.hadoop.control import (
    Control,
    RetainedApplication,
    own_master_secret,
    retained_applications,
    state_dir,
)

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


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path)}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_secret_of_32_bytes_that_only_we_can_read(environ) -> None:
    kept = RetainedApplication.of("application_1_0001", environ)
    secret = kept.create("hdfs://nn/x")
    assert len(secret) == 32
    assert RetainedApplication.of("application_1_0001", environ).secret() == secret
    assert kept.staging_uri() == "hdfs://nn/x"
    assert mode(kept.folder) == 0o700
    assert mode(kept.folder / "control-secret") == 0o600
    assert RetainedApplication.of("application_1_0002", environ).create("") != secret
    with pytest.raises(ConfigError, match="File exists"):
        kept.create("hdfs://nn/x")


def test_a_secret_that_others_may_read_is_not_used(environ) -> None:
    kept = RetainedApplication.of("application_1_0001", environ)
    kept.create("")
    (kept.folder / "control-secret").chmod(0o644)
    with pytest.raises(ConfigError, match="others may read it"):
        kept.secret()


def test_where_no_start_was_made_is_reported(environ) -> None:
    kept = RetainedApplication.of("application_1_0001", environ)
    with pytest.raises(
        AuthenticationError, match=r"not here.*machine that ran `yarn-accel start`.*stop --force"
    ):
        kept.secret()
    assert kept.staging_uri() == ""
    kept.remove()


def test_all_are_listed_and_one_is_removed(environ, tmp_path) -> None:
    assert retained_applications(environ) == ()
    for number in (2, 1):
        RetainedApplication.of(f"application_1_000{number}", environ).create("")
    found = retained_applications(environ)
    assert [kept.application for kept in found] == ["application_1_0001", "application_1_0002"]
    found[0].remove()
    assert retained_applications(environ) == found[1:]


def test_damaged_notes_are_named(environ) -> None:
    kept = RetainedApplication.of("application_1_0001", environ)
    kept.create("")
    (kept.folder / "start.json").write_text("[")
    with pytest.raises(ConfigError, match=r"start\.json is damaged"):
        kept.staging_uri()


def test_a_folder_that_cannot_be_made_is_named(tmp_path) -> None:
    (tmp_path / "cluster-accel").write_text("a file")
    with pytest.raises(StartupError, match="XDG_STATE_HOME"):
        RetainedApplication.of("application_1_0001", {"XDG_STATE_HOME": str(tmp_path)}).create("")


def test_a_users_own_master_secret_stays_the_same(environ) -> None:
    path = own_master_secret(environ)
    secret = read_master_secret(path)
    assert read_master_secret(own_master_secret(environ)) == secret
    assert path.parent == state_dir(environ)


def test_the_folder_is_that_of_the_user() -> None:
    assert state_dir({"HOME": "/srv/u"}) == Path("/srv/u/.local/state/cluster-accel")


def test_where_no_secret_of_ones_own_can_be_made_is_reported(tmp_path) -> None:
    (tmp_path / "cluster-accel").write_text("a file")
    with pytest.raises(StartupError, match="XDG_STATE_HOME"):
        own_master_secret({"XDG_STATE_HOME": str(tmp_path)})


def test_of_two_starts_that_make_the_users_secret_both_take_the_first(environ, monkeypatch) -> None:
    def other_is_first(path: Path) -> None:
        create_master_secret(path)
        create_master_secret(path)

    monkeypatch.setattr(retained_module, "create_master_secret", other_is_first)
    assert len(read_master_secret(own_master_secret(environ))) == 32


def test_a_folder_of_another_user_is_named(environ, monkeypatch) -> None:
    """As `sudo yarn-accel start` leaves it: every look below it is refused."""

    def refuse(self: Path, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    for method in ("stat", "iterdir", "exists", "read_text"):
        monkeypatch.setattr(Path, method, refuse)
    with pytest.raises(StartupError, match="applications: Permission denied: set XDG_STATE_HOME"):
        retained_applications(environ)
    with pytest.raises(ConfigError, match=r"control secret .*Permission denied: run as the user who owns it"):
        RetainedApplication.of("application_1_0001", environ).secret()
    with pytest.raises(ConfigError, match="Permission denied"):
        read_master_secret(own_master_secret(environ))
