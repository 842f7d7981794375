"""The command and the environment of a container, quoted so that a NodeManager runs exactly these words.

A NodeManager replaces markers in a container's command (``{{``, ``}}``, ``<LOG_DIR>`` and others), writes
it between double quotes into a script, ``exec /bin/bash -c "..."``, and runs that with bash: each word must
survive the markers, the double quotes and the inner bash (seen in ContainerLaunch of Hadoop 3.5.0).  The
values of environment variables pass through markers and double quotes alone.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from yarn_accel.errors import ConfigError
from yarn_accel.launch.upload import ARCHIVE_PATTERN, SCRIPT_NAME

#: The NodeManager puts the container's own log folder here.
_LOG_DIR = "<LOG_DIR>"
#: Text that a NodeManager replaces before bash sees it; `(?<=a)(?=b)` is the place between its two halves.
_MARKERS = re.compile(r"(?<=\{)(?=\{)|(?<=\})(?=\})|(?<=<)(?=LOG_DIR>|CPS>|ADD_OPENS>)")
_ACTIVE = re.compile(r'[\\"$`]')
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Words of a command line that suggest a secret, which everybody on the node could read.
_SECRET = re.compile(r"secret|passw|token|credential", re.IGNORECASE)


def container_argv(words: Sequence[str], archive_name: str, python: str = "python3") -> list[str]:
    """The words of a container that runs ``yarn-accel WORD...`` from a packed environment.

    Args:
        words: what stands after ``yarn-accel``.
        archive_name: name of the environment in the container's folder, ``accel-environment-DIGEST.zip``.
        python: the node's interpreter; isolated, so that nobody's settings or packages reach the bootstrap.
    """
    if not ARCHIVE_PATTERN.fullmatch(archive_name):
        raise ConfigError(f"{archive_name}: not the name of an environment")
    return [python, "-I", "-S", SCRIPT_NAME, archive_name, *words]


def container_command(argv: Sequence[str]) -> str:
    """One command for a ContainerLaunchContext; its output is appended to the container's log files.

    Raises:
        ConfigError: a word has a NUL in it.
    """
    words = " ".join(_quoted(word) for word in argv)
    # `exec`: signals of the NodeManager reach Python itself, and no shell stays behind.  Appending, so that
    # the files may be cut while they are written to.
    redirections = f"1>>'{_LOG_DIR}/stdout' 2>>'{_LOG_DIR}/stderr'"
    return f"exec {_ACTIVE.sub(_escaped, words)} {redirections}"


def _quoted(word: str) -> str:
    if "\0" in word:
        raise ConfigError(f"{word!r}: a NUL cannot be part of a command")
    return "".join(shlex.quote(part) for part in _MARKERS.split(word))


def _escaped(match: re.Match[str]) -> str:
    return "\\" + match.group()


def quoted_environment(values: Mapping[str, str]) -> dict[str, str]:
    """Environment variables quoted for a ContainerLaunchContext: the process sees exactly these values.

    Raises:
        ConfigError: a name that bash does not take, a value with a marker of YARN or a NUL, or what looks
            like a secret: a process' environment is no place for it, and YARN logs it.
    """
    quoted = {}
    for name, value in values.items():
        if not _VARIABLE.fullmatch(name):
            raise ConfigError(f"environment {name!r}: not the name of a variable")
        if _SECRET.search(name) and not name.endswith(("_FILE", "_LOCATION")):
            raise ConfigError(f"environment {name}: secrets go through container credentials alone")
        if _MARKERS.search(value) or "\0" in value:
            raise ConfigError(f"environment {name}={value!r}: YARN would replace a part of it")
        quoted[name] = _ACTIVE.sub(_escaped, value)
    return quoted


def container_environment(
    cache_dir: str = "", devices: str = "", devices_dir: str = "", more: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The environment variables of our containers, quoted, without empty ones.

    Args:
        cache_dir: where nodes unpack the environment; default: the NodeManager's folder of the user.
        devices: ``all`` or how many GPUs to lock, where YARN does not give them out.
        devices_dir: node-wide folder of those locks.
        more: further variables.
    """
    own = {"ACCEL_CACHE_DIR": cache_dir, "ACCEL_DEVICES": devices, "ACCEL_DEVICES_DIR": devices_dir}
    return quoted_environment({name: value for name, value in {**(more or {}), **own}.items() if value})
