"""``python -m yarn_accel.worker.function_process ARCHIVE...``: calls functions of modules, one by one.

Started by a worker, with a socket as standard input. A message names a function, its arguments as JSON, the
folder to work in, and variables of the environment. The answer has the result as JSON, or one line on what
failed. All calls print where this process was started to print.

In another Python environment (3.9 or later) it is run by its path, with nothing of this package but the
module beside it.

Archives are zip files: they are put on ``sys.path`` and never extracted, so whatever names are in them,
nothing is written. A call that leaves threads, processes or another standard output is answered as not clean:
the worker ends this process then, with all that it has started, and starts a new one for the next call. Of
processes it knows all: the kernel makes it the parent of those whose own parents have ended.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import socket
import sys
import threading
import traceback
import zipimport
from collections.abc import Mapping, Sequence
from pathlib import Path

if __package__:
    from yarn_accel.worker.message_channel import receive, send
else:  # run by its path in an environment that has nothing of ours: that folder is the first on sys.path
    from message_channel import receive, send  # type: ignore[import-not-found,no-redef]

_MAX_ERROR = 1000
_PR_SET_CHILD_SUBREAPER = 36
#: Also children of `clone` that tell nobody of their end (``__WALL``).
_WALL = 0x40000000


class _ResultError(Exception):
    """What a function returned is no result; the text says why."""


class _Caller:
    """Makes the calls of one process.

    Args:
        channel: where they come from.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._pid = os.getpid()
        self._home = Path.cwd()
        self._environ = dict(os.environ)
        self._log = os.dup(1)
        self._streams = sys.stdout, sys.stderr
        with open(os.devnull, "rb") as null:  # noqa: PTH123
            os.dup2(null.fileno(), 0)
        self._is_reaper = _adopt_orphans()

    def run(self) -> None:
        """Serve until the worker is gone."""
        while (received := receive(self._channel)) is not None:
            message, _ = received
            number = message["call"]
            self._set_environ({**self._environ, **message["environment"]})
            os.chdir(message["folder"])
            answer = _called(message["function"], message["arguments"], message["max_result"])
            if os.getpid() != self._pid:
                os._exit(1)  # a child that the function has forked returned as well
            is_clean = self._clean()
            send(self._channel, {"call": number, **answer, "is_clean": is_clean})

    def _clean(self) -> bool:
        """Be as before the call; whether that is possible."""
        for stream in self._streams:
            with contextlib.suppress(Exception):
                stream.flush()
        for fd in (1, 2):
            os.dup2(self._log, fd)
        os.chdir(self._home)
        self._set_environ(self._environ)
        is_same = (sys.stdout, sys.stderr) == self._streams and not any(each.closed for each in self._streams)
        return is_same and threading.active_count() == 1 and self._is_reaper and not _has_children()

    def _set_environ(self, wanted: Mapping[str, str]) -> None:
        for name in os.environ.keys() - wanted.keys():
            del os.environ[name]
        for name, value in wanted.items():
            if os.environ.get(name) != value:
                os.environ[name] = value


def _adopt_orphans() -> bool:
    """Have the kernel make this process the parent of its descendants whose parents end; whether it does."""
    try:
        import ctypes

        return bool(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def _has_children() -> bool:
    """Whether a process that a call has started is there, also one that ended and was not waited for."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT | _WALL)
    except ChildProcessError:
        return False
    return True


def _called(function: str, arguments: str, max_result: int) -> dict[str, str]:
    """Call it; whatever it raises becomes one line, and a traceback on standard error."""
    try:
        module, _, name = function.partition(":")
        target = getattr(importlib.import_module(module), name)
        given = json.loads(arguments)
        value = target(**given) if isinstance(given, dict) else target(*given)
        return {"result": _result(value, max_result)}
    except _ResultError as error:
        return {"error": f"{function}: {error}"}
    except BaseException as error:  # noqa: BLE001 -- an exit or an interrupt ends the call alone, too
        with contextlib.suppress(Exception):
            traceback.print_exc()
        return {"error": f"{function}: {_text(error)}"}


def _text(error: BaseException) -> str:
    try:
        text = str(error)[:_MAX_ERROR]
    except Exception:  # noqa: BLE001 -- it is the function's own class
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _result(value: object, max_chars: int) -> str:
    """A value as JSON; stops as soon as that is too long."""
    parts: list[str] = []
    n_chars = 0
    try:
        for part in json.JSONEncoder(allow_nan=False, separators=(",", ":")).iterencode(value):
            n_chars += len(part)
            if n_chars > max_chars:
                raise _ResultError(f"its result is longer than {max_chars} characters of JSON: use files")
            parts.append(part)
    except (TypeError, ValueError, RecursionError) as error:
        raise _ResultError(f"its result cannot be given as JSON: {str(error)[:200]}") from None
    return "".join(parts)


def _use_archives(paths: Sequence[str]) -> str:
    """Put archives before all else on the path of imports; what is wrong with one, else nothing."""
    # The first entry is the current folder.
    sys.path[:1] = paths
    for path in paths:
        try:
            zipimport.zipimporter(path)
        except zipimport.ZipImportError as error:
            return f"{Path(path).name} is no zip file to import from: {error}"
    return ""


def main(archives: Sequence[str]) -> None:
    """Serve the worker at the other end of standard input."""
    channel = socket.socket(fileno=os.dup(0))
    if problem := _use_archives([str(Path.cwd() / each) for each in archives]):
        sys.exit(problem)
    with contextlib.suppress(OSError):
        _Caller(channel).run()


if __name__ == "__main__":
    main(sys.argv[1:])
