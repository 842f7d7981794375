"""The server hook: what it tells, that it never raises, and that the installation can be undone."""

from __future__ import annotations

import asyncio
import os
import runpy
import socket
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from torque_sched.batch.openpbs import hook
from torque_sched.batch.torque.event_port import Callers, EventPort, SchedCommand, bind_all
from torque_sched.commands.install import install
from torque_sched.emulation import EmulatedOpenPbs
from torque_sched.errors import StartupError


@pytest.fixture(name="cluster")
def _cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedOpenPbs]:
    """Its commands are on PATH."""
    made = EmulatedOpenPbs.create(tmp_path / "cluster", shape="2xnp=4", clock="manual")
    with made:
        monkeypatch.setenv("PATH", f"{made.path}{os.pathsep}{os.environ['PATH']}")
        yield made


@pytest.fixture(name="listener")
def _listener() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.bind(("127.0.0.1", 0))
        made.settimeout(60)
        yield made


def _printed(cluster: EmulatedOpenPbs) -> tuple[str, str]:
    return tuple(
        cluster.run("qmgr", "-c", f"print {kind}", user="root").stdout for kind in ("server", "hook")
    )  # type: ignore[return-value]


def _install(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(install, ["--openpbs", *words])
    return done.exit_code, done.output


def test_hook_knocks_when_a_job_comes_ends_and_a_node_changes(
    cluster: EmulatedOpenPbs, listener: socket.socket
) -> None:
    knock = f"127.0.0.1:{listener.getsockname()[1]}"
    assert _install("--apply", "--knock", knock)[0] == 0
    job = cluster.submit(runtime_s=5)
    assert listener.recv(1000) == b"torque-sched postqueuejob"
    # Its start is the scheduler's own doing, and tells nothing.
    cluster.run("qrun", "-a", "-H", "(node1:ncpus=1)", job)
    cluster.clock.advance(6)
    assert listener.recv(1000) == b"torque-sched jobobit"
    cluster.run("pbsnodes", "-o", "node2")
    assert listener.recv(1000) == b"torque-sched modifyvnode"


def test_a_listener_that_is_gone_hinders_nobody(cluster: EmulatedOpenPbs) -> None:
    assert _install("--apply", "--knock", "127.0.0.1:9")[0] == 0
    assert cluster.submit()
    assert not (cluster.home / "server_logs" / "hooks").exists()


def test_undo_leaves_what_qmgr_prints_as_it_was(cluster: EmulatedOpenPbs) -> None:
    before = _printed(cluster)
    assert _install("--apply")[0] == 0
    # A second time renews it.
    assert _install("--apply")[0] == 0
    assert f"set hook {hook.NAME} alarm = 2" in _printed(cluster)[1]
    assert _install("--undo")[0] == 0
    assert _printed(cluster) == before
    code, text = _install("--undo")
    assert code != 0
    assert "no hook" in text


def test_only_a_manager_can_install(cluster: EmulatedOpenPbs, monkeypatch: pytest.MonkeyPatch) -> None:
    before = _printed(cluster)
    monkeypatch.setenv("EMULATED_USER", "mallory")
    code, text = _install("--apply")
    assert code != 0
    assert "manager" in text
    assert _printed(cluster) == before


def test_without_apply_the_hook_and_its_lines_are_printed() -> None:
    code, text = _install()
    assert code == 0
    assert "import pbs" in text
    for line in hook.qmgr_lines("torque_sched.py"):
        assert f"# qmgr -c '{line}'" in text


def test_hook_is_short() -> None:
    assert len(hook.hook_text([("127.0.0.1", 15004)]).splitlines()) <= 60


def test_host_names_are_refused() -> None:
    with pytest.raises(StartupError, match="numeric"):
        hook.hook_text([("head", 15004)])


@pytest.mark.parametrize("event", [None, "raises", types.SimpleNamespace(type=3)])
def test_hook_never_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, event: object) -> None:
    """Neither without the module, nor when the server is broken, nor at an event that lacks what it needs."""
    pbs = types.ModuleType("pbs")

    def found() -> object:
        if event == "raises":
            raise RuntimeError
        return event

    vars(pbs).update(event=found, MODIFYVNODE=3)
    monkeypatch.setitem(sys.modules, "pbs", pbs if event else None)  # type: ignore[arg-type]
    path = tmp_path / "hook.py"
    path.write_text(hook.hook_text([("127.0.0.1", 9)]), encoding="ascii")
    runpy.run_path(str(path))


def test_event_port_hears_the_hook_and_nothing_else() -> None:
    heard: list[SchedCommand] = []

    async def knock() -> EventPort:
        came = asyncio.Event()

        def hear(command: SchedCommand) -> None:
            heard.append(command)
            came.set()

        listeners = bind_all(["127.0.0.1"], 0)
        place = listeners[0].getsockname()
        port = EventPort(listeners, Callers(), hear)
        await port.start()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for data in (b"torque-sched quit", b"\0\0\0\x08", b"x" * 9000, hook.GREETING + b"jobobit"):
                sender.sendto(data, place)
        await came.wait()
        await port.stop()
        return port

    port = asyncio.run(asyncio.wait_for(knock(), 60))
    assert (port.n_events, port.n_refused) == (1, 3)
    assert heard == [SchedCommand.TERM]
