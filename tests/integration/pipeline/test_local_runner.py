"""`connect("local")` in odd surroundings: it works, or ends with one line whose cure fits; odd files."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys

import numpy as np
import pytest

from tests.integration.pipeline.conftest import ROOT
from yarn_accel.client import AccelError, connect, is_bad_record

SMALL = {"workers": 1, "standby_workers": 0, "calibrate": False}
PROGRAM = f"""
from yarn_accel.client import AccelError, connect
try:
    with connect('local', server_settings={SMALL}) as accel:
        print(accel.gemm([[2.0]], [[3.0]]).c.tolist())
except AccelError as error:
    print(type(error).__name__, error)
"""
NOBODY = 54321


def run(environ, **options):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={"PATH": os.defpath, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]]), **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **options,
    )


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user without an entry")
@pytest.mark.parametrize("environ", [{}, {"HOME": "none"}, {"USER": "me"}])
def test_a_user_without_an_entry_home_or_name(environ, tmp_path):
    if "HOME" in environ:
        environ = {"HOME": str(tmp_path / "none")}
    python = os.path.realpath(sys.executable)
    visible = subprocess.run([python, "-c", ""], user=NOBODY, check=False) if can_execute(python) else None
    if visible is None or visible.returncode:
        pytest.skip("another user cannot run this interpreter")
    done = run(environ, user=NOBODY, group=NOBODY, extra_groups=[], cwd="/")
    assert done.stdout == "[[6.0]]\n", done.stderr


def can_execute(python):
    try:
        subprocess.run([python, "-c", ""], user=NOBODY, check=False)
    except PermissionError:
        return False
    return True


def test_without_a_home_or_a_name():
    """As a user that the system does not know: the names come from the environment alone."""
    program = "import pwd, os\npwd.getpwuid = lambda uid: {}[uid]\n"
    program += "from yarn_accel.client.local_server import login_name\n"
    program += "from yarn_accel.pipeline.calibration import _default_path\n"
    program += "print(login_name() == f'uid-{os.geteuid()}', _default_path())\n"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "True None\n", done.stderr


@pytest.mark.parametrize("limit_mib", [60, 190, 250])
def test_too_little_memory_ends_with_one_line_or_works(limit_mib):
    limit = limit_mib << 20
    done = run({}, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
    if done.stdout != "[[6.0]]\n":
        assert done.stdout.startswith("StartupError the pipeline server did not start"), done
        assert "raise `ulimit -v`" in done.stdout
        assert done.stdout.count("\n") == 1


def test_no_place_for_temporary_files_names_the_cure(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    with pytest.raises(AccelError, match="set TMPDIR"), connect("local"):
        pass


@pytest.fixture(scope="module")
def runners():
    with connect("local", server_settings=SMALL, patience_s=2) as local, connect("inline") as inline:
        yield {"local": local, "inline": inline}


@pytest.mark.parametrize("mode", ["local", "inline"])
def test_a_link_is_read_and_never_replaced(runners, mode, tmp_path):
    np.save(tmp_path / "a b%20#.npy", np.eye(2))
    (tmp_path / "link.npy").symlink_to(tmp_path / "a b%20#.npy")
    accel = runners[mode]
    for item in (tmp_path / "link.npy", tmp_path / "a b%20#.npy", f"file://{tmp_path}/a b%20#.npy"):
        assert accel.call("echo", item).arrays()["input_0"].tolist() == [[1, 0], [0, 1]]
    with pytest.raises(AccelError, match="not a regular file") as caught:
        accel.lu(np.eye(2), output=f"file://{tmp_path}/link.npy")
    assert caught.value.code == "storage"
    assert (tmp_path / "link.npy").is_symlink()


@pytest.mark.parametrize("mode", ["local", "inline"])
@pytest.mark.parametrize("kind", ["fifo", "socket", "folder", "dangling"])
def test_what_is_no_regular_file_is_neither_read_nor_replaced(runners, mode, kind, tmp_path):
    place = tmp_path / "x"
    if kind == "fifo":
        os.mkfifo(place)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(place))
    elif kind == "folder":
        place.mkdir()
    else:
        place.symlink_to(tmp_path / "none")
    before = place.lstat()
    accel = runners[mode]
    for attempt in (
        lambda: accel.call("echo", f"file://{place}"),
        lambda: accel.lu(np.eye(2), output=f"file://{place}"),
    ):
        with pytest.raises(AccelError) as caught:
            attempt()
        assert caught.value.code == "storage"
        assert is_bad_record(caught.value)
    assert (place.lstat().st_ino, place.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("mode", ["local", "inline"])
def test_the_same_uris_are_refused(runners, mode, tmp_path):
    np.save(tmp_path / "a.npy", np.eye(2))
    for uri in (
        f"{tmp_path}/a.npy",
        "a.npy",
        f"file://{tmp_path}/a.npy/",
        f"file://{tmp_path}/../{tmp_path.name}/a.npy",
        f"file://localhost{tmp_path}/a.npy",
        "hdfs://me@127.0.0.1:8/a.npy",
        "hdfs://127.0.0.1:99999/a.npy",
        "s3a://bucket/a.npy",
    ):
        with pytest.raises(AccelError) as caught:
            runners[mode].call("echo", uri)
        assert caught.value.code == "forbidden-uri", uri


@pytest.mark.parametrize("uri", ["hdfs:///x.npy", "hdfs://no-such-service/x.npy", "hdfs://127.0.0.1:8/x.npy"])
def test_another_namenode_is_tried_and_never_the_records_fault(runners, uri, monkeypatch):
    with pytest.raises(AccelError) as caught:
        runners["local"].call("echo", uri)
    assert caught.value.code == ("storage" if ":8/" in uri else "unknown-storage")
    assert not is_bad_record(caught.value)


def test_inline_says_that_it_does_not_know_the_namenode(runners, monkeypatch):
    with pytest.raises(AccelError) as caught:
        runners["inline"].call("echo", "hdfs:///x.npy")
    assert caught.value.code == "unknown-storage"
    assert not is_bad_record(caught.value)


def test_a_start_that_takes_long_says_so(capfd, monkeypatch):
    monkeypatch.setattr("yarn_accel.client.local_server._QUIET_S", 0.0)
    with connect("local", server_settings=SMALL) as accel:
        accel.gemm([[2.0]], [[3.0]])
    assert capfd.readouterr().err.count("starting a pipeline server") == 1
