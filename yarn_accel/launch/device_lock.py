"""One lock per device and node: of the GPUs that a server sees, it uses those that it locked.

A lock is an open file, locked by the process that serves the device; the kernel releases it however that
process ends.  The file's text names the holder and counts only while the lock is held.  Each user of the node
has a folder of locks that nobody else can write; everybody can see there which of them are held.
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
from collections.abc import Iterable, MutableMapping
from dataclasses import asdict, dataclass
from pathlib import Path

from yarn_accel.adapters.nvml import CUDA_VARIABLE, list_gpus, visible_gpus
from yarn_accel.errors import ConfigError, StartupError

#: Exit code of a container whose devices somebody else holds; beside the bootstrap's.
EXIT_DEVICES = 116
DEFAULT_FOLDER = Path("/var/tmp")
#: Below it, with the number of the user.
_OF_USER = "yarn-accel-devices-"
#: In the container's environment: ``all``, or how many devices to take; absent or empty: none.
VARIABLE = "ACCEL_DEVICES"
FOLDER_VARIABLE = "ACCEL_DEVICES_DIR"
_MAX_TEXT_BYTES = 4096
_OPEN = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_LOOK = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


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
        folder: the same for every process of the node; every user can add a folder to it.
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
                f"{self._own / _file_of(device)}: {error.strerror}",
                cure="set `devices_dir:` in the launch settings",
            ) from None
        # Ours first, then the others': of two users at a time perhaps none gets it, and never both.
        holder = _lock(lock, fcntl.LOCK_EX) or self._other_user(device)
        if holder is not None:
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

    @property
    def _own(self) -> Path:
        return self._folder / f"{_OF_USER}{os.geteuid()}"

    def _open(self, device: str) -> int:
        """Open the device's file in our own folder, or make both; links are not followed."""
        with contextlib.suppress(FileExistsError):
            self._folder.mkdir()
            self._folder.chmod(0o1777)
        with contextlib.suppress(FileExistsError):
            self._own.mkdir(0o700)
        folder = os.open(self._own, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            _check_ours(os.fstat(folder))
            os.fchmod(folder, 0o755)
            lock = os.open(_file_of(device), _OPEN | os.O_CREAT, 0o600, dir_fd=folder)
        finally:
            os.close(folder)
        if not stat.S_ISREG(os.fstat(lock).st_mode):
            os.close(lock)
            raise OSError(errno.EPERM, "not a regular file")
        os.fchmod(lock, 0o644)
        return lock

    def _other_user(self, device: str) -> Holder | None:
        """Another user who holds the device; only files of the user whom the folder names count."""
        for folder in sorted(self._folder.glob(f"{_OF_USER}*")):
            if folder == self._own:
                continue
            try:
                lock = os.open(folder / _file_of(device), _LOOK)
            except OSError:
                continue
            try:
                found = os.fstat(lock)
                is_theirs = stat.S_ISREG(found.st_mode) and folder.name == f"{_OF_USER}{found.st_uid}"
                holder = _lock(lock, fcntl.LOCK_SH) if is_theirs else None
            finally:
                os.close(lock)
            if holder is not None:
                return holder
        return None


def _file_of(device: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", device) + ".lock"


def _check_ours(folder: os.stat_result) -> None:
    if folder.st_uid != os.geteuid():
        raise OSError(errno.EPERM, f"the folder belongs to user {folder.st_uid}")
    if folder.st_mode & 0o022:
        raise OSError(errno.EPERM, "other users can write the folder")


def _lock(lock: int, kind: int) -> Holder | None:
    """Lock the file; returns None when that is done, else who holds it."""
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read(lock)
    return None


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


def take_from_environment(environ: MutableMapping[str, str]) -> DeviceLocks | None:
    """Lock what ``ACCEL_DEVICES`` asks for and hide all other GPUs from CUDA; keep the result until the end.

    ``all`` locks every GPU, and every part of one that MIG divides, that the environment shows and that can
    be used. A node without any is no error: its CPU serves.

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
    visible = [gpu.uuid for gpu in visible_gpus(list_gpus(), environ) if not gpu.fault]
    taken = locks.take_some(visible, None if asked == "all" else int(asked))
    environ[CUDA_VARIABLE] = ",".join(taken)
    return locks
