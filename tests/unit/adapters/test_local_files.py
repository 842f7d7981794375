"""Our own small files are there whole or not at all."""

import threading

import pytest

from yarn_accel.adapters.local_files import write_atomic


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_it_replaces_what_was_there_and_makes_the_folders(tmp_path):
    path = tmp_path / "a" / "b" / "state.json"
    write_atomic(path, "old")
    write_atomic(path, "neu: ü")
    assert path.read_bytes() == "neu: ü".encode()
    assert names(path.parent) == ["state.json"]


def test_the_mode_is_there_from_the_beginning(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("old")
    secret.chmod(0o644)
    write_atomic(secret, "new", 0o600)
    assert secret.stat().st_mode & 0o777 == 0o600


def test_what_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    path = tmp_path / "state.json"
    write_atomic(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "half \ud800")
    assert path.read_text() == "old"
    (tmp_path / "folder" / "full").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        write_atomic(tmp_path / "folder", "text")
    assert names(tmp_path) == ["folder", "state.json"]


def test_who_reads_sees_one_text_or_the_other_whoever_writes(tmp_path):
    path = tmp_path / "state.json"
    texts = {letter * 100_000 for letter in "abcd"}
    write_atomic(path, "a" * 100_000)

    def write(text):
        for _ in range(25):
            write_atomic(path, text)

    threads = [threading.Thread(target=write, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert path.read_text() in texts
    for thread in threads:
        thread.join()
    assert names(tmp_path) == ["state.json"]
