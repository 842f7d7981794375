"""Threads and folders that one attempt leaves to the next."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from yarn_accel.worker.reuse import AttemptFolders, AttemptThreads


def test_an_idle_thread_takes_the_next_attempt_and_a_busy_one_does_not() -> None:
    threads = AttemptThreads()

    def run() -> tuple[threading.Thread, threading.Event]:
        found: list[threading.Thread] = []
        has_begun, may_end = threading.Event(), threading.Event()

        def attempt() -> None:
            found.append(threading.current_thread())
            has_begun.set()
            may_end.wait()

        threads.run(attempt)
        has_begun.wait()
        return found[0], may_end

    first, first_may_end = run()
    second, second_may_end = run()
    assert first is not second
    assert first.daemon
    first_may_end.set()
    while (third := run())[0] is not first:  # it is idle soon
        third[1].set()
    third[1].set()
    second_may_end.set()


@pytest.mark.parametrize("names", [(), ("left", "also left")])
def test_a_folder_is_the_next_attempts_without_its_files(tmp_path: Path, names: tuple[str, ...]) -> None:
    folders = AttemptFolders(tmp_path)
    first, second = folders.of("a"), folders.of("b")
    folders.make(first)
    there = first.stat().st_ino
    for name in names:
        (first / name).write_text("x")
    folders.give_back(first)
    folders.make(second)
    assert (second.stat().st_ino, [each.name for each in tmp_path.rglob("*")]) == (there, ["b", "tmp"])


def _link(folder: Path) -> None:
    (folder / "tmp").rmdir()
    (folder / "tmp").symlink_to(folder.parent / "empty")


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "left").mkdir(),
        lambda folder: (folder / "tmp" / "left").write_text("x"),
        lambda folder: [(folder / f"left-{n}").write_text("x") for n in range(100)],
        _link,
        lambda folder: (folder / "tmp").rmdir(),
        lambda folder: folder.chmod(0o500),
        lambda folder: (folder / "tmp").chmod(0o777),
    ],
)
def test_a_folder_that_is_not_as_it_was_is_removed(tmp_path: Path, change: Callable[[Path], object]) -> None:
    folders = AttemptFolders(tmp_path)
    (tmp_path / "empty").mkdir()
    folders.make(folders.of("a"))
    change(folders.of("a"))
    folders.give_back(folders.of("a"))
    assert [each.name for each in tmp_path.iterdir()] == ["empty"]


def test_a_folder_that_was_removed_is_made_anew_and_one_that_is_there_is_an_error(
    tmp_path: Path,
) -> None:
    folders = AttemptFolders(tmp_path)
    folders.make(folders.of("a"))
    folders.give_back(folders.of("a"))
    (tmp_path / "a" / "tmp").rmdir()
    (tmp_path / "a").rmdir()
    folders.make(folders.of("b"))
    assert (tmp_path / "b" / "tmp").is_dir()
    with pytest.raises(FileExistsError):
        folders.make(folders.of("b"))
