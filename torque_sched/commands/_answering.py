"""Questions about jobs and nodes: answered by the daemon from its last look, or here where there is none.

`respond` is the asking end, `answer_question` the daemon's: both end in the same function of the command,
which prints about a `Picture`.
"""

from __future__ import annotations

import codecs
import io
import os
import random
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from torque_sched.commands import _console
from torque_sched.commands._console import notes, options_of
from torque_sched.errors import TorqueSchedError

QUESTIONS: Mapping[str, Mapping[str, type]] = {
    "explain": {"name": str},
    "showbf": {"kind": str, "walltime": str, "shows_names": bool, "as_json": bool},
    "showstart": {"job": str, "submit": str, "user": str, "queue": str, "name": str, "as_json": bool},
    "status": {"as_json": bool},
    "top": {"n_nodes": int},
    "whatif": {"submit": str, "user": str, "queue": str, "name": str},
}  # fmt: skip
"""What may be asked, with the words of each question; a text may be missing."""

HUNG_S = 5.0
"""A daemon that does not answer `status` or `top` in this time may hang: then they look for themselves."""
_VERSION = 1
_TIMEOUT_S = 40.0
_TRIES_S = 20.0
_LONGEST_WIDTH = 1000
_ABOUT_THE_DAEMON = frozenset({"status", "top"})
_OLD_S = 60.0
_BUSY = "the scheduler answers many questions at once (try again soon)"


def respond(
    name: str,
    home: Path | None,
    config_file: Path | None,
    asked: Mapping[str, Any],
    tell: Callable[[Any, Mapping[str, Any]], None],
    *,
    shadow: bool = False,
) -> None:
    """Print the answer to a question, and end with its exit code where that is not 0.

    Args:
        name: of the command.
        home: the PBS home, if named.
        config_file: our settings, if named: then the daemon is not asked.
        asked: the words of the question, as in `QUESTIONS`.
        tell: prints the answer from a picture.
        shadow: the shadow's files are meant, which answers no questions.
    """
    try:
        options = options_of(home, config_file, shadow=shadow)
        if config_file is None and not shadow and answered(name, options.home, asked):
            return
        from torque_sched.report.picture import take_picture

        tell(take_picture(options, notes(name)), asked)
    except TorqueSchedError as error:
        click.echo(f"torque-sched {name}: {error}", err=True)
        sys.exit(error.exit_code)


def answered(name: str, home: Path, asked: Mapping[str, Any], timeout_s: float = _TIMEOUT_S) -> bool:
    """Whether the daemon of this home answers; then the answer is printed, and ends us with its exit code.

    Raises:
        TorqueSchedError: it has too many questions to answer.
    """
    answer = _from_daemon(home, name, asked, timeout_s)
    if answer is not None:
        _show(name, answer)
    return answer is not None


def shown_by_daemon(name: str, home: Path, asked: Mapping[str, Any]) -> str | None:
    """What the daemon of this home prints as its answer; None: it has none, or not soon."""
    answer = _from_daemon(home, name, asked, HUNG_S)
    return None if answer is None or "fault" in answer or answer.get("code") else str(answer.get("out", ""))


def _from_daemon(home: Path, name: str, asked: Mapping[str, Any], timeout_s: float) -> dict[str, Any] | None:
    """None: it does not run, hangs, or has seen nothing yet."""
    from torque_sched.adapters.answer_socket import ask

    question = {
        "version": _VERSION, "ask": name, "asked": dict(asked), "encoding": sys.stdout.encoding or "utf-8",
        "width": os.get_terminal_size(1).columns if sys.stdout.isatty() else 0,
    }  # fmt: skip
    deadline_s = time.monotonic() + _TRIES_S
    while True:
        try:
            answer = ask(home, question, timeout_s)
        except BlockingIOError:
            answer = {"busy": True}
        if answer is None or "refused" in answer:
            return None
        if "busy" not in answer:
            return answer
        if time.monotonic() > deadline_s:
            raise TorqueSchedError(_BUSY)
        time.sleep(random.uniform(0.1, 0.5))


def _show(name: str, answer: Mapping[str, Any]) -> None:
    if "fault" in answer:
        click.echo(f"torque-sched {name}: {answer['fault']} ({answer.get('error')})", err=True)
        sys.exit(1)
    age_s = float(answer.get("age_s") or 0.0)
    if age_s > _OLD_S:
        notes(name)(f"the scheduler last saw the cluster {age_s:.0f} s ago")
    click.echo(str(answer.get("out", "")), nl=False)
    click.echo(str(answer.get("err", "")), nl=False, err=True)
    if code := int(answer.get("code") or 0):
        sys.exit(code)


# -- the daemon's end


def load_teller() -> Callable[[Any, Mapping[str, Any], int], Mapping[str, Any]]:
    """`answer_question`, with all that it needs imported."""
    for name in QUESTIONS:
        import_module(f"torque_sched.commands.{name}")
    for name in ("explained", "outlook", "past", "promised", "replay", "tables", "viewer"):
        import_module(f"torque_sched.report.{name}")
    import_module("torque_sched.batch.torque.asked")
    import_module("torque_sched.decide.explain")
    return answer_question


def answer_question(last: Any, question: Mapping[str, Any], uid: int) -> Mapping[str, Any]:
    """The answer to one question.

    Args:
        last: a `daemon.answers.LastLook`.
        question: as it was sent: not to be trusted.
        uid: whose.

    Returns:
        ``out``, ``err`` and ``code`` as the command has them, and ``age_s`` of the look.
    """
    from torque_sched.report.picture import picture_of
    from torque_sched.report.viewer import viewer_of

    name, asked = question.get("ask"), question.get("asked")
    if question.get("version") != _VERSION or not isinstance(name, str) or name not in QUESTIONS:
        return {"refused": "not a question of this version"}
    if not isinstance(asked, dict) or not _fits(asked, QUESTIONS[name]):
        return {"refused": f"not the words of {name}"}
    viewer = viewer_of(uid, last.snapshot.server)
    picture = picture_of(last, viewer)
    if name in _ABOUT_THE_DAEMON and not picture.state.values.get("last_cycle"):
        return {"refused": "the last look failed, so this one is old"}
    width = question.get("width")
    _console.terminal_width = width if isinstance(width, int) and 0 < width <= _LONGEST_WIDTH else None
    out, err = (_buffer(question.get("encoding")) for _ in range(2))
    code = 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            import_module(f"torque_sched.commands.{name}").tell(picture, asked)
        except TorqueSchedError as error:
            click.echo(f"torque-sched {name}: {error}", err=True)
            code = error.exit_code
    return {
        "out": viewer.hide(_text(out), picture.snapshot), "err": viewer.hide(_text(err), picture.snapshot),
        "code": code, "age_s": time.monotonic() - last.at_monotonic_s,
    }  # fmt: skip


def _fits(asked: Mapping[str, Any], words: Mapping[str, type]) -> bool:
    """Whether these are the words of the question, each of its kind."""
    return asked.keys() == words.keys() and all(
        isinstance(value, words[key]) or (value is None and words[key] is str) for key, value in asked.items()
    )


def _buffer(encoding: Any) -> io.TextIOWrapper:
    """What the asking terminal can show is not written otherwise."""
    try:
        known = codecs.lookup(str(encoding)[:40]).name
    except LookupError:
        known = "utf-8"
    return io.TextIOWrapper(io.BytesIO(), known, errors="replace")


def _text(buffer: io.TextIOWrapper) -> str:
    buffer.flush()
    data: bytes = buffer.buffer.getvalue()  # type: ignore[attr-defined]
    return data.decode(buffer.encoding, "replace")
