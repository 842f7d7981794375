"""doctor's lines about OpenPBS, on the emulated one and on captures."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from torque_sched.batch.openpbs import hook
from torque_sched.batch.openpbs.loads import RESOURCE
from torque_sched.batch.openpbs.parse.cluster import parse_server
from torque_sched.commands.doctor import doctor
from torque_sched.daemon.checks import Level, rights
from torque_sched.daemon.openpbs_checks import native_schedulers, openpbs_checks
from torque_sched.daemon.paths import Options
from torque_sched.emulation import EmulatedOpenPbs, EmulatedTorque

_TWO = """\
Sched default
    partition = pbs-default
    scheduling = True
    state = idle

Sched other
    partition = p2
    scheduling = True
    state = idle
"""


@pytest.fixture(name="cluster")
def _cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedOpenPbs]:
    """Its commands are on PATH."""
    made = EmulatedOpenPbs.create(tmp_path / "cluster", shape="2xnp=4", clock="manual")
    with made:
        monkeypatch.setenv("PATH", f"{made.path}{os.pathsep}{os.environ['PATH']}")
        yield made


def _lines(cluster: EmulatedOpenPbs, *, submits: bool = False) -> dict[str, tuple[str, str]]:
    """What -> level and text."""
    found = openpbs_checks(Options(cluster.home), submits=submits)
    return {each.what: (each.level, each.line) for each in found}


def test_all_is_well_once_the_hook_is_there(cluster: EmulatedOpenPbs) -> None:
    assert _lines(cluster)["hook"][0] == Level.WARNING
    hook.apply(hook.hook_text([("127.0.0.1", 9)]))
    sample = "ts.at:1700000000;ts.cpu:1.50;ts.mem:2048"
    cluster.run("qmgr", "-c", f"set node node1 resources_available.{RESOURCE} = '{sample}'")
    lines = _lines(cluster, submits=True)
    assert {level for level, _ in lines.values()} == {Level.OK}, lines
    assert lines.keys() == {"version", "history", "native scheduler", "hook", "loads", "JSON", "submission"}
    assert "of 1 nodes by the hook" in lines["loads"][1]
    assert not cluster.jobs()


def test_a_disabled_hook_and_no_history_are_said(cluster: EmulatedOpenPbs) -> None:
    hook.apply(hook.hook_text([("127.0.0.1", 9)]))
    cluster.run("qmgr", "-c", f"set hook {hook.NAME} enabled = false")
    cluster.run("qmgr", "-c", "set server job_history_enable = False")
    lines = _lines(cluster)
    assert (lines["hook"][0], lines["history"][0]) == (Level.WARNING, Level.WARNING)


def test_who_is_not_root_there_sees_no_hooks(
    cluster: EmulatedOpenPbs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator may start every job, but not know whether there is a hook."""
    hook.apply(hook.hook_text([("127.0.0.1", 9)]))
    cluster.run("qmgr", "-c", "set server operators += sched@head")
    monkeypatch.setenv("EMULATED_USER", "sched")
    lines = _lines(cluster)
    assert lines["hook"][0] == Level.WARNING
    assert "root on the server's host" in lines["hook"][1]
    assert lines["history"][0] == lines["native scheduler"][0] == Level.OK


def test_an_operator_has_the_rights_and_another_user_has_not(cluster: EmulatedOpenPbs) -> None:
    cluster.run("qmgr", "-c", "set server operators += sched@head")
    server = parse_server(cluster.run("qstat", "-B", "-f", "-w").stdout)
    assert rights(server, "sched@head", is_root_there=False).level == Level.OK
    found = rights(server, "mallory@head", is_root_there=False)
    assert (found.level, "operators += mallory@head" in found.line) == (Level.WARNING, True)


def test_the_command_says_all_of_it_and_changes_nothing(cluster: EmulatedOpenPbs) -> None:
    """As an administrator calls it; it is a dry run by itself."""
    cluster.submit("-v", "A=nan")
    before = (cluster.jobs(), cluster.nodes())
    told = CliRunner().invoke(doctor, ["-d", str(cluster.home)])
    for what in ("rights", "history", "native scheduler", "hook", "loads", "JSON", "Python of hooks"):
        assert re.search(rf"^\s*\S+\s+{what}", told.output, re.MULTILINE), f"{what}: {told.output}"
    assert (cluster.jobs(), cluster.nodes()) == before


def test_a_users_variable_that_breaks_json_is_said(cluster: EmulatedOpenPbs) -> None:
    cluster.submit("-v", "A=b")
    assert _lines(cluster)["JSON"][0] == Level.OK
    cluster.submit("-v", "A=nan")
    level, line = _lines(cluster)["JSON"]
    assert level == Level.WARNING
    assert "text" in line


def test_hooks_that_a_new_python_breaks_are_said(cluster: EmulatedOpenPbs, tmp_path: Path) -> None:
    path = tmp_path / "gate.py"
    path.write_text("import pbs\npbs.event().accept()\n", encoding="ascii")
    for line in (
        "create hook gate", "set hook gate event = queuejob",
        f"import hook gate application/x-python default {path}",
    ):  # fmt: skip
        cluster.run("qmgr", "-c", line)
    assert _lines(cluster, submits=True)["submission"][0] == Level.OK
    cluster.control("hooks", "broken")
    level, line = _lines(cluster, submits=True)["submission"]
    assert level == Level.WRONG
    assert "3.10" in line


@pytest.mark.parametrize(
    ("library", "level"), [(b"libpython3.11.so.1.0", "warning"), (b"libpython3.9.so", "ok")]
)
def test_the_python_that_the_server_was_built_with(
    cluster: EmulatedOpenPbs, library: bytes, level: str
) -> None:
    sbin = cluster.path.parent / "sbin"
    sbin.mkdir()
    (sbin / "pbs_server.bin").write_bytes(b"\x7fELF\0" + library + b"\0")
    assert _lines(cluster)["Python of hooks"][0] == level


def test_a_native_scheduler_must_be_off_or_have_a_partition() -> None:
    with_process = {each.text: each.level for each in native_schedulers(_TWO, [77])}
    assert sorted(with_process.values()) == [Level.WRONG, Level.OK]
    assert any("77" in text for text in with_process)
    without = [each.level for each in native_schedulers(_TWO, [])]
    assert without == [Level.OK, Level.OK]
    paused = [each.level for each in native_schedulers(_TWO.replace("= True", "= False"), [77])]
    assert paused == [Level.OK, Level.OK]
    assert [each.level for each in native_schedulers("", [])] == [Level.WARNING]


def test_a_native_scheduler_that_schedules_elsewhere_is_seen() -> None:
    levels = [each.level for each in native_schedulers(_TWO.replace("idle", "scheduling"), [])]
    assert levels == [Level.WRONG, Level.OK]


def test_torque_gets_no_such_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = EmulatedTorque.create(tmp_path / "torque", shape="1xnp=1")
    with made:
        monkeypatch.setenv("PATH", f"{made.path}{os.pathsep}{os.path.dirname(sys.executable)}")  # noqa: PTH120
        assert list(openpbs_checks(Options(made.home), submits=False)) == []
