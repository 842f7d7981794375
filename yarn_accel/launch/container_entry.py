"""The first code in our containers: it rotates logs, delivers secrets, locks devices, then runs the command.

``python -m yarn_accel.launch.container_entry WORD...`` is ``yarn-accel WORD...`` for a process that a
NodeManager runs for weeks: YARN never rotates the files that it opens for it.  The words ``launch serve
FILE`` exist here alone: they start the pipeline server of an accelerator node, its first worker process
before anything else.

The secret is in no command line, environment variable or resource.  YARN's credentials bring it, and it
becomes a file in the container's own folder, which YARN deletes with the container.  A small file of one
application travels in the credentials, too, where start time matters: as a resource it needs a localizer
process on the node, which takes longer than everything else before the master starts.

A log file is rotated while its processes write to it: the content is copied to ``stdout.1`` and the file is
truncated.  Every writer appends to the open file, worker processes and native libraries included, so none of
them has to know.  Bytes written between the copy and the truncation, some microseconds, are lost.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import runpy
import stat
import sys
import threading
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yarn_accel.client.token_file import TOKEN_FILE_VARIABLE, read_secrets
from yarn_accel.errors import AccelError, ConfigError, RemoteProtocolError, StartupError
from yarn_accel.launch.device_lock import take_from_environment
from yarn_accel.launch.token_follower import follow
from yarn_accel.pipeline.workers.launching import Launched, launch

if TYPE_CHECKING:
    from yarn_accel.pipeline.config import PipelineConfig

#: The words before the file of a server's settings.
SERVE = ("launch", "serve")
#: The alias of the site's master secret (raw bytes) among a container's credentials.
MASTER_ALIAS = "yarn_accel.master"
#: Prefix of the name of a file among a container's credentials.
FILE_ALIAS = "yarn-accel.file/"
#: The value of `master_secret_file` in a container's settings, relative to its folder.
MASTER_SECRET_FILE = "accel-master-secret"
#: The settings in effect, in the container's folder; JSON is YAML, so people's commands read it, too.
NODE_SETTINGS_FILE = "pipeline-node.yaml"
#: Settings that the node makes, unless the site does.
NODE_KEYS = frozenset({"name", "listen_host", "unix_path", "http_port", "state_file"})
_SOCKET_NAME = "server.sock"
#: Any port, on the loopback: the agent asks there for health and figures.
_FREE_PORT = 0
#: Log files are rotated at this length, and so many old ones stay.
_MAX_LOG_BYTES = 16 << 20
KEPT_LOGS = 3
_INTERVAL_S = 5.0
_PIECE_BYTES = 1 << 20


def main() -> None:
    """Run the command of ``sys.argv`` and exit with its code."""
    rotate_output()
    try:
        deliver(os.environ, Path())
        follow(os.environ)
        # The locks end with this process: nothing gives them back before.
        take_from_environment(os.environ)
        if sys.argv[1:3] == list(SERVE):
            sys.exit(_serve(Path(sys.argv[3])))
    except AccelError as error:
        sys.stderr.write(f"yarn-accel: {error}\n")
        sys.exit(error.exit_code)
    sys.argv[0] = "yarn-accel"
    runpy.run_module("yarn_accel", run_name="__main__", alter_sys=True)


def _serve(settings_file: Path) -> int:
    # Imports make many objects that stay: a search for garbage among them takes an eighth of the start.
    # `pipeline.service` enables it again when the server is ready.
    gc.disable()
    document = _read(settings_file)
    keep_kernels(os.environ, Path())
    worker = _first_worker(settings_file, document)
    # Loaded only now, while the worker loads its libraries, which takes longest.
    from yarn_accel.node.paths import remove_abandoned
    from yarn_accel.pipeline.serve import serve

    config = node_config(document, os.environ)
    status = serve(config, worker)
    # The agent or the server, whichever ends last, removes their folder.
    remove_abandoned(Path(config.state_file).parent, 0.0)
    return status


def keep_kernels(environ: MutableMapping[str, str], folder: Path) -> None:
    """Have the server's workers keep compiled kernels in the container's folder, unless the site says where.

    CuPy's own choice is the home folder, which containers of YARN cannot write.
    """
    environ.setdefault("CUPY_CACHE_DIR", str(folder.absolute() / "cupy-kernels"))


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (ValueError, TypeError):
        raise _foreign(path) from None


def _first_worker(path: Path, document: dict[str, Any]) -> Launched:
    try:
        server = document["server"]
        return launch(int(server["cores_per_worker"]), [str(each) for each in server["extra_operations"]])
    except (KeyError, TypeError, ValueError):
        raise _foreign(path) from None


def _foreign(path: Path) -> ConfigError:
    return ConfigError(f"{path}: not what `yarn-accel start` writes")


def deliver(environ: Mapping[str, str], folder: Path) -> tuple[str, ...]:
    """Write the secret (in hex) and the files of the credentials into a folder; returns their names.

    Raises:
        StartupError: the credentials cannot be read, or a file cannot be written.
    """
    place = environ.get(TOKEN_FILE_VARIABLE)
    if not place or "CONTAINER_ID" not in environ:
        return ()
    try:
        given = read_secrets(Path(place).read_bytes())
        files = {
            alias.removeprefix(FILE_ALIAS): content
            for alias, content in given.items()
            if alias.startswith(FILE_ALIAS)
        }
        if MASTER_ALIAS in given:
            files[MASTER_SECRET_FILE] = given[MASTER_ALIAS].hex().encode() + b"\n"
        for name, content in files.items():
            _write(folder, name, content)
    except OSError as error:
        raise StartupError(f"{error.filename or place}: {error.strerror}") from None
    except RemoteProtocolError as error:
        raise StartupError(f"{place}: {error}") from None
    return tuple(files)


def _write(folder: Path, name: str, content: bytes) -> None:
    if Path(name).name != name or name in ("", ".."):
        raise StartupError(f"{name!r} is not the name of a file in the container's folder")
    temporary = folder / f".{name}.{os.getpid()}"
    # A retry of the container finds the file of its predecessor: it is replaced.
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
        stream.write(content)
    temporary.replace(folder / name)


def node_config(document: Mapping[str, Any], environ: Mapping[str, str]) -> PipelineConfig:
    """The settings of this node's server; also written to a file, for people.

    Args:
        document: as `staging.server_document` made it.
        environ: the container's.

    Raises:
        ConfigError: the document is wrong, or this is no container of YARN.
        StartupError: the folder of agent and server, or the file for people, cannot be written.
    """
    from yarn_accel.node.config import load_config
    from yarn_accel.node.paths import make_run_dir
    from yarn_accel.pipeline.config import parse_config

    node, container = environ.get("NM_HOST", ""), environ.get("CONTAINER_ID", "")
    if not node or not container:
        raise ConfigError(
            "NM_HOST or CONTAINER_ID is not set", cure="only containers of YARN are started like this"
        )
    agent = load_config(None, environ, **document["agent"])
    make_run_dir(Path(agent.run_dir))
    own = {
        "name": node,
        "listen_host": node,
        "unix_path": str(Path(agent.run_dir) / _SOCKET_NAME),
        "http_port": _FREE_PORT,
        "state_file": agent.server_state_file,
    }
    config = parse_config({**own, **document["server"]})
    target = Path(NODE_SETTINGS_FILE)
    try:
        target.write_text(config.model_dump_json(indent=1), encoding="utf-8")
    except OSError as error:
        raise StartupError(f"{target}: {error.strerror}") from None
    return config


def rotate_output(
    descriptors: Sequence[int] = (1, 2),
    max_bytes: int = _MAX_LOG_BYTES,
    keep: int = KEPT_LOGS,
    interval_s: float = _INTERVAL_S,
) -> threading.Event:
    """Watch this process' output files in a daemon thread, until the returned event is set.

    Only regular files opened for appending are rotated.
    """
    done = threading.Event()
    watched = [fd for fd in descriptors if _is_log(fd)]

    def watch() -> None:
        while not done.wait(interval_s):
            for fd in watched:
                with contextlib.suppress(OSError):
                    rotate(fd, max_bytes, keep)

    if watched:
        threading.Thread(target=watch, name="log-rotation", daemon=True).start()
    return done


def rotate(descriptor: int, max_bytes: int, keep: int) -> bool:
    """Rotate an open log file if it is longer than `max_bytes`; returns whether it was.

    Raises:
        OSError: no space for the copy, or the file was deleted; the file is truncated all the same.
    """
    if os.fstat(descriptor).st_size <= max_bytes:
        return False
    path = Path(f"/proc/self/fd/{descriptor}").readlink()
    try:
        for number in range(keep - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                path.with_name(f"{path.name}.{number}").replace(path.with_name(f"{path.name}.{number + 1}"))
        _copy(path, path.with_name(f"{path.name}.1"))
    finally:
        os.ftruncate(descriptor, 0)
    return True


def _copy(source: Path, target: Path) -> None:
    """Copy until the end, so that little time passes between the last read and the truncation."""
    with source.open("rb", buffering=0) as reader, target.open("wb", buffering=0) as writer:
        while piece := reader.read(_PIECE_BYTES):
            writer.write(piece)


def _is_log(descriptor: int) -> bool:
    try:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        return is_file and bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND)
    except OSError:
        return False


if __name__ == "__main__":
    main()
