"""What is written down about a cluster, and who may change it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yarn_accel.errors import ClusterError, ConfigError
from yarn_accel.testbed import state
from yarn_accel.testbed.plan import NetworkMode, UpOptions
from yarn_accel.testbed.state import ClusterPaths, ClusterSpec

INTENT = ClusterSpec(
    UpOptions(name="demo", nodes=3, link="1gbit"), NetworkMode.NETNS, 5, 0, 1.5, ("/run/netns",)
)


def test_what_is_saved_is_loaded(paths: ClusterPaths) -> None:
    assert state.load(paths) is None
    state.save(paths, INTENT)
    assert state.load(paths) == INTENT
    assert INTENT.plan(paths).master.address == "10.231.5.1"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"version": 2}',
        '{"version": 1, "options": {"nodez": 1}, "mode": "netns", "owned": []}',
    ],
)
def test_a_damaged_state_names_its_file_and_the_cure(paths: ClusterPaths, text: str) -> None:
    paths.root.mkdir(parents=True)
    paths.state_file.write_text(text)
    with pytest.raises(ClusterError, match=r"state\.json.*cluster down demo"):
        state.load(paths)


def test_an_unknown_field_is_damage_too(paths: ClusterPaths) -> None:
    state.save(paths, INTENT)
    raw = json.loads(paths.state_file.read_text())
    paths.state_file.write_text(json.dumps({**raw, "colour": "red"}))
    with pytest.raises(ClusterError, match="colour"):
        state.load(paths)


def test_names_are_those_of_directories_that_can_be_clusters(paths: ClusterPaths) -> None:
    assert state.known_names(paths.root.parent) == []
    for name in ("demo", "b", ".b.lock", "NOT"):
        (paths.root.parent / name).mkdir(parents=True)
    assert state.known_names(paths.root.parent) == ["b", "demo"]


def test_a_name_that_leaves_the_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        ClusterPaths.of("../demo", tmp_path)


@given(st.integers(1, 150))
def test_a_socket_path_that_is_too_long_is_left_out(length: int) -> None:
    paths = ClusterPaths.of("demo", Path("/" + "x" * length))
    path = paths.unix_path("w1")
    full = f"/{'x' * length}/demo/w1.sock"
    assert path == (full if len(full) <= 107 else "")


def test_environment_decides_where_clusters_live() -> None:
    assert state.clusters_dir({"XDG_STATE_HOME": "/s"}) == Path("/s/cluster-accel/clusters")
    assert state.clusters_dir({"HOME": "/h"}) == Path("/h/.local/state/cluster-accel/clusters")


def test_the_second_waits_for_the_first_and_says_so(paths: ClusterPaths) -> None:
    order: list[str] = []
    has_said = threading.Event()

    def report(line: str) -> None:
        order.append(line)
        has_said.set()

    def second() -> None:
        with state.locked(paths, report):
            order.append("second")

    with state.locked(paths, report):
        thread = threading.Thread(target=second)
        thread.start()
        assert has_said.wait(300)
        order.append("first")
    thread.join(300)
    assert order == ["another command is working on cluster demo; waiting for it", "first", "second"]


def test_a_lock_deleted_by_its_holder_is_not_shared(paths: ClusterPaths) -> None:
    with state.locked(paths, state.silent):
        waiting = os.open(paths.lock_file, os.O_RDWR)  # a second command has opened it already
        state.remove_lock(paths)
    os.close(waiting)
    assert not paths.root.parent.parent.exists()
    with (
        state.locked(paths, state.silent),
        pytest.raises(ClusterError, match="another command"),
        state.locked(paths, state.silent, wait_s=0.0),
    ):
        pass


def test_a_killed_holder_leaves_no_lock(paths: ClusterPaths) -> None:
    code = (
        "import sys, time; from pathlib import Path; from yarn_accel.testbed import state\n"
        "with state.locked(state.ClusterPaths.of('demo', Path(sys.argv[1])), state.silent):\n"
        "    print('held', flush=True); time.sleep(600)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(paths.root.parent)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(state.__file__).resolve().parents[2],
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(ClusterError), state.locked(paths, state.silent, wait_s=0.0):
        pass
    holder.kill()
    holder.communicate()
    with state.locked(paths, state.silent, wait_s=60.0):
        assert paths.lock_file.exists()


def test_one_chooser_at_a_time_on_the_whole_machine() -> None:
    purpose = f"test-{os.getpid()}"
    with (
        state.machine_lock(purpose),
        pytest.raises(ClusterError, match=purpose),
        state.machine_lock(purpose, 0.0),
    ):
        pass
    with state.machine_lock(purpose, 0.0):
        pass
