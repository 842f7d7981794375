import contextlib
import fcntl
import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from yarn_accel.adapters.nvml import Gpu
from yarn_accel.errors import ConfigError, StartupError
from yarn_accel.launch import device_lock
from yarn_accel.launch.device_lock import DeviceLocks, DevicesTaken, take_from_environment
from yarn_accel.pipeline import devices
from yarn_accel.pipeline.config import PipelineConfig
from yarn_accel.pipeline.devices import find_devices

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
def holder(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "locks")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_device_has_one_holder_and_says_who(holder, tmp_path):
    found = DeviceLocks(tmp_path / "locks").take("GPU-1")
    assert (found.pid, found.user, found.container) == (holder.pid, os.geteuid(), "container_7")
    assert f"container_7 (pid {holder.pid}" in str(found)
    assert DeviceLocks(tmp_path / "locks").take("GPU-2") is None


def test_kill_9_frees_it(holder, tmp_path):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    locks = DeviceLocks(tmp_path / "locks")
    assert locks.take("GPU-1") is None
    assert locks.take("GPU-1") is None, "ours already"
    assert locks.devices == ("GPU-1",)


def test_release_frees_it(tmp_path):
    first, second = DeviceLocks(tmp_path), DeviceLocks(tmp_path)
    first.take("0")
    assert second.take("0") is not None
    first.release()
    assert first.devices == ()
    assert second.take("0") is None


def test_the_free_ones_are_taken(holder, tmp_path):
    locks = DeviceLocks(tmp_path / "locks")
    assert locks.take_some(["GPU-0", "GPU-1", "GPU-2", "GPU-3"], 2) == ("GPU-0", "GPU-2")


@pytest.mark.parametrize("n_wanted", [None, 3])
def test_too_few_free_ones_take_none_and_name_the_holder(holder, tmp_path, n_wanted):
    locks = DeviceLocks(tmp_path / "locks")
    with pytest.raises(
        DevicesTaken, match=r"3 devices wanted, 3 here, 2 free; GPU-1 is held by container_7"
    ) as caught:
        locks.take_some(["GPU-0", "GPU-1", "GPU-2"], n_wanted)
    assert locks.devices == ()
    assert caught.value.exit_code == device_lock.EXIT_DEVICES
    assert DeviceLocks(tmp_path / "locks").take("GPU-0") is None


def own(folder):
    return folder / f"yarn-accel-devices-{os.geteuid()}"


@pytest.mark.parametrize("umask", [0o077, 0])
def test_only_their_user_writes_locks_and_everybody_sees_them(tmp_path, umask):
    old = os.umask(umask)
    try:
        DeviceLocks(tmp_path / "locks").take("GPU-1")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "locks").stat().st_mode) == 0o1777
    assert stat.S_IMODE(own(tmp_path / "locks").stat().st_mode) == 0o755
    assert stat.S_IMODE((own(tmp_path / "locks") / "GPU-1.lock").stat().st_mode) == 0o644


def test_a_folder_that_others_can_write_is_refused(tmp_path):
    own(tmp_path).mkdir()
    own(tmp_path).chmod(0o777)
    with pytest.raises(StartupError, match="other users can write the folder"):
        DeviceLocks(tmp_path).take("GPU-1")


@pytest.fixture
def victim(tmp_path):
    """A file that nobody may touch, in a folder of its own."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "victim").write_text("precious")
    yield tmp_path / "elsewhere" / "victim"
    assert [path.read_text() for path in (tmp_path / "elsewhere").iterdir()] == ["precious"]


@pytest.mark.parametrize(
    ("forge", "complaint"),
    [
        (lambda folder, victim: folder.symlink_to(victim.parent), "devices_dir"),
        (lambda folder, victim: folder.mkdir() or (folder / "GPU-1.lock").symlink_to(victim), "devices_dir"),
        (lambda folder, _: folder.mkdir() or os.mkfifo(folder / "GPU-1.lock"), "not a regular file"),
    ],
    ids=["a link for the folder", "a link for the lock", "a pipe for the lock"],
)
def test_nobody_leads_us_elsewhere_or_stops_us(tmp_path, victim, forge, complaint):
    (tmp_path / "locks").mkdir()
    forge(own(tmp_path / "locks"), victim)
    with pytest.raises(StartupError, match=complaint):
        DeviceLocks(tmp_path / "locks").take("GPU-1")


def as_another_user(work):
    """The result of `work` in a process of user 65534; 99: it failed."""
    child = os.fork()
    if not child:
        outcome = 99
        with contextlib.suppress(BaseException):
            os.setuid(65534)
            outcome = work()
        os._exit(outcome)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture
def shared_folder():
    """A folder that every user can enter, which pytest's own are not."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder, "locks")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_another_user_takes_a_device_we_gave_back_but_not_one_we_hold(shared_folder):
    ours = DeviceLocks(shared_folder)
    ours.take_some(["GPU-1", "GPU-2"])
    ours.release("GPU-1")

    def take():
        locks = DeviceLocks(shared_folder)
        return 2 * (locks.take("GPU-1") is None) + (locks.take("GPU-2") is None)

    assert as_another_user(take) == 2
    assert ours.take("GPU-1") is None, "that process has ended"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_folder_or_a_lock_that_another_user_made_in_our_name_counts_for_nothing(
    shared_folder,
):
    DeviceLocks(shared_folder).take("GPU-0")
    stranger = shared_folder / "yarn-accel-devices-12345"

    def forge():
        stranger.mkdir()
        (stranger / "GPU-1.lock").touch()
        return 0

    assert as_another_user(forge) == 0
    with (stranger / "GPU-1.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert DeviceLocks(shared_folder).take("GPU-1") is None
    own(shared_folder).rename(shared_folder / "away")
    assert as_another_user(lambda: (shared_folder / "yarn-accel-devices-0").mkdir() or 0) == 0
    with pytest.raises(StartupError, match="the folder belongs to user 65534"):
        DeviceLocks(shared_folder).take("GPU-2")


def test_a_name_cannot_leave_the_folder(tmp_path):
    DeviceLocks(tmp_path / "locks").take("../x/y")
    assert [path.name for path in own(tmp_path / "locks").iterdir()] == [".._x_y.lock"]


@pytest.mark.parametrize("text", ["", "[]", '{"pid": 1}', "\x1b[31m{"])
def test_nonsense_in_a_held_file_is_not_repeated(tmp_path, text):
    first = DeviceLocks(tmp_path)
    first.take("0")
    (own(tmp_path) / "0.lock").write_text(text)
    assert DeviceLocks(tmp_path).take("0").container == "somebody unknown"


@pytest.fixture
def two_gpus(monkeypatch):
    gpus = [Gpu(f"cuda:{i}", uuid, i, parent_uuid=uuid) for i, uuid in enumerate(("GPU-a", "GPU-b"))]
    monkeypatch.setattr(device_lock, "list_gpus", lambda: gpus)


def test_cuda_sees_what_was_taken(two_gpus, tmp_path):
    environ = {"ACCEL_DEVICES": "all", "ACCEL_DEVICES_DIR": str(tmp_path), "CONTAINER_ID": "container_1"}
    locks = take_from_environment(environ)
    assert environ["CUDA_VISIBLE_DEVICES"] == ",".join(locks.devices) == "GPU-a,GPU-b"
    with pytest.raises(DevicesTaken, match="GPU-a is held by container_1"):
        take_from_environment({**environ, "ACCEL_DEVICES": "1"})


def test_what_the_administrator_hides_stays_hidden(two_gpus, tmp_path):
    environ = {"ACCEL_DEVICES": "all", "ACCEL_DEVICES_DIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": "1"}
    assert take_from_environment(environ).devices == ("GPU-b",)
    assert environ["CUDA_VISIBLE_DEVICES"] == "GPU-b"


def test_a_server_computes_on_what_it_locked(eight_gpus, tmp_path, monkeypatch):
    monkeypatch.setattr(devices.importlib.util, "find_spec", lambda name: object())
    asked = {"ACCEL_DEVICES_DIR": str(tmp_path)}
    first, second = {**asked, "ACCEL_DEVICES": "3"}, {**asked, "ACCEL_DEVICES": "all"}
    first["CUDA_VISIBLE_DEVICES"] = "GPU-4,2,GPU-2,5,7"
    first_locks = take_from_environment(first)
    assert first_locks is not None
    config = PipelineConfig(master_secret_file=Path("/none"), cpu_workers_per_gpu_worker=0)
    assert [device.name for device in find_devices(config, first)] == ["cuda:4", "cuda:5:0", "cuda:5:2"]
    with pytest.raises(DevicesTaken, match=r"MIG-50000002-.* is held by"):
        take_from_environment({**second, "NVIDIA_VISIBLE_DEVICES": "GPU-5"})
    second["CUDA_VISIBLE_DEVICES"] = "0,3,1"
    second_locks = take_from_environment(second)
    assert second_locks is not None
    assert [device.name for device in find_devices(config, second)] == ["cuda:0", "cuda:1"]


def test_all_of_none_is_fine_and_one_of_none_is_not(monkeypatch, tmp_path):
    monkeypatch.setattr(device_lock, "list_gpus", list)
    environ = {"ACCEL_DEVICES": "all", "ACCEL_DEVICES_DIR": str(tmp_path)}
    assert take_from_environment(environ) is not None
    with pytest.raises(DevicesTaken, match="1 devices wanted, 0 here"):
        take_from_environment({**environ, "ACCEL_DEVICES": "1"})


def test_nothing_is_taken_unasked_and_nonsense_is_refused():
    assert take_from_environment({}) is None
    with pytest.raises(ConfigError, match="ACCEL_DEVICES=some"):
        take_from_environment({"ACCEL_DEVICES": "some"})
