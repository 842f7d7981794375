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

from yarn_accel.cluster import state
from yarn_accel.cluster.plan import Mode, UpOptions
from yarn_accel.cluster.state import Intent, Place
from yarn_accel.errors import ClusterError, ConfigError


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place.of("demo", tmp_path / "clusters")


INTENT = Intent(UpOptions(name="demo", nodes=3, link="1gbit"), Mode.NETNS, 5, 0, 1.5, ("/run/netns",))


def test_what_is_saved_is_loaded(place: Place) -> None:
    assert state.load(place) is None
    state.save(place, INTENT)
    assert state.load(place) == INTENT
    assert INTENT.plan(place).master.address == "10.231.5.1"


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
def test_a_damaged_state_names_its_file_and_the_cure(place: Place, text: str) -> None:
    place.root.mkdir(parents=True)
    place.state_file.write_text(text)
    with pytest.raises(ClusterError, match=r"state\.json.*cluster down demo"):
        state.load(place)


def test_an_unknown_field_is_damage_too(place: Place) -> None:
    state.save(place, INTENT)
    raw = json.loads(place.state_file.read_text())
    place.state_file.write_text(json.dumps({**raw, "colour": "red"}))
    with pytest.raises(ClusterError, match="colour"):
        state.load(place)


def test_names_are_those_of_directories_that_can_be_clusters(place: Place) -> None:
    assert state.known_names(place.root.parent) == []
    for name in ("demo", "b", ".b.lock", "NOT"):
        (place.root.parent / name).mkdir(parents=True)
    assert state.known_names(place.root.parent) == ["b", "demo"]


def test_a_name_that_leaves_the_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        Place.of("../demo", tmp_path)


@given(st.integers(1, 150))
def test_a_socket_path_that_is_too_long_is_left_out(length: int) -> None:
    place = Place.of("demo", Path("/" + "x" * length))
    path = place.unix_path("w1")
    full = f"/{'x' * length}/demo/w1.sock"
    assert path == (full if len(full) <= 107 else "")


def test_environment_decides_where_clusters_live() -> None:
    assert state.clusters_dir({"XDG_STATE_HOME": "/s"}) == Path("/s/cluster-accel/clusters")
    assert state.clusters_dir({"HOME": "/h"}) == Path("/h/.local/state/cluster-accel/clusters")


def test_the_second_waits_for_the_first_and_says_so(place: Place) -> None:
    order: list[str] = []
    has_said = threading.Event()

    def report(line: str) -> None:
        order.append(line)
        has_said.set()

    def second() -> None:
        with state.locked(place, report):
            order.append("second")

    with state.locked(place, report):
        thread = threading.Thread(target=second)
        thread.start()
        assert has_said.wait(60)
        order.append("first")
    thread.join(60)
    assert order == ["another command is working on cluster demo; waiting for it", "first", "second"]


def test_a_lock_deleted_by_its_holder_is_not_shared(place: Place) -> None:
    with state.locked(place, state.silent):
        waiting = os.open(place.lock_file, os.O_RDWR)  # a second command has opened it already
        state.remove_lock(place)
    os.close(waiting)
    assert not place.root.parent.parent.exists()
    with (
        state.locked(place, state.silent),
        pytest.raises(ClusterError, match="another command"),
        state.locked(place, state.silent, wait_s=0.0),
    ):
        pass


def test_a_killed_holder_leaves_no_lock(place: Place) -> None:
    code = (
        "import sys, time; from pathlib import Path; from yarn_accel.cluster import state\n"
        "with state.locked(state.Place.of('demo', Path(sys.argv[1])), state.silent):\n"
        "    print('held', flush=True); time.sleep(600)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(place.root.parent)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(state.__file__).resolve().parents[2],
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(ClusterError), state.locked(place, state.silent, wait_s=0.0):
        pass
    holder.kill()
    holder.communicate()
    with state.locked(place, state.silent, wait_s=60.0):
        assert place.lock_file.exists()


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


def test_secrets_are_written_for_the_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "secret"
    state.write_atomic(path, "x", mode=0o600)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["secret"]
