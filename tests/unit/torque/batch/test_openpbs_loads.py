"""Loads of OpenPBS's nodes: from a vnode that a MoM hook writes to, or from files of a shared folder."""

from __future__ import annotations

import asyncio
import os
import runpy
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from torque_sched.adapters.commands import Commands
from torque_sched.batch.openpbs import loads
from torque_sched.batch.openpbs.pbs import OpenPbs
from torque_sched.commands.install import install
from torque_sched.emulation import EmulatedOpenPbs, Fault
from torque_sched.learn.samples import reading_of
from torque_sched.model.cluster import NodeName
from torque_sched.model.snapshot import Snapshot
from torque_sched.sampler.form import GpuSample, JobSample, NodeSample, format_sample

_AT_S = 1795195600.0


@pytest.fixture(name="cluster")
def _cluster(tmp_path: Path) -> Iterator[EmulatedOpenPbs]:
    made = EmulatedOpenPbs.create(tmp_path / "cluster", shape="2xnp=4", clock="manual")
    with made:
        yield made


def _text(cores: float, at_s: float = _AT_S) -> str:
    return format_sample(
        NodeSample(at_s, cores, 2048.0, (GpuSample(0, 0.5, 1e9),), (JobSample("0.head", cores, 1024.0),))
    )


def _look(cluster: EmulatedOpenPbs, folder: str = "") -> Snapshot:
    server = OpenPbs(Commands({**cluster.env, "TZ": "UTC"}), lambda: _AT_S, loads_folder=folder)
    return asyncio.run(server.look()).snapshot


def _cores(snapshot: Snapshot, name: str) -> float | None:
    reading = reading_of(snapshot.node_by_name[NodeName(name)])
    return None if reading is None else reading.measured.load.cpu_cores


def _write(folder: Path, host: str, text: str, at_s: float = _AT_S) -> None:
    path = folder / f"{host}{loads.SUFFIX}"
    path.write_text(text, encoding="ascii")
    os.utime(path, (at_s, at_s))


def test_without_samplers_there_are_no_loads(cluster: EmulatedOpenPbs) -> None:
    assert _cores(_look(cluster), "node1") is None


def test_what_a_mom_hook_shows_is_read(cluster: EmulatedOpenPbs) -> None:
    text = ";".join(_text(1.5).split())
    cluster.run("qmgr", "-c", f"set node node1 resources_available.{loads.RESOURCE} = '{text}'")
    snapshot = _look(cluster)
    node = snapshot.node_by_name[NodeName("node1")]
    reading = reading_of(node)
    assert reading is not None
    assert reading.is_sampled
    assert (reading.measured.sample_s, reading.measured.load.cpu_cores) == (_AT_S, 1.5)
    assert (reading.measured.load.gpus, reading.jobs["0.head"].cpu_cores) == (0.5, 1.5)
    # It is no property that a job could ask for.
    assert not any(loads.RESOURCE in each for each in node.properties)
    assert _cores(snapshot, "node2") is None


def test_files_of_a_folder_are_read_and_the_newer_sample_counts(
    cluster: EmulatedOpenPbs, tmp_path: Path
) -> None:
    old = ";".join(_text(1.0, _AT_S - 30).split())
    cluster.run("qmgr", "-c", f"set node node1 resources_available.{loads.RESOURCE} = '{old}'")
    folder = tmp_path / "loads"
    folder.mkdir(mode=0o755)
    _write(folder, "node1", f"ts.up:5\n{_text(2.0)}")
    _write(folder, "node2", "nonsense " * 9000)
    snapshot = _look(cluster, str(folder))
    assert (_cores(snapshot, "node1"), _cores(snapshot, "node2")) == (2.0, None)


def test_files_of_a_sampler_that_is_gone_are_left_out(tmp_path: Path) -> None:
    _write(tmp_path, "node1", _text(2.0), _AT_S - 600)
    assert loads.read_files(tmp_path, _AT_S) == b""


def test_a_folder_that_others_may_write_to_is_not_read(tmp_path: Path) -> None:
    _write(tmp_path, "node1", _text(2.0))
    tmp_path.chmod(0o777)
    assert loads.read_files(tmp_path, _AT_S) == b""


@pytest.mark.parametrize("has_file", [True, False])
def test_the_mom_hook_shows_the_file_and_never_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_file: bool
) -> None:
    sample, source = tmp_path / "sample", tmp_path / "hook.py"
    if has_file:
        sample.write_text(_text(1.5), encoding="ascii")
    shown: dict[str, str] = {}
    vnode = types.SimpleNamespace(resources_available=shown)
    pbs = types.ModuleType("pbs")
    event = types.SimpleNamespace(vnode_list={"node1": vnode})
    vars(pbs).update(event=lambda: event, get_local_nodename=lambda: "node1")
    monkeypatch.setitem(sys.modules, "pbs", pbs)
    source.write_text(loads.hook_text(str(sample)), encoding="ascii")
    runpy.run_path(str(source))
    assert shown == ({loads.RESOURCE: ";".join(_text(1.5).split())} if has_file else {})


def test_install_prints_the_hook_with_its_lines() -> None:
    done = CliRunner().invoke(install, ["--loads", "/var/spool/sample"])
    assert done.exit_code == 0
    assert "'/var/spool/sample'" in done.output
    for line in loads.qmgr_lines(f"{loads.HOOK_NAME}.py"):
        assert f"# qmgr -c '{line}'" in done.output


def _printed(cluster: EmulatedOpenPbs) -> list[str]:
    whats = ("server", "hook", "node @default", "resource")
    return [cluster.run("qmgr", "-c", f"print {what}", user="root").stdout for what in whats]


def _install(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(install, [*words])
    return done.exit_code, done.output


def test_a_manager_applies_the_mom_hook_and_undo_leaves_no_trace(
    cluster: EmulatedOpenPbs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The MoMs run it at once and then every 30 s; with its resource the values on vnodes go."""
    monkeypatch.setenv("PATH", f"{cluster.path}{os.pathsep}{os.environ['PATH']}")
    sample = tmp_path / "node.sample"
    sample.write_text(_text(1.5), encoding="ascii")
    cluster.control("node", "node2", "mom=stopped")
    before = _printed(cluster)
    code, text = _install("--openpbs", "--loads", str(sample), "--apply")
    assert code == 0, text
    assert text.count("qmgr -c 'import hook") == 2
    assert (_cores(_look(cluster), "node1"), _cores(_look(cluster), "node2")) == (1.5, None)
    sample.write_text(_text(2.5), encoding="ascii")
    cluster.clock.advance(31)
    assert _cores(_look(cluster), "node1") == 2.5
    # A second time renews it, and makes nothing twice.
    code, text = _install("--loads", str(sample), "--apply")
    assert (code, "create" in text) == (0, False)
    assert _install("--openpbs", "--undo")[0] == 0
    assert _printed(cluster) == before
    assert "no hook torque_sched nor hook" in _install("--openpbs", "--undo")[1]
    assert cluster.submit()


def test_undo_of_the_mom_hook_alone_leaves_the_one_that_wakes(
    cluster: EmulatedOpenPbs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{cluster.path}{os.pathsep}{os.environ['PATH']}")
    assert _install("--openpbs", "--apply")[0] == 0
    with_one = _printed(cluster)
    assert _install("--loads", "/nowhere", "--apply")[0] == 0
    assert _install("--loads", "/nowhere", "--undo")[0] == 0
    assert _printed(cluster) == with_one


def test_a_refused_line_of_qmgr_leaves_nothing_behind(
    cluster: EmulatedOpenPbs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resource and the hook were made already when the import fails."""
    monkeypatch.setenv("PATH", f"{cluster.path}{os.pathsep}{os.environ['PATH']}")
    before = _printed(cluster)
    cluster.set_faults(Fault("qmgr", "exit", code=1, text="qmgr: disk full\n", match="import"))
    code, text = _install("--loads", "/nowhere", "--apply")
    cluster.set_faults()
    assert code != 0
    assert "disk full" in text
    assert _printed(cluster) == before
