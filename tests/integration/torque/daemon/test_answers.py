"""Users' questions to a daemon as a process: from its last look, and to each what he may see."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.waiting import until
from torque_sched.emulation import EmulatedTorque

from .conftest import NODES, Daemon, Serve, complaints, free_port, run, spy
from .test_unprivileged import USER, Stranger, pytestmark

__all__ = ["pytestmark"]


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def torque(port: int) -> Iterator[EmulatedTorque]:
    """In a place that everybody may enter, with Torque's own rights."""
    with tempfile.TemporaryDirectory(prefix="answers-") as folder:
        Path(folder).chmod(0o755)
        made = EmulatedTorque.create(
            Path(folder) / "cluster", nodes=NODES, event_target=f"127.0.0.1:{port}",
            server={"query_other_jobs": "False"},
        )  # fmt: skip
        with made:
            yield made


@pytest.fixture
def stranger(torque: EmulatedTorque) -> Iterator[Stranger]:
    place = Path(tempfile.mkdtemp(prefix="stranger-"))
    place.chmod(0o755)
    yield Stranger(place, torque)
    shutil.rmtree(place)


def seen(daemon: Daemon, job: str) -> None:
    until(lambda: job in daemon.state().get("jobs", {}), "a look at the job")


def test_an_ordinary_user_asks_the_daemon_and_pbs_server_is_not_asked(
    torque: EmulatedTorque, serve: Serve, stranger: Stranger
) -> None:
    daemon = serve()
    (daemon.home / "sched_priv").chmod(0o750)
    first = torque.submit("-l", "nodes=1:ppn=8", "-N", "secret", user="bob", runtime_s=600)
    until(lambda: daemon.running() == {first}, "the start")
    theirs = torque.submit("-l", "nodes=1:ppn=8", user="bob", runtime_s=600)
    mine = torque.submit("-l", "nodes=1:ppn=8", user=USER, runtime_s=600)
    seen(daemon, mine)
    calls = spy(torque, "qstat", "pbsnodes")
    for words, told in (
        (("showstart", mine), f"{mine} "),
        (("showbf",), "node2"),
        (("explain", mine), "now: hold"),
        (("explain", "node3"), "another user's job"),
        (("whatif", "--submit", "nodes=1"), "now: start"),
        (("top", "--once"), "node4"),
    ):
        done = stranger.run(*words, "-d", str(torque.home))
        assert (done.returncode, complaints(done)) == (0, ""), done.stderr
        assert told in done.stdout
        assert not {"bob", "secret", first, theirs} & set(done.stdout.replace(",", " ").split())
    done = stranger.run("showstart", theirs, "-d", str(torque.home))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"that is not a job of {USER}" in done.stderr
    assert calls.read_text(encoding="utf-8") == ""
    assert (daemon.home / "sched_priv" / "history.sqlite").stat().st_mode & 0o777 == 0o640


def test_root_is_shown_all_and_without_a_daemon_a_command_looks_itself(
    torque: EmulatedTorque, serve: Serve
) -> None:
    daemon = serve()
    job = torque.submit("-l", "nodes=1:ppn=8", user="bob", runtime_s=600)
    until(lambda: daemon.running() == {job}, "the start")
    # It looks again at once, and not when pbs_server knocks the next time, which it does once a minute.
    torque.submit("-l", "nodes=1:ppn=8", user="bob")
    daemon_knows = "runs on node3"
    until(lambda: daemon_knows in run(torque, "explain", job).stdout, "the answer")
    calls = spy(torque, "qstat")
    assert run(torque, "showstart", job).returncode == 0
    assert calls.read_text(encoding="utf-8") == ""
    daemon.stop()
    assert daemon_knows in run(torque, "explain", job).stdout
    assert "qstat -f -t -x" in calls.read_text(encoding="utf-8")


def test_a_job_that_was_just_started_is_not_shown_as_startable(torque: EmulatedTorque, serve: Serve) -> None:
    """Until the next look shows it running: its start has been asked for."""
    daemon = serve()
    job = torque.submit("-l", "nodes=1", user="bob", runtime_s=600)
    until(lambda: daemon.running() == {job}, "the start")
    shown = run(torque, "showstart", job).stdout
    assert "start: now" not in shown
