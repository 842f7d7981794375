from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from yarn_accel.errors import ConfigError, StartupError
from yarn_accel.launch import device_lock
from yarn_accel.launch.device_lock import DeviceLocks, DevicesTaken, take_from_environment

HOLD = """
import sys
import tempfile
from pathlib import Path
from yarn_accel.launch.device_lock import DeviceLocks
locks = DeviceLocks(Path(sys.argv[1]), "container_7")
assert locks.take("GPU-1") is None
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "locks")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_device_has_one_holder_and_says_who(holder, tmp_path) -> None:
    found = DeviceLocks(tmp_path / "locks").take("GPU-1")
    assert found is not None
    assert (found.pid, found.user, found.container) == (holder.pid, os.geteuid(), "container_7")
    assert f"container_7 (pid {holder.pid}" in str(found)
    assert DeviceLocks(tmp_path / "locks").take("GPU-2") is None


def test_kill_9_frees_it(holder, tmp_path) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    locks = DeviceLocks(tmp_path / "locks")
    assert locks.take("GPU-1") is None
    assert locks.take("GPU-1") is None, "ours already"
    assert locks.devices == ("GPU-1",)


def test_release_frees_it(tmp_path) -> None:
    first, second = DeviceLocks(tmp_path), DeviceLocks(tmp_path)
    first.take("0")
    assert second.take("0") is not None
    first.release()
    assert first.devices == ()
    assert second.take("0") is None


def test_the_free_ones_are_taken(holder, tmp_path) -> None:
    locks = DeviceLocks(tmp_path / "locks")
    assert locks.take_some(["GPU-0", "GPU-1", "GPU-2", "GPU-3"], 2) == ("GPU-0", "GPU-2")


@pytest.mark.parametrize("n_wanted", [None, 3])
def test_too_few_free_ones_take_none_and_name_the_holder(holder, tmp_path, n_wanted) -> None:
    locks = DeviceLocks(tmp_path / "locks")
    with pytest.raises(
        DevicesTaken, match=r"3 devices wanted, 3 here, 2 free; GPU-1 is held by container_7"
    ) as caught:
        locks.take_some(["GPU-0", "GPU-1", "GPU-2"], n_wanted)
    assert locks.devices == ()
    assert caught.value.exit_code == device_lock.EXIT_DEVICES
    assert DeviceLocks(tmp_path / "locks").take("GPU-0") is None


def test_the_folder_is_for_every_user_of_the_node(tmp_path) -> None:
    old = os.umask(0o077)
    try:
        DeviceLocks(tmp_path / "locks").take("GPU-1")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "locks").stat().st_mode) == 0o1777
    assert stat.S_IMODE((tmp_path / "locks/GPU-1.lock").stat().st_mode) == 0o666


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_another_user_takes_a_device_we_gave_back_but_not_one_we_hold() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        ours = DeviceLocks(Path(folder, "locks"))
        ours.take_some(["GPU-1", "GPU-2"])
        ours.release("GPU-1")
        child = os.fork()
        if not child:
            outcome = 9
            with contextlib.suppress(BaseException):
                os.setuid(65534)
                locks = DeviceLocks(Path(folder, "locks"))
                outcome = 2 * (locks.take("GPU-1") is None) + (locks.take("GPU-2") is None)
            os._exit(outcome)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2


def test_nobody_leads_us_to_another_file(tmp_path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks/GPU-1.lock").symlink_to(victim)
    with pytest.raises(StartupError, match="devices_dir"):
        DeviceLocks(tmp_path / "locks").take("GPU-1")
    assert victim.read_text() == "precious"


def test_a_name_cannot_leave_the_folder(tmp_path) -> None:
    DeviceLocks(tmp_path / "locks").take("../x/y")
    assert [path.name for path in (tmp_path / "locks").iterdir()] == [".._x_y.lock"]


def test_a_pipe_in_its_place_does_not_stop_us(tmp_path) -> None:
    (tmp_path / "locks").mkdir()
    os.mkfifo(tmp_path / "locks/GPU-1.lock")
    with pytest.raises(StartupError, match="not a regular file"):
        DeviceLocks(tmp_path / "locks").take("GPU-1")


def test_nonsense_in_a_held_file_is_not_repeated(tmp_path) -> None:
    first = DeviceLocks(tmp_path)
    first.take("0")
    for text in ("", "[]", '{"pid": 1}', "\x1b[31m{"):
        (tmp_path / "0.lock").write_text(text)
        holder = DeviceLocks(tmp_path).take("0")
        assert holder is not None
        assert holder.container == "somebody unknown"


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(device_lock, "gpu_uuids", lambda: ("GPU-a", "GPU-b"))


def test_cuda_sees_what_was_taken(two_gpus, tmp_path) -> None:
    environ = {"ACCEL_DEVICES": "all", "ACCEL_DEVICES_DIR": str(tmp_path), "CONTAINER_ID": "container_1"}
    locks = take_from_environment(environ)
    assert locks is not None
    assert environ["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    with pytest.raises(DevicesTaken, match="GPU-a is held by container_1"):
        take_from_environment({**environ, "ACCEL_DEVICES": "1"})


def test_what_the_administrator_hides_stays_hidden(two_gpus, tmp_path) -> None:
    environ = {"ACCEL_DEVICES": "all", "ACCEL_DEVICES_DIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": "1"}
    locks = take_from_environment(environ)
    assert locks is not None
    assert locks.devices == ("GPU-b",)
    assert environ["CUDA_VISIBLE_DEVICES"] == "GPU-b"


def test_all_of_none_is_fine_and_one_of_none_is_not(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(device_lock, "gpu_uuids", lambda: ())
    environ = {"ACCEL_DEVICES": "all", "ACCEL_DEVICES_DIR": str(tmp_path)}
    assert take_from_environment(environ) is not None
    with pytest.raises(DevicesTaken, match="1 devices wanted, 0 here"):
        take_from_environment({**environ, "ACCEL_DEVICES": "1"})


def test_nothing_is_taken_unasked_and_nonsense_is_refused() -> None:
    assert take_from_environment({}) is None
    with pytest.raises(ConfigError, match="ACCEL_DEVICES=some"):
        take_from_environment({"ACCEL_DEVICES": "some"})
