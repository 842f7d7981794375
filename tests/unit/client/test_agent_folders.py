"""Whose agent a mapper asks where several applications have one on its node, and whom it never asks."""

import json
import os
from pathlib import Path

import pytest

from yarn_accel.client import agent_folders
from yarn_accel.client.agent_folders import IDENTITY_FILE, agent_sockets, run_folder

ANN, BOB, OTHER_BED = "17_0001", "17_0002", "18_0003"


@pytest.fixture
def base(tmp_path, monkeypatch):
    """In the place of ``/run/yarn-accel``."""
    folder = tmp_path / "yarn-accel"
    monkeypatch.setattr(agent_folders, "RUN_FOLDER", str(folder))
    for name, user, application in (
        ("ann's", "ann", ANN),
        ("bob's", "bob", BOB),
        ("ann's", "ann", OTHER_BED),
    ):
        make(folder / "w1" / application, name, user)
    return folder


def make(folder, name, user):
    folder.mkdir(parents=True)
    for each in (folder, folder.parent, folder.parent.parent):
        each.chmod(0o755)
    (folder / IDENTITY_FILE).write_text(json.dumps({"version": 1, "id": "x", "name": name, "user": user}))


def applications(**environ):
    found = agent_sockets({"NM_HOST": "w1", **environ})
    return [Path(path).parent.name for path, _ in found if Path(path).parent.name[0].isdigit()]


def test_without_a_setting_ones_own_users_come_first_then_the_newest(base):
    assert applications(USER="bob") == [BOB, OTHER_BED, ANN]
    assert applications(USER="ann") == [OTHER_BED, ANN, BOB]
    assert applications() == [OTHER_BED, BOB, ANN]


def test_of_two_clusters_on_one_machine_ones_own_comes_first(base):
    assert applications(USER="ann", CONTAINER_ID="container_17_0009_01_000002") == [ANN, OTHER_BED, BOB]
    assert applications(USER="ann", CONTAINER_ID="container_e3_18_0009_01_000002") == [OTHER_BED, ANN, BOB]


def test_a_name_or_an_id_is_the_only_one(base):
    assert applications(USER="bob", ACCEL_APPLICATION="ann's") == [OTHER_BED, ANN]
    assert applications(USER="bob", ACCEL_APPLICATION="application_17_0001") == [ANN]
    assert applications(ACCEL_APPLICATION="nobody's") == []
    first = agent_sockets({"NM_HOST": "w1", "ACCEL_APPLICATION": "bob's"})[0]
    assert first == (f"{base}/w1/{BOB}/agent.sock", True), "before the site's own agents"


def test_a_folder_that_others_can_write_in_is_passed_over(base):
    (base / "w1" / BOB).chmod(0o777)
    assert applications(USER="bob") == [OTHER_BED, ANN]
    (base / "w1").chmod(0o775)
    assert applications(USER="bob") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_so_is_the_folder_of_a_stranger(base):
    os.chown(base / "w1" / BOB, 4242, 4242)
    assert applications(USER="bob") == [OTHER_BED, ANN]


def test_so_are_links_and_files_that_are_none(base, tmp_path):
    make(tmp_path / "elsewhere", "bob's", "bob")
    (base / "w1" / "17_0007").symlink_to(tmp_path / "elsewhere")
    (base / "w1" / "17_0008").write_text("")
    (base / "w1" / "lost+found").mkdir()
    assert applications(USER="bob") == [BOB, OTHER_BED, ANN]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": 1}', "[" * 100_000, "\xff", "x" * 10_000])
def test_a_damaged_identity_leaves_the_number_of_the_folder(base, text):
    (base / "w1" / BOB / IDENTITY_FILE).write_text(text)
    assert BOB in applications(USER="bob")
    assert applications(ACCEL_APPLICATION="application_17_0002") == [BOB]


def test_a_pipe_in_the_place_of_the_identity_keeps_nobody_waiting(base):
    path = base / "w1" / BOB / IDENTITY_FILE
    path.unlink()
    os.mkfifo(path)
    assert applications(ACCEL_APPLICATION="application_17_0002") == [BOB]


@pytest.mark.parametrize("node", ["..", ".", "", "a/b"])
def test_a_node_that_is_no_name_has_no_folder(base, node):
    assert [path for path, _ in agent_sockets({"NM_HOST": node})] == [f"{base}/agent.sock"]


def test_paths_fit_into_an_address_of_a_unix_socket():
    folder = run_folder(
        1_000_000, "ip-172-31-255-255.eu-central-1.compute.internal", "application_1795776970853_0001"
    )
    assert len(f"{folder}/agent.sock") < 108
