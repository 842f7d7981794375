from __future__ import annotations

import pytest

from yarn_accel.client import StartupError, StorageError, TaskFiles


def test_files_are_read_by_uri(tmp_path):
    (tmp_path / "a").write_bytes(b"x")
    assert TaskFiles({}).read(f"file://{tmp_path}/a") == b"x"
    with pytest.raises(StorageError, match="no such file"):
        TaskFiles({}).read(f"file://{tmp_path}/b")


def test_a_file_goes_to_the_folder_of_the_attempt_which_hadoop_commits(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 1000)
    work = tmp_path / "out" / "_temporary" / "attempt_1"
    files = TaskFiles({"mapreduce_task_output_dir": f"file:{work}"})
    files.commit_with_task(tmp_path / "a", "factors-00000.seq")
    assert (work / "factors-00000.seq").read_bytes() == b"x" * 1000
    assert (tmp_path / "a").exists()


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "a").write_bytes(b"x")
    files = TaskFiles({"mapreduce_task_output_dir": f"file:{tmp_path}/a"})
    with pytest.raises(StorageError, match="a/b: Not a directory"):
        files.commit_with_task(tmp_path / "a", "b")


def test_where_nobody_commits_it_is_said_before_the_work_begins():
    with pytest.raises(StartupError, match=r"mapreduce_task_output_dir is not set.*Hadoop Streaming"):
        TaskFiles({}).check_output()
