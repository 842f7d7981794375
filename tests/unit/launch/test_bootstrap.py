import contextlib
import errno
import fcntl
import json
import os
import random
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.fixtures.waiting import until
from yarn_accel.launch import bootstrap
from yarn_accel.launch.bootstrap import StartRefused

DEADLINE_S = 120.0
OLD_PYTHONS = ("3.6", "3.7", "3.8", "3.9")


def provided(archive, *roots):
    folder, lock = bootstrap.provide(str(archive), list(roots))
    os.close(lock)
    return folder


def names(root):
    return {path.name for path in root.iterdir() if not path.name.endswith(".lock")}


def refused(process, code, *words):
    """It ends with this code, and says this."""
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == code
    assert all(word in err for word in words), err


def test_it_becomes_the_command_with_the_environment_on_the_path(pack_small, start, tmp_path):
    process = start(pack_small(), "agent", "--name", "a b", PYTHONHOME="/nowhere", MARK="kept")
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, err
    reported = json.loads(out)
    assert reported["words"] == ["agent", "--name", "a b"]
    assert reported["pid"] == process.pid, "exec, no child"
    assert reported["environ"]["PYTHONPATH"].startswith(str(tmp_path / "cache"))
    assert reported["environ"]["ACCEL_ENVIRONMENT"] == reported["environ"]["PYTHONPATH"]
    assert reported["environ"]["MARK"] == "kept"
    assert "PYTHONHOME" not in reported["environ"]


def test_a_second_start_does_not_unpack_again(pack_small, tmp_path):
    archive = pack_small()
    folder = provided(archive, tmp_path / "cache")
    before = (folder / "yarn_accel/__init__.py").stat().st_ino
    archive.write_bytes(b"gone bad since")
    assert provided(archive, tmp_path / "cache") == folder
    assert (folder / "yarn_accel/__init__.py").stat().st_ino == before


def test_eight_at_once_unpack_it_once_though_the_first_is_killed(pack_small, start, tmp_path):
    """Eight containers of a node start together; the one that unpacks is killed in the middle of it."""
    content = {f"data/{n}.bin": random.Random(n).randbytes(1 << 20) for n in range(60)}
    archive = pack_small(content)
    processes = [start(archive, "wait") for _ in range(8)]
    root = tmp_path / "cache"
    until(lambda: list(root.glob("*.tmp/data/*.bin")), "somebody unpacks")
    (lock,) = root.glob("*.lock")
    until(lambda: lock.read_text(), "it says who it is")
    victim = next(p for p in processes if p.pid == int(lock.read_text()))
    victim.send_signal(signal.SIGKILL)
    assert victim.wait(DEADLINE_S) == -signal.SIGKILL
    survivors = [p for p in processes if p is not victim]
    for process in survivors:
        assert json.loads(process.stdout.readline())["words"] == ["wait"]
    (folder,) = names(root)
    for n in range(60):
        assert (root / folder / f"data/{n}.bin").read_bytes() == content[f"data/{n}.bin"]


def test_who_waited_to_unpack_goes_on_when_another_has_and_runs(pack_small, tmp_path, monkeypatch):
    """The other one keeps the lock, shared, for weeks: waiting for it to be free would never end."""
    archive = pack_small()
    digest = archive.stem.removeprefix("accel-environment-")
    root = tmp_path / "cache"
    root.mkdir(0o700)
    locked, was_refused = bootstrap._locked, threading.Event()

    def noticed(path, kind):
        lock = locked(path, kind)
        if lock is None:
            was_refused.set()
        return lock

    monkeypatch.setattr(bootstrap, "_locked", noticed)
    monkeypatch.setattr(bootstrap, "_PATIENCE_S", DEADLINE_S)
    other = os.open(root / f"{digest}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(provided, archive, root)
            assert was_refused.wait(DEADLINE_S)
            bootstrap._fill(root, digest, str(archive))
            fcntl.flock(other, fcntl.LOCK_SH)
            assert waiting.result(2 * DEADLINE_S) == root / digest
    finally:
        os.close(other)


def test_what_a_killed_one_left_is_removed_by_the_next(pack_small, start, tmp_path):
    archive = pack_small({f"data/{n}.bin": random.Random(n).randbytes(1 << 20) for n in range(60)})
    root = tmp_path / "cache"
    process = start(archive)
    until(lambda: list(root.glob("*.tmp/data/*.bin")), "it unpacks")
    process.kill()
    process.wait()
    (left,) = names(root)
    assert left.endswith(".tmp")
    provided(archive, root)
    assert names(root) == {left.removesuffix(".tmp")}


def test_unused_versions_go_but_the_one_used_last(pack_small, tmp_path):
    root = tmp_path / "cache"
    folders = [provided(pack_small({"version": b"%d" % n}), root) for n in range(4)]
    assert names(root) == {folders[2].name, folders[3].name}
    assert len(list(root.glob("*.lock"))) == 2


def test_a_version_somebody_runs_from_stays(pack_small, start, tmp_path):
    root = tmp_path / "cache"
    process = start(pack_small({"version": b"0"}), "wait")
    used = Path(json.loads(process.stdout.readline())["environ"]["ACCEL_ENVIRONMENT"])
    for n in range(1, 4):
        provided(pack_small({"version": b"%d" % n}), root)
    assert used.name in names(root)
    process.kill()
    process.wait()
    provided(pack_small({"version": b"4"}), root)
    assert used.name not in names(root)


def test_after_a_boot_it_is_unpacked_again(pack_small, tmp_path, monkeypatch):
    archive = pack_small()
    folder = provided(archive, tmp_path / "cache")
    (folder / "yarn_accel/launch/container_entry.py").write_bytes(b"")  # as after a power failure
    monkeypatch.setattr(bootstrap, "_boot", lambda: "another boot")
    assert provided(archive, tmp_path / "cache") == folder
    assert (folder / "yarn_accel/launch/container_entry.py").read_bytes()


def test_an_archive_cut_short_is_refused(pack_small, start, tmp_path):
    archive = pack_small({"data": random.Random(1).randbytes(100_000)})
    archive.write_bytes(archive.read_bytes()[:50_000])
    refused(start(archive), bootstrap.EXIT_DAMAGED, "damaged", os.uname().nodename)
    assert names(tmp_path / "cache") == set()


def test_a_flipped_byte_is_refused(pack_small, tmp_path):
    archive = pack_small({"data": random.Random(1).randbytes(100_000)})
    content = bytearray(archive.read_bytes())
    content[len(content) // 2] ^= 1
    archive.write_bytes(content)
    with pytest.raises(StartRefused, match="damaged") as caught:
        provided(archive, tmp_path / "cache")
    assert caught.value.exit_code == bootstrap.EXIT_DAMAGED


def test_another_content_under_that_name_is_refused(pack_small, tmp_path):
    with pytest.raises(StartRefused, match="not what its name says"):
        provided(pack_small(digest="0" * 32), tmp_path / "cache")
    assert names(tmp_path / "cache") == set()


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "a/../../outside"])
def test_a_name_that_leads_outside_is_refused(pack_small, tmp_path, name):
    with pytest.raises(StartRefused, match="no name of a file"):
        provided(pack_small({name: b"x"}), tmp_path / "cache" / "deep")
    assert not list(tmp_path.rglob("outside"))


def test_an_archive_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(StartRefused, match="must be a resource"):
        provided(tmp_path / f"accel-environment-{'0' * 32}.zip", tmp_path / "cache")


def test_a_full_disk_is_said_with_the_space_needed(pack_small, start, tmp_path, monkeypatch):
    space = SimpleNamespace(f_bavail=10, f_frsize=1 << 20, f_flag=0)
    monkeypatch.setattr(os, "statvfs", lambda path: space)
    with pytest.raises(StartRefused, match=r"10 MiB free, 65 MiB needed.*free disk space") as caught:
        provided(pack_small({"data": bytes(1 << 20)}), tmp_path / "cache")
    assert caught.value.exit_code == bootstrap.EXIT_DISK
    assert names(tmp_path / "cache") == set()


def test_a_file_system_without_execution_is_not_used(pack_small, tmp_path, monkeypatch):
    space = SimpleNamespace(f_bavail=1 << 20, f_frsize=1 << 20, f_flag=os.ST_NOEXEC)
    monkeypatch.setattr(os, "statvfs", lambda path: space)
    with pytest.raises(StartRefused, match="noexec"):
        provided(pack_small(), tmp_path / "cache")


def test_a_disk_that_fills_up_costs_the_unused_versions_first(pack_small, tmp_path, monkeypatch):
    root = tmp_path / "cache"
    provided(pack_small({"version": b"0"}), root)
    write, calls = bootstrap._write, []

    def full_once(*arguments):
        calls.append(arguments)
        if len(calls) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(*arguments)

    monkeypatch.setattr(bootstrap, "_write", full_once)
    folder = provided(pack_small({"version": b"1"}), root)
    assert names(root) == {folder.name}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_really_full_disk_leaves_nothing_behind(pack_small, start, tmp_path, monkeypatch):
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "tmpfs", str(disk)], check=True)
    monkeypatch.setattr(bootstrap, "_SPARE_BYTES", -(1 << 30))  # let it run into the wall
    try:
        with pytest.raises(StartRefused, match="No space left"):
            provided(pack_small({"data": random.Random(1).randbytes(8 << 20)}), disk / "cache")
        assert names(disk / "cache") == set()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_the_next_folder_is_taken_when_the_first_cannot_be_used(pack_small, tmp_path):
    (tmp_path / "blocked").write_text("a file")
    folder = provided(pack_small(), tmp_path / "blocked", tmp_path / "second")
    assert folder.parent == tmp_path / "second"


def test_the_folder_that_has_it_already_comes_first(pack_small, tmp_path):
    archive = pack_small()
    folder = provided(archive, tmp_path / "second")
    assert provided(archive, tmp_path / "first", tmp_path / "second") == folder
    assert not (tmp_path / "first").exists()


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_no_code_is_loaded_from_where_others_can_write(pack_small, tmp_path, mode):
    root = tmp_path / "cache"
    root.mkdir()
    root.chmod(mode)
    with pytest.raises(StartRefused, match="only we can write"):
        provided(pack_small(), root)


def test_no_code_is_loaded_through_a_link(pack_small, tmp_path):
    (tmp_path / "real").mkdir(0o700)
    (tmp_path / "cache").symlink_to(tmp_path / "real")
    with pytest.raises(StartRefused, match="only we can write"):
        provided(pack_small(), tmp_path / "cache")


def test_who_holds_the_lock_too_long_is_named(pack_small, tmp_path, monkeypatch):
    archive = pack_small()
    root = tmp_path / "cache"
    root.mkdir(0o700)
    digest = archive.stem.removeprefix("accel-environment-")
    lock = os.open(root / f"{digest}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    os.write(lock, b"4711")
    fcntl.flock(lock, fcntl.LOCK_EX)
    monkeypatch.setattr(bootstrap, "_PATIENCE_S", 0.1)
    try:
        with pytest.raises(StartRefused, match="process 4711 has not finished"):
            provided(archive, root)
    finally:
        os.close(lock)


@pytest.mark.parametrize(
    ("need", "code", "words"),
    [
        ({"glibc": "9.99"}, bootstrap.EXIT_GLIBC, ("glibc is", "needs 9.99")),
        ({"machine": "s390x"}, bootstrap.EXIT_PLATFORM, ("s390x",)),
    ],
)
def test_a_node_that_does_not_fit_is_refused(pack_small, start, need, code, words):
    refused(start(pack_small(**need)), code, *words)


def test_an_unpacked_environment_is_judged_again_by_each_start(pack_small, tmp_path, monkeypatch):
    archive = pack_small()
    provided(archive, tmp_path / "cache")
    monkeypatch.setattr(bootstrap, "node_facts", lambda: {"python": "3.2"})
    monkeypatch.setenv("PATH", "")
    with pytest.raises(StartRefused, match=r"python3 is 3.2") as caught:
        provided(archive, tmp_path / "cache")
    assert caught.value.exit_code == bootstrap.EXIT_PYTHON


def test_another_interpreter_of_the_node_that_fits_is_found(pack_small, start, tmp_path):
    """`python3` is too new or too old; `python9.9` is installed beside it and is run instead, once."""
    (tmp_path / "bin").mkdir()
    other = tmp_path / "bin" / "python9.9"
    other.write_text('#!/bin/sh\necho "$ACCEL_PYTHON_TRIED" "$@"\n')
    other.chmod(0o755)
    archive = pack_small(python="9.9")
    process = start(archive, "agent", "a b", PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, err
    assert out.split()[:3] == ["1", "-I", "-S"]
    assert out.endswith("agent a b\n")
    refused(start(archive, "agent", PATH="/nonexistent"), bootstrap.EXIT_PYTHON, "install python9.9")


@pytest.mark.parametrize("version", OLD_PYTHONS)
def test_old_pythons_say_what_is_wrong(pack_small, tmp_path, version):
    found = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
    found += [path for path in (Path(f"/usr/bin/python{version}"),) if path.exists()]
    if not found:
        pytest.skip(f"no Python {version} here")
    process = subprocess.Popen(
        [found[0], "-I", "-S", bootstrap.__file__, str(pack_small())],
        env={"PATH": "", "ACCEL_CACHE_DIR": str(tmp_path / "cache")},
        stderr=subprocess.PIPE,
        text=True,
    )
    refused(process, bootstrap.EXIT_PYTHON, f"python3 is {version}")


def test_a_nodes_facts_are_those_of_its_interpreter():
    facts = bootstrap.node_facts()
    assert facts["machine"] == os.uname().machine
    with contextlib.suppress(ValueError):
        assert facts["glibc"] in (os.confstr("CS_GNU_LIBC_VERSION") or "")


def test_the_nodemanagers_folders_come_before_our_own():
    roots = bootstrap.candidate_roots({"LOCAL_USER_DIRS": "/d1/usercache/u/,/d2/usercache/u/"})
    assert roots[:2] == [Path("/d1/usercache/u/yarn-accel"), Path("/d2/usercache/u/yarn-accel")]
    assert str(os.geteuid()) in roots[2].name
    assert bootstrap.candidate_roots({"ACCEL_CACHE_DIR": "/c", "LOCAL_USER_DIRS": "/d1"}) == [Path("/c")]
