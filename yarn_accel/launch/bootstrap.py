"""The script that starts a container: it unpacks our Python environment once per node, then runs a command.

``python3 -I -S accel-start.py accel-environment-DIGEST.zip WORD...`` becomes ``python3 -m
yarn_accel.launch.container_entry WORD...`` with the environment on ``PYTHONPATH``.  The script travels alone,
so it imports the standard library only.  Any Python from 3.6 on can parse it, so that an old interpreter
says what is wrong.

The shared folder of a node holds, for each environment:

* ``DIGEST/``, which is complete when it exists: it is unpacked under another name, then renamed.  Its mark
  names the boot of the machine: after a power failure its files may be empty, so it is unpacked again;
* ``DIGEST.lock``, locked exclusively to unpack or remove, and shared to run from it.  The lock belongs to an
  open file that survives ``exec``: the kernel releases it however the process ends, so a ``kill -9`` leaves
  only ``DIGEST.tmp``, which the next process removes.

A process that unpacks also removes the environments that nobody runs from, except the one used last.
"""

import contextlib
import errno
import fcntl
import json
import os
import re
import stat
import sys
import time
from pathlib import Path

# Known to type checkers; `typing` itself is not loaded, it would cost a fifth of the whole start.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import zipfile
    from collections.abc import Iterable, Mapping

# Not used by bash, by a signal (128 + n) or by Hadoop's container-executor.
EXIT_PYTHON = 111
EXIT_GLIBC = 112
EXIT_PLATFORM = 113
EXIT_DISK = 114
EXIT_DAMAGED = 115

#: The requirements of the environment, as JSON inside it.
REQUIREMENT = "accel-requirement.json"
_MARK = "accel-complete"
_PIECE_BYTES = 1 << 20
#: Space that stays free on a disk after unpacking.
_SPARE_BYTES = 64 << 20
#: Longer than any node needs to unpack; after that, the error names the holder of the lock.
_PATIENCE_S = 300.0
_POLL_S = 0.02
#: Environments that nobody runs from and that are kept all the same.
_KEEP_UNUSED = 1
_MAX_THREADS = 4
_NAME = re.compile(r"accel-environment-([0-9a-f]{16,64})\.zip$")
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
#: Set when another interpreter was tried already.
_TRIED = "ACCEL_PYTHON_TRIED"
#: Without compiled modules beside the sources every container of the node would compile them again, which
#: costs seconds and 15 MiB each.
_DROPPED = frozenset({"PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", _TRIED})


class StartRefused(Exception):
    """This node cannot run the environment.

    Args:
        exit_code: one of ``EXIT_*``; the ApplicationMaster tells them apart.
        message: what is missing on which node, and the cure.
    """

    def __init__(self, exit_code: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def main(words: "list[str]") -> None:
    """Replace this process by the command; exit with a code of its own when this node cannot run it."""
    try:
        archive, *command = words
        folder, lock = provide(archive, candidate_roots(os.environ))
        os.set_inheritable(lock, True)
        entry = [sys.executable, "-m", "yarn_accel.launch.container_entry", *command]
        _become(entry, _environment(str(folder)))
    except StartRefused as error:
        sys.stderr.write(f"accel-start: {os.uname().nodename}: {error}\n")
        sys.exit(error.exit_code)


def _environment(folder: str) -> "dict[str, str]":
    taken = {key: value for key, value in os.environ.items() if key not in _DROPPED}
    return dict(taken, PYTHONPATH=folder, PYTHONNOUSERSITE="1", PYTHONSAFEPATH="1", ACCEL_ENVIRONMENT=folder)


def _become(words: "list[str]", environment: "dict[str, str]") -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(words[0], words, environment)


# The facts of a node, and the requirements of an environment


def node_facts() -> "dict[str, str]":
    """The facts of this interpreter and this machine, by the names used in a requirement."""
    import importlib.machinery

    try:
        glibc = (os.confstr("CS_GNU_LIBC_VERSION") or "").replace("glibc", "").strip()
    except (ValueError, OSError):
        glibc = ""
    return {
        "python": "{}.{}".format(*sys.version_info[:2]),
        "extension_suffix": importlib.machinery.EXTENSION_SUFFIXES[0],
        "machine": os.uname().machine,
        "glibc": glibc,
    }


def check_node(need: "dict[str, str]", have: "dict[str, str]") -> None:
    """Compare what the environment needs with what a node has; facts that are absent are not compared.

    Raises:
        StartRefused: names both sides and the cure.
    """
    python, glibc = have.get("python"), have.get("glibc")
    # A node may tell of all its interpreters, joined by `_`: the one that is needed is found there.
    if python is not None and need["python"] not in python.split("_"):
        raise StartRefused(
            EXIT_PYTHON,
            "python3 is {}, the environment was packed with Python {}: install python{} on this node, name "
            "it with `python:` in the launch settings, or pack with a Python {}".format(
                python, need["python"], need["python"], python
            ),
        )
    for fact in ("machine", "extension_suffix"):
        if have.get(fact, need[fact]) != need[fact]:
            raise StartRefused(
                EXIT_PLATFORM,
                "{} is {}, the environment was packed for {}: pack it on a machine like this one".format(
                    fact.replace("_", " "), have[fact], need[fact]
                ),
            )
    if glibc is not None and _version(glibc) < _version(need["glibc"]):
        raise StartRefused(
            EXIT_GLIBC,
            "glibc is {}, the environment needs {}: pack it on a machine with the oldest system of the "
            "cluster, or leave this node out by a node label".format(
                glibc or "absent (another C library)", need["glibc"]
            ),
        )


def _version(text: str) -> "tuple[int, ...]":
    return tuple(int(number) for number in re.findall(r"\d+", text))


def _fit_or_switch(need: "dict[str, str]") -> None:
    """Check this node; where only the default interpreter is wrong, continue with the right one.

    Raises:
        StartRefused: there is no interpreter that fits.
    """
    have = node_facts()
    if have["python"] != need["python"] and _TRIED not in os.environ:
        import shutil

        other = shutil.which("python" + need["python"])
        if other:
            script = [other, "-I", "-S", str(Path(sys.argv[0]).resolve()), *sys.argv[1:]]
            _become(script, dict(os.environ, **{_TRIED: "1"}))
    check_node(need, have)


# The shared folder


def candidate_roots(environ: "Mapping[str, str]") -> "list[Path]":
    """Where the environment may be unpacked, best first.

    The configured folder alone if there is one; else the NodeManager's folders of the user (deleted with the
    node's disks), else a folder of our own for temporary files.
    """
    if environ.get("ACCEL_CACHE_DIR"):
        return [Path(environ["ACCEL_CACHE_DIR"])]
    folders = [name for name in environ.get("LOCAL_USER_DIRS", "").split(",") if name]
    return [*(Path(name, "yarn-accel") for name in folders), Path(f"/var/tmp/yarn-accel-{os.geteuid()}")]


def provide(archive: str, roots: "list[Path]") -> "tuple[Path, int]":
    """The folder of an environment, unpacked if needed, and the open lock that prevents its removal.

    Raises:
        StartRefused: this node does not fit, no folder has enough space, or the archive is damaged.
    """
    found = _NAME.search(archive)
    if not found:
        raise StartRefused(EXIT_DAMAGED, f"{archive}: not named like an environment")
    digest = found.group(1)
    troubles = []
    for root in sorted(roots, key=lambda root: not (root / digest).is_dir()):
        try:
            _own_folder(root)
            return _provide_in(root, digest, archive)
        except OSError as error:
            troubles.append(f"{root}: {error.strerror or error}")
    raise StartRefused(
        EXIT_DISK,
        "no folder to unpack the environment into: {}: free disk space, or name a folder with `cache_dir:` "
        "in the launch settings".format("; ".join(troubles)),
    )


def _own_folder(root: Path) -> None:
    """Make the folder so that nobody else can write in it: code is loaded from there."""
    with contextlib.suppress(FileExistsError):
        root.parent.mkdir(parents=True, exist_ok=True)
        root.mkdir(0o700)
    status = root.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise OSError(errno.EPERM, "not a folder that only we can write")
    if os.statvfs(root).f_flag & os.ST_NOEXEC:
        raise OSError(errno.EPERM, "its file system is mounted noexec, libraries cannot be loaded from it")


def _provide_in(root: Path, digest: str, archive: str) -> "tuple[Path, int]":
    folder = root / digest
    lock_path = root / (digest + ".lock")
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        # Looked at again before each try: who waits for the exclusive lock would wait for as long as somebody
        # runs from what was unpacked meanwhile.
        if _is_complete(folder):
            lock = _locked(lock_path, fcntl.LOCK_SH)
            if lock is not None and _is_usable(folder, lock):
                return folder, lock
        else:
            lock = _locked(lock_path, fcntl.LOCK_EX)
            if lock is not None:
                _fill_if_absent(root, digest, archive, lock)
        if lock is None:
            if time.monotonic() >= deadline:
                raise OSError(errno.ETIMEDOUT, f"process {_holder(lock_path)} has not finished unpacking")
            time.sleep(_POLL_S)


def _is_usable(folder: Path, lock: int) -> bool:
    """Whether the environment exists, now that its lock prevents its removal; else the lock is closed.

    Raises:
        StartRefused: this node does not fit.
    """
    is_usable = False
    try:
        if _is_complete(folder):
            _fit_or_switch(json.loads((folder / REQUIREMENT).read_text(encoding="utf-8")))
            os.utime(lock)
            is_usable = True
    finally:
        if not is_usable:
            os.close(lock)
    return is_usable


def _fill_if_absent(root: Path, digest: str, archive: str, lock: int) -> None:
    try:
        if not _is_complete(root / digest):
            os.ftruncate(lock, 0)
            os.pwrite(lock, str(os.getpid()).encode(), 0)
            _fill(root, digest, archive)
    finally:
        os.close(lock)


def _locked(path: Path, kind: int) -> "int | None":
    """The lock file, open and locked; None when somebody holds it."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
        # It may have been removed, with its environment, between our two calls.
        if os.fstat(lock).st_nlink:
            return lock
    except BlockingIOError:
        pass
    os.close(lock)
    return None


def _holder(path: Path) -> str:
    try:
        return path.read_bytes()[:20].decode("ascii", "replace")
    except OSError:
        return "unknown"


def _is_complete(folder: Path) -> bool:
    try:
        return (folder / _MARK).read_text(encoding="ascii") == _boot()
    except OSError:
        return False


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


def _fill(root: Path, digest: str, archive: str) -> None:
    """Unpack one environment under its exclusive lock.  A failure leaves nothing behind."""
    folder, temporary = root / digest, root / (digest + ".tmp")
    _remove(folder, temporary)
    _sweep(root, digest, _KEEP_UNUSED)
    try:
        try:
            _unpack(archive, temporary, digest)
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            _remove(temporary)
            _sweep(root, digest, 0)
            _unpack(archive, temporary, digest)
        (temporary / _MARK).write_text(_boot(), encoding="ascii")
        temporary.rename(folder)
    except BaseException:
        _remove(temporary)
        raise


def _remove(*folders: Path) -> None:
    import shutil

    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(root: Path, digest: str, n_keep: int) -> None:
    """Remove other environments that nobody runs from, except the `n_keep` used last."""
    ages = {}
    for path in root.glob("*.lock"):
        with contextlib.suppress(OSError):
            ages[path] = path.stat().st_mtime
    ages.pop(root / (digest + ".lock"), None)
    for path in sorted(ages, key=lambda path: -ages[path])[n_keep:]:
        with contextlib.suppress(OSError):
            lock = _locked(path, fcntl.LOCK_EX)
            if lock is not None:
                _remove(path.with_suffix(""), path.with_suffix(".tmp"))
                path.unlink()
                os.close(lock)


# Unpacking


def content_digest(entries: "dict[str, tuple[str, bool]]") -> str:
    """The digest that names an environment: of its files' names, digests and executable bits.

    Args:
        entries: name -> (SHA-256 of the content in hex, is executable).
    """
    import hashlib

    lines = ["{} {:d} {}\n".format(*entries[name], name) for name in sorted(entries)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:32]


def _unpack(archive: str, target: Path, digest: str) -> None:
    """Unpack the archive into a new folder and compare what came out with its digest.

    Raises:
        OSError: the disk is full or fails.
        StartRefused: the node does not fit, or the archive is damaged.
    """
    import zipfile
    import zlib

    if not os.access(archive, os.R_OK):
        raise StartRefused(
            EXIT_DAMAGED, f"{archive}: cannot be read here: it must be a resource of the container"
        )
    try:
        with zipfile.ZipFile(archive) as packed:
            _fit_or_switch(json.loads(packed.read(REQUIREMENT).decode()))
            entries = packed.infolist()
            _check_names(entry.filename for entry in entries)
            _check_space(target.parent, sum(entry.file_size for entry in entries))
            target.mkdir(0o700)
            for folder in {(target / entry.filename).parent for entry in entries}:
                folder.mkdir(parents=True, exist_ok=True)
            came = _write_all(packed, target)
    except (zipfile.BadZipFile, zlib.error, KeyError, ValueError, EOFError) as error:
        raise StartRefused(EXIT_DAMAGED, f"{archive}: damaged: {error}: upload it again") from None
    if content_digest(came) != digest:
        raise StartRefused(EXIT_DAMAGED, f"{archive}: its content is not what its name says: upload it again")


def _check_names(names: "Iterable[str]") -> None:
    for name in names:
        if name.startswith("/") or ".." in name.split("/") or "\\" in name or name.endswith("/"):
            raise ValueError(f"{name!r} is no name of a file below the folder")


def _check_space(root: Path, n_bytes: int) -> None:
    disk = os.statvfs(root)
    free = disk.f_bavail * disk.f_frsize
    if free < n_bytes + _SPARE_BYTES:
        text = f"{free >> 20} MiB free, {(n_bytes + _SPARE_BYTES) >> 20} MiB needed"
        raise OSError(errno.ENOSPC, text)


def _write_all(packed: "zipfile.ZipFile", target: Path) -> "dict[str, tuple[str, bool]]":
    """Write every file, the largest first, by a few threads (inflating and hashing free the interpreter)."""
    from concurrent.futures import ThreadPoolExecutor

    entries = sorted(packed.infolist(), key=lambda entry: -entry.file_size)
    n_threads = min(_MAX_THREADS, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(n_threads) as threads:
        try:
            return dict(threads.map(lambda entry: _write(packed, entry, target), entries))
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise


def _write(
    packed: "zipfile.ZipFile", entry: "zipfile.ZipInfo", target: Path
) -> "tuple[str, tuple[str, bool]]":
    import hashlib

    is_executable = bool(entry.external_attr >> 16 & 0o100)
    digest = hashlib.sha256()
    path = target / entry.filename
    with path.open("xb", buffering=0) as sink, packed.open(entry) as source:
        piece = source.read(_PIECE_BYTES)
        while piece:
            digest.update(piece)
            rest = memoryview(piece)
            while rest:
                rest = rest[sink.write(rest) :]
            piece = source.read(_PIECE_BYTES)
    if is_executable:
        path.chmod(0o755)
    return entry.filename, (digest.hexdigest(), is_executable)


if __name__ == "__main__":
    main(sys.argv[1:])
