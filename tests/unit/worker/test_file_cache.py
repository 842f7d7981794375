"""Files and Python environments that a worker keeps for its tasks."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from yarn_accel.errors import StorageError
from yarn_accel.storage import Store
from yarn_accel.worker.file_cache import FileCache, InputPrefetch
from yarn_accel.worker.python_environments import unpack


def cache(folder: Path, max_bytes: int = 1000) -> FileCache:
    return FileCache(Store(), folder / "work" / ".files", max_bytes)


def written(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    return f"file://{path}"


def test_a_file_is_fetched_once_and_linked_for_each_attempt(tmp_path):
    files, uri = cache(tmp_path), written(tmp_path, "model", "weights")
    for number in range(5):
        files.link(uri, tmp_path / f"link-{number}")
    assert files.n_fetched == 1
    assert len({(tmp_path / f"link-{number}").stat().st_ino for number in range(5)}) == 1
    assert (tmp_path / "link-4").read_text() == "weights"
    assert (tmp_path / "link-4").stat().st_mode & 0o777 == 0o500


def test_a_file_that_was_replaced_is_fetched_again(tmp_path):
    files, uri = cache(tmp_path), written(tmp_path, "model", "old")
    files.link(uri, tmp_path / "first")
    written(tmp_path, "model", "newer")
    files.link(uri, tmp_path / "second")
    assert ((tmp_path / "first").read_text(), (tmp_path / "second").read_text()) == ("old", "newer")


def test_a_copy_that_a_command_wrote_into_is_given_to_nobody_else(tmp_path):
    files, uri = cache(tmp_path), written(tmp_path, "model", "good")
    files.link(uri, tmp_path / "first")
    (tmp_path / "first").chmod(0o700)
    (tmp_path / "first").write_text("evil")
    os.utime(tmp_path / "first", ns=(1, 1))
    files.link(uri, tmp_path / "second")
    assert (tmp_path / "second").read_text() == "good"
    assert (tmp_path / "first").read_text() == "evil"


def test_what_a_task_left_here_is_linked_and_not_fetched(tmp_path):
    files, uri = cache(tmp_path), written(tmp_path, "out", "tile")
    own = tmp_path / "own"
    own.write_text("tile")
    files.add(uri, own)
    took = []
    files.link(uri, tmp_path / "in", took.append)
    assert (files.n_fetched, took) == (0, [])
    assert (tmp_path / "in").stat().st_ino == own.stat().st_ino
    assert (tmp_path / "in").stat().st_mode & 0o777 == 0o500


def test_the_first_link_of_what_was_just_added_asks_for_no_stamp_and_the_next_one_does(tmp_path, monkeypatch):
    files, uri = cache(tmp_path), written(tmp_path, "out", "tile")
    (tmp_path / "own").write_text("tile")
    asked, stamp = [], Store.stamp
    monkeypatch.setattr(Store, "stamp", lambda store, uri: asked.append(uri) or stamp(store, uri))
    files.announce(uri)
    files.add(uri, tmp_path / "own")
    files.link(uri, tmp_path / "first")
    assert asked == [uri]
    written(tmp_path, "out", "other tile")
    files.link(uri, tmp_path / "second")
    assert (tmp_path / "second").read_text() == "other tile"
    assert asked == [uri] * 2


def test_what_is_not_what_was_written_or_is_too_large_is_not_kept(tmp_path):
    files, uri = cache(tmp_path, 10), written(tmp_path, "out", "tile")
    for text in ("other length", "x" * 11):
        (tmp_path / "own").write_text(text)
        files.add(uri, tmp_path / "own")
    (tmp_path / "link").symlink_to(tmp_path / "out")
    files.add(uri, tmp_path / "link")
    files.add(f"file://{tmp_path}/none", tmp_path / "own")
    took = []
    files.link(uri, tmp_path / "in", took.append)
    assert (files.n_fetched, took) == (1, [4])


def test_a_fetch_that_is_ended_leaves_nothing_that_is_taken_for_the_file(tmp_path):
    files, uri = cache(tmp_path), written(tmp_path, "model", "x" * 500)

    def stop(n_bytes: int) -> None:
        raise InterruptedError

    with pytest.raises(StorageError):
        files.link(uri, tmp_path / "first", stop)
    files.link(uri, tmp_path / "second")
    assert (tmp_path / "second").read_text() == "x" * 500


def test_attempts_that_begin_together_wait_for_one_fetch(tmp_path):
    files, uri = cache(tmp_path), written(tmp_path, "model", "x" * 500)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: files.link(uri, tmp_path / f"link-{n}"), range(32)))
    assert files.n_fetched == 1


def test_the_files_linked_longest_ago_go_first_and_links_stay_whole(tmp_path):
    files = cache(tmp_path, max_bytes=1000)
    uris = [written(tmp_path, f"f{n}", str(n) * 400) for n in range(3)]
    files.link(uris[0], tmp_path / "a")
    files.link(uris[1], tmp_path / "b")
    files.link(uris[0], tmp_path / "c")
    files.link(uris[2], tmp_path / "d")
    assert len(list((tmp_path / "work" / ".files").iterdir())) == 2
    assert (tmp_path / "b").read_text() == "1" * 400
    files.link(uris[0], tmp_path / "e")
    assert files.n_fetched == 3
    files.link(uris[1], tmp_path / "f")
    assert files.n_fetched == 4


def test_a_file_that_is_not_there_is_one_error_and_the_next_try_works(tmp_path):
    files = cache(tmp_path)
    with pytest.raises(StorageError):
        files.link(f"file://{tmp_path}/late", tmp_path / "a")
    files.link(written(tmp_path, "late", "now"), tmp_path / "a")
    assert (tmp_path / "a").read_text() == "now"


def test_what_an_earlier_worker_left_is_deleted(tmp_path):
    cache(tmp_path).link(written(tmp_path, "model", "x"), tmp_path / "a")
    cache(tmp_path)
    assert list((tmp_path / "work" / ".files").iterdir()) == []


# What attempts take that wait for their turn.


class GatedStore(Store):
    """Each fetch waits until it may read."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.may_read = threading.Semaphore(0), threading.Semaphore(0)

    @contextlib.contextmanager
    def stream(self, uri):
        with super().stream(uri) as source:
            self.begun.release()
            assert self.may_read.acquire(timeout=120)
            yield source


@pytest.fixture
def gated(tmp_path):
    store = GatedStore()
    return store, FileCache(store, tmp_path / "work" / ".files", 1000)


def fetched(files: FileCache, n_files: int) -> None:
    """Wait until so many have come."""
    until_s = time.monotonic() + 120
    while files.n_fetched < n_files:
        assert time.monotonic() < until_s
        time.sleep(0.001)


def test_two_files_at_once_come_before_the_attempts_that_take_them(tmp_path, gated):
    store, files = gated
    uris = [written(tmp_path, f"f{n}", "x" * 10) for n in range(3)]
    InputPrefetch(files, 100).want([*uris, uris[0]], [])
    for _ in range(2):
        assert store.begun.acquire(timeout=120)
    assert not store.begun.acquire(blocking=False)
    store.may_read.release(3)
    fetched(files, 3)
    took = []
    files.link(uris[2], tmp_path / "a", took.append)
    assert (files.n_fetched, took) == (3, [])


def test_what_is_too_large_together_or_cannot_be_read_is_left_to_its_attempt(tmp_path, gated):
    store, files = gated
    store.may_read.release(9)
    none, first, large, last = (
        f"file://{tmp_path}/none",
        *(written(tmp_path, name, name * n) for name, n in (("a", 60), ("b", 50), ("c", 30))),
    )
    prefetch = InputPrefetch(files, 100)
    prefetch.want([none, first], [])
    fetched(files, 1)
    prefetch.want([none, first, large, last], [])
    fetched(files, 2)
    took = []
    files.link(last, tmp_path / "last", took.append)
    files.link(large, tmp_path / "large", took.append)
    assert took == [50]


@pytest.mark.parametrize(("is_running", "n_bytes_left"), [(False, [500]), (True, [])])
def test_a_fetch_ends_when_its_attempt_is_taken_back_and_not_when_it_starts(
    tmp_path, gated, is_running, n_bytes_left
):
    store, files = gated
    uri = written(tmp_path, "model", "x" * 500)
    prefetch = InputPrefetch(files, 500)
    prefetch.want([uri], [])
    assert store.begun.acquire(timeout=120)
    prefetch.want([], [uri] if is_running else [])
    store.may_read.release(2)
    took = []
    files.link(uri, tmp_path / "a", took.append)
    assert took == n_bytes_left
    assert (tmp_path / "a").read_text() == "x" * 500


# Packed Python environments: unpacked with any Python, and never outside their folder.


def member(name, kind=tarfile.REGTYPE, target=""):
    found = tarfile.TarInfo(name)
    found.type, found.linkname, found.mode = kind, target, 0o755
    return found


def packed(folder, *members):
    with tarfile.open(folder / "packed.tar.gz", "w:gz") as archive:
        for each in members:
            archive.addfile(each, io.BytesIO())
    return folder / "packed.tar.gz"


@pytest.fixture(params=["with filters", "without filters"])
def any_python(request, monkeypatch):
    """Python before 3.11.4, such as Debian 12's, has no filters."""
    if request.param == "with filters" and not hasattr(tarfile, "tar_filter"):
        pytest.skip("this Python has no filters")
    if request.param == "without filters":
        if sys.version_info >= (3, 14):
            pytest.skip("this Python never goes without a filter")
        monkeypatch.delattr(tarfile, "tar_filter", raising=False)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_environment_with_links_is_unpacked(tmp_path, any_python):
    archive = packed(
        tmp_path,
        member("env", tarfile.DIRTYPE),
        member("env/bin", tarfile.DIRTYPE),
        member("env/bin/python3", tarfile.SYMTYPE, "/usr/bin/python3"),
        member("env/bin/python", tarfile.SYMTYPE, "python3"),
        member("env/lib64", tarfile.SYMTYPE, "lib"),
        member("env/bin/tool"),
        member("env/bin/same", tarfile.LNKTYPE, "env/bin/tool"),
    )
    unpack(archive, tmp_path / "here")
    assert sorted(each.name for each in (tmp_path / "here" / "env" / "bin").iterdir()) == [
        "python",
        "python3",
        "same",
        "tool",
    ]


@pytest.mark.parametrize(
    "members",
    [
        [member("../outside")],
        [member("/outside")],
        [member("a", tarfile.SYMTYPE, ".."), member("a/outside")],
        [member("a", tarfile.LNKTYPE, "../outside")],
        [member("a", tarfile.LNKTYPE, "/etc/passwd")],
        [member("device", tarfile.CHRTYPE)],
        [member("pipe", tarfile.FIFOTYPE)],
    ],
    ids=["parent", "root", "through a link", "hard link", "hard link to root", "device", "pipe"],
)
def test_what_leads_elsewhere_is_refused_before_anything_is_written(tmp_path, any_python, members):
    with pytest.raises(tarfile.TarError, match="below its folder"):
        unpack(packed(tmp_path, member("good"), *members), tmp_path / "here")
    assert not (tmp_path / "here").exists()
    assert not (tmp_path / "outside").exists()
