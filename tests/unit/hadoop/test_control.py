"""Verbs against a small master in this process, which moves, dies and refuses; and its secret here."""

import contextlib
import errno
import stat
import time
from pathlib import Path

import pytest
from aiohttp import web

from tests.unit.launch.yarn import app, report, rm_client
from yarn_accel.adapters.credentials import create_master_secret, read_master_secret
from yarn_accel.adapters.hadoop_rpc.records import ApplicationState
from yarn_accel.adapters.signed_http import RequestVerifier, guarded, sender_key
from yarn_accel.errors import AuthenticationError, ConfigError, RejectedError, StartupError, UnavailableError
from yarn_accel.hadoop import control as control_module

SECRET = b"s" * 32
W1, ABOUT_W1 = {"node": "w1"}, {"text": "about w1"}


class Master:
    """Answers signed orders, and remembers who gave them."""

    def __init__(self):
        self.heard = []
        self.port = 0
        self._runner = None

    async def __aenter__(self):
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

    async def __aexit__(self, *_):
        await self._runner.cleanup()

    async def _explain(self, sender, document):
        self.heard.append((sender, document))
        if document["node"] == "w9":
            raise RejectedError("unknown-node", "there is no node w9")
        if document["node"] == "odd":
            return ["no", "object"]
        return {"text": f"about {document['node']}"}


@contextlib.asynccontextmanager
async def controlling(tmp_path, secret=SECRET, patience_s=60.0):
    ours = rm_client(tmp_path)
    async with Master() as master:
        ours.yarn.add(report(1, host="127.0.0.1", rpc_port=master.port))
        async with control_module.Control(ours, ours.yarn, app(1), secret, patience_s) as control:
            yield master, ours.yarn, control


async def test_questions_are_signed_under_a_name_of_their_own(tmp_path):
    async with controlling(tmp_path) as (master, _, control):
        assert await control.ask("explain", W1) == ABOUT_W1
        await control.ask("explain", {"node": "w2"})
        assert [document["node"] for _, document in master.heard] == ["w1", "w2"]
        assert all(sender.startswith("control:") for sender, _ in master.heard)


async def test_a_refusal_is_reported_and_not_repeated(tmp_path):
    async with controlling(tmp_path) as (master, _, control):
        with pytest.raises(RejectedError, match=r"^there is no node w9$") as caught:
            await control.ask("explain", {"node": "w9"})
        assert caught.value.code == "unknown-node"
        assert len(master.heard) == 1


async def test_another_secret_is_refused_and_an_answer_that_is_no_object(tmp_path):
    async with controlling(tmp_path, secret=b"x" * 32) as (_, _, control):
        with pytest.raises(AuthenticationError, match="signature"):
            await control.ask("explain", W1)
    async with controlling(tmp_path) as (_, _, control):
        with pytest.raises(Exception, match="did not answer with an object"):
            await control.ask("explain", {"node": "odd"})


async def test_a_master_whose_clock_is_ahead_is_asked_again(tmp_path):
    """It has just begun, by its clock after our question was signed."""

    async with controlling(tmp_path) as (master, _, control):
        master.verifier._not_before_us = int((time.time() + 0.3) * 1e6)
        assert await control.ask("explain", W1) == ABOUT_W1
        assert len(master.heard) == 1


async def test_a_master_that_moved_is_found_again(tmp_path):
    async with controlling(tmp_path) as (master, yarn, control):
        found = yarn.reports[app(1)]
        # First nobody, then an attempt that is not registered, then the new one.
        yarn.story = [report(1, host="127.0.0.1", rpc_port=1), found, report(1, rpc_port=-1), found, found]
        assert await control.ask("explain", W1) == ABOUT_W1
        assert len(master.heard) == 1


async def test_a_resource_manager_that_is_away_is_asked_again_by_who_has_patience(tmp_path, monkeypatch):
    async with controlling(tmp_path, patience_s=0.0) as (master, yarn, control):
        answering, away = yarn.report, ["at first", "by our patience", "still"]

        async def report(application):
            if away:
                raise UnavailableError(f"no ResourceManager answers {away.pop()}")
            return await answering(application)

        monkeypatch.setattr(yarn, "report", report)
        with pytest.raises(UnavailableError, match="no ResourceManager answers"):
            await control.ask("explain", W1)
        assert await control.ask("explain", W1, patience_s=60.0) == ABOUT_W1
        assert len(master.heard) == 1


@pytest.mark.parametrize(
    ("patience_s", "state", "words"),
    [
        (0.0, ApplicationState.RUNNING, r"does not run at the moment.*yarn application -status"),
        (10_000.0, ApplicationState.FINISHED, "FINISHED"),
    ],
    ids=["patience ends", "it is over"],
)
async def test_nobody_waits_for_ever_or_for_an_application_that_is_over(tmp_path, patience_s, state, words):
    async with controlling(tmp_path, patience_s=patience_s) as (_, yarn, control):
        yarn.add(report(1, state, rpc_port=-1))
        with pytest.raises(UnavailableError, match=words):
            await control.ask("explain", W1)


@pytest.fixture
def environ(tmp_path):
    return {"XDG_STATE_HOME": str(tmp_path)}


@pytest.fixture
def kept(environ):
    """The first application, of which nothing is kept yet."""
    return of(1, environ)


def of(number, environ):
    return control_module.RetainedApplication.of(f"application_1_000{number}", environ)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_secret_of_32_bytes_that_only_we_can_read(environ, kept):
    secret = kept.create("hdfs://nn/x")
    assert len(secret) == 32
    assert of(1, environ).secret() == secret
    assert kept.staging_uri() == "hdfs://nn/x"
    assert (mode(kept.folder), mode(kept.folder / "control-secret")) == (0o700, 0o600)
    assert of(2, environ).create("") != secret
    with pytest.raises(ConfigError, match="File exists"):
        kept.create("hdfs://nn/x")
    (kept.folder / "control-secret").chmod(0o644)
    with pytest.raises(ConfigError, match="others may read it"):
        kept.secret()


def test_where_no_start_was_made_is_reported(kept):
    where = r"not here.*machine that ran `yarn-accel start`.*stop --force"
    with pytest.raises(AuthenticationError, match=where):
        kept.secret()
    assert kept.staging_uri() == ""
    kept.remove()


def test_all_are_listed_and_one_is_removed(environ):
    assert control_module.retained_applications(environ) == ()
    for number in (2, 1):
        of(number, environ).create("")
    found = control_module.retained_applications(environ)
    assert [kept.application for kept in found] == ["application_1_0001", "application_1_0002"]
    found[0].remove()
    assert control_module.retained_applications(environ) == found[1:]


def test_damaged_notes_are_named(kept):
    kept.create("")
    (kept.folder / "start.json").write_text("[")
    with pytest.raises(ConfigError, match=r"start\.json is damaged"):
        kept.staging_uri()


def test_a_folder_that_cannot_be_made_is_named(tmp_path, environ, kept):
    (tmp_path / "cluster-accel").write_text("a file")
    with pytest.raises(StartupError, match="XDG_STATE_HOME"):
        kept.create("")
    with pytest.raises(StartupError, match="XDG_STATE_HOME"):
        control_module.own_master_secret(environ)


def test_a_users_own_master_secret_stays_the_same(environ):
    path = control_module.own_master_secret(environ)
    secret = read_master_secret(path)
    assert read_master_secret(control_module.own_master_secret(environ)) == secret
    assert path.parent == control_module.state_dir(environ)
    assert control_module.state_dir({"HOME": "/srv/u"}) == Path("/srv/u/.local/state/cluster-accel")


def test_of_two_starts_that_make_the_users_secret_both_take_the_first(environ, monkeypatch):
    def other_is_first(path):
        create_master_secret(path)
        create_master_secret(path)

    monkeypatch.setattr(control_module, "create_master_secret", other_is_first)
    assert len(read_master_secret(control_module.own_master_secret(environ))) == 32


def test_a_folder_of_another_user_is_named(environ, kept, monkeypatch):
    """As `sudo yarn-accel start` leaves it: every look below it is refused."""

    def refuse(self, *_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    for method in ("stat", "iterdir", "exists", "read_text"):
        monkeypatch.setattr(Path, method, refuse)
    with pytest.raises(StartupError, match="applications: Permission denied: set XDG_STATE_HOME"):
        control_module.retained_applications(environ)
    with pytest.raises(ConfigError, match=r"control secret .*Permission denied: run as the user who owns it"):
        kept.secret()
    with pytest.raises(ConfigError, match="Permission denied"):
        read_master_secret(control_module.own_master_secret(environ))
