"""One lock per device and node, where YARN does not assign GPUs itself.

A lock is an open file in a folder that the whole node shares, locked by the process that serves the device.
The kernel releases it however that process ends.  The file's text names the holder and counts only while the
lock is held.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import asdict, dataclass
from pathlib import Path

from yarn_accel.errors import ConfigError, StartupError

__all__ = [
    "DEFAULT_FOLDER",
    "EXIT_DEVICES",
    "DeviceLocks",
    "DevicesTaken",
    "Holder",
    "gpu_uuids",
    "take_from_environment",
]

#: Exit code of a container whose devices somebody else holds; beside the bootstrap's.
EXIT_DEVICES = 116
DEFAULT_FOLDER = Path("/var/tmp/yarn-accel-devices")
#: In the container's environment: ``all``, or how many devices to take; absent or empty: none.
VARIABLE = "ACCEL_DEVICES"
FOLDER_VARIABLE = "ACCEL_DEVICES_DIR"
_MAX_TEXT_BYTES = 4096
_OPEN = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class DevicesTaken(StartupError):
    """Other processes hold the devices; the message names them."""

    exit_code = EXIT_DEVICES
    transient = True


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a device, as it describes itself."""

    pid: int
    user: int
    container: str
    since: str

    def __str__(self) -> str:
        return f"{self.container or 'process'} (pid {self.pid}, uid {self.user}, since {self.since})"


class DeviceLocks:
    """The locks that this process holds, until `release` or its end.

    Args:
        folder: the same for every process of the node; made so that every user can add files.
        container: how we name ourselves to those who come later.
    """

    def __init__(self, folder: Path = DEFAULT_FOLDER, container: str = "") -> None:
        self._folder = folder
        self._container = container
        self._held: dict[str, int] = {}

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices held, in the order they were taken."""
        return tuple(self._held)

    def take(self, device: str) -> Holder | None:
        """Take one device; returns None when it is ours, else who holds it.

        Raises:
            StartupError: the folder cannot be used.
        """
        if device in self._held:
            return None
        try:
            lock = self._open(device)
        except OSError as error:
            raise StartupError(
                f"{self._path(device)}: {error.strerror}", cure="set `devices_dir:` in the launch settings"
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _read(lock)
            os.close(lock)
            return holder
        _write(lock, self._container)
        self._held[device] = lock
        return None

    def take_some(self, devices: Iterable[str], n_wanted: int | None = None) -> tuple[str, ...]:
        """Take `n_wanted` of the devices, the first free ones; None: all of them.

        Raises:
            DevicesTaken: there are fewer free ones; none is taken then.
        """
        wanted = list(devices)
        taken: list[str] = []
        holders: list[str] = []
        for device in wanted:
            if n_wanted is not None and len(taken) == n_wanted:
                break
            holder = self.take(device)
            if holder is None:
                taken.append(device)
            else:
                holders.append(f"{device} is held by {holder}")
        if len(taken) < (len(wanted) if n_wanted is None else n_wanted):
            self.release(*taken)
            raise DevicesTaken(
                f"{n_wanted or len(wanted)} devices wanted, {len(wanted)} here, {len(taken)} free"
                + "".join(f"; {text}" for text in holders),
                cure="end the holder, or ask for fewer devices",
            )
        return tuple(taken)

    def release(self, *devices: str) -> None:
        """Give devices back; all of them when none is named."""
        for device in devices or self.devices:
            lock = self._held.pop(device, None)
            if lock is not None:
                os.close(lock)

    def _path(self, device: str) -> Path:
        return self._folder / (re.sub(r"[^A-Za-z0-9._-]", "_", device) + ".lock")

    def _open(self, device: str) -> int:
        """Open the device's file, or make it; links are not followed."""
        with contextlib.suppress(FileExistsError):
            self._folder.mkdir()
            self._folder.chmod(0o1777)
        path = self._path(device)
        # Opening an existing file of somebody else with O_CREAT is refused in such a folder
        # (fs.protected_regular), so the two cases are asked for apart.
        try:
            lock = os.open(path, _OPEN)
        except FileNotFoundError:
            try:
                lock = os.open(path, _OPEN | os.O_CREAT | os.O_EXCL)
                os.fchmod(lock, 0o666)
            except FileExistsError:
                lock = os.open(path, _OPEN)
        if not stat.S_ISREG(os.fstat(lock).st_mode):
            os.close(lock)
            raise OSError(errno.EPERM, "not a regular file")
        return lock


def _write(lock: int, container: str) -> None:
    since = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    text = json.dumps(asdict(Holder(os.getpid(), os.geteuid(), container, since)))
    os.ftruncate(lock, 0)
    os.pwrite(lock, text.encode(), 0)


def _read(lock: int) -> Holder:
    try:
        values = json.loads(os.pread(lock, _MAX_TEXT_BYTES, 0))
        container = re.sub(r"[^\w.:-]", "?", str(values["container"]))[:100]
        return Holder(int(values["pid"]), int(values["user"]), container, str(values["since"])[:40])
    except (OSError, ValueError, KeyError, TypeError):
        # It has the lock and has not written yet, or is not one of us.
        return Holder(0, 0, "somebody unknown", "an unknown time")


def gpu_uuids() -> tuple[str, ...]:
    """The GPUs of this machine as ``CUDA_VISIBLE_DEVICES`` takes them; empty without a driver."""
    try:
        import pynvml
    except ImportError:
        return ()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return tuple(str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles)
    except pynvml.NVMLError:
        return ()
    finally:
        pynvml.nvmlShutdown()


def take_from_environment(environ: MutableMapping[str, str]) -> DeviceLocks | None:
    """Lock what ``ACCEL_DEVICES`` asks for and hide all other GPUs from CUDA; keep the result until the end.

    ``all`` locks every GPU of the node. A node without any is no error: its CPU serves.

    Raises:
        ConfigError: the variable is neither ``all`` nor a number.
        DevicesTaken: there are not as many free ones.
    """
    asked = environ.get(VARIABLE, "")
    if not asked:
        return None
    if asked != "all" and not asked.isdecimal():
        raise ConfigError(f"{VARIABLE}={asked}: neither `all` nor a number of devices")
    folder = Path(environ.get(FOLDER_VARIABLE) or DEFAULT_FOLDER)
    locks = DeviceLocks(folder, environ.get("CONTAINER_ID", ""))
    taken = locks.take_some(_visible(environ), None if asked == "all" else int(asked))
    environ["CUDA_VISIBLE_DEVICES"] = ",".join(taken)
    return locks


def _visible(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The GPUs that the administrator does not hide by UUID or index."""
    uuids = gpu_uuids()
    shown = environ.get("CUDA_VISIBLE_DEVICES")
    if shown is None:
        return uuids
    names = [name.strip() for name in shown.split(",")]
    return tuple(uuid for index, uuid in enumerate(uuids) if uuid in names or str(index) in names)
