"""Runs the experiments of a report one after the other, each as a process of its own, and shows what is left.

A benchmark writes its own JSON file as it goes. It gets SIGTERM when its report is killed, so that it takes
down what it started, and holds the report's lock until then.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from benchmarks.registry import RESUMABLE
from benchmarks.report.experiments import Experiment
from benchmarks.report.state import Outcome, State
from benchmarks.result import current_commit

_ROOT = Path(__file__).resolve().parents[2]
_PR_SET_PDEATHSIG = 1
_TICK_S = 1.0
_SAY_S = 30.0
"""So often an experiment says how far it is where no terminal shows a bar."""
_TAIL_BYTES = 4096
_DOWN_S = 180.0
"""For a benchmark to take down what it started."""
_SLACK_S = 300.0
"""Beside three times its estimate; longer it may not run."""

Command = Callable[[Experiment, Path], list[str]]


def time_text(seconds: float) -> str:
    """Such as ``12 min`` or ``40 s``."""
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{max(0.0, seconds):.0f} s"


@dataclass(frozen=True, slots=True)
class Shown:
    """Where an experiment shows how far it is.

    Attributes:
        progress: what has the bar.
        bar: its number there.
        title: of the experiment, with its number.
        done_s: estimates of the experiments before it.
        rest_s: estimates of those after it.
    """

    progress: Progress
    bar: TaskID
    title: str
    done_s: float
    rest_s: float


@dataclass
class Runner:
    """Runs what is left of a report.

    Attributes:
        folder: of the report; results, logs and state lie in it.
        state: what was done so far.
        lock: descriptor that benchmarks hold, too.
        command: of an experiment that writes to a file.
        limit_s: for all of them together: none is begun that would not end in it.
    """

    folder: Path
    state: State
    lock: int
    command: Command
    limit_s: float

    def result(self, stem: str) -> Path:
        """Where the figures of an experiment lie."""
        return self.folder / "results" / f"{stem}.json"

    def run(self, todo: Sequence[Experiment], console: Console) -> None:
        """Run them all; what fails is noted, and the rest goes on.

        Raises:
            KeyboardInterrupt: the one that ran was ended, and took down what it had started.
        """
        until_s = time.monotonic() + self.limit_s
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[left]}"))
        with Progress(*columns, console=console, transient=True) as progress:
            bar = progress.add_task("", total=sum(each.estimate_s for each in todo) or 1.0, left="")
            done_s = 0.0
            for number, each in enumerate(todo):
                rest_s = sum(other.estimate_s for other in todo[number + 1 :])
                left_s = until_s - time.monotonic()
                if each.estimate_s > left_s:
                    why = f"{time_text(self.limit_s)} were over; the same command runs what is left"
                    self._end(each, Outcome(0.0, why), console)
                    continue

                title = f"{each.stem} ({number + 1} of {len(todo)})"
                console.print(f"{each.stem}: about {time_text(each.estimate_s)}", highlight=False)
                may_run_s = min(left_s, 3 * each.estimate_s + _SLACK_S)
                show = self._shown(each, Shown(progress, bar, title, done_s, rest_s))
                self._end(each, self._run_one(each, may_run_s, show), console)
                done_s += each.estimate_s
                progress.update(bar, completed=done_s)

    def _shown(self, each: Experiment, on: Shown) -> Callable[[float], None]:
        """What shows how far an experiment is, from its seconds so far: a bar, or a line now and then."""
        console, said_s = on.progress.console, 0.0

        def show(taken_s: float) -> None:
            nonlocal said_s
            step = _last_line(self._log(each))
            left = f"about {time_text(on.rest_s + each.estimate_s - taken_s)} left"
            title = f"{on.title}: {step[: console.width // 2]}" if step else on.title
            at_s = on.done_s + min(taken_s, each.estimate_s)
            on.progress.update(on.bar, description=escape(title), completed=at_s, left=left)
            if not console.is_terminal and taken_s - said_s >= _SAY_S:
                said_s = taken_s
                far = f"{time_text(taken_s)} of about {time_text(each.estimate_s)}"
                console.print(f"{each.stem}: {far}{': ' * bool(step)}{step}", highlight=False, markup=False)

        return show

    def _log(self, each: Experiment) -> Path:
        return self.folder / "logs" / f"{each.stem}.txt"

    def _run_one(self, each: Experiment, may_run_s: float, show: Callable[[float], None]) -> Outcome:
        target = self.result(each.stem)
        target.parent.mkdir(parents=True, exist_ok=True)
        words = self.command(each, target)
        if each.recording.benchmark in RESUMABLE and self._was_begun(each.stem, target, words):
            words.append("--resume")
        else:
            target.unlink(missing_ok=True)
        self.state.begin(each.stem)
        log = self._log(each)
        log.parent.mkdir(parents=True, exist_ok=True)
        began_s = time.monotonic()
        with log.open("ab") as output:
            child = subprocess.Popen(
                words,
                cwd=_ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(self.lock,),
                preexec_fn=_end_with_parent,
            )
            is_over = self._wait(child, may_run_s, show)
        why = _why_failed(child.returncode, log) if child.returncode else ""
        if is_over:
            why = f"it took longer than {time_text(may_run_s)} and was ended"
        return Outcome(time.monotonic() - began_s, why)

    def _was_begun(self, stem: str, target: Path, words: Sequence[str]) -> bool:
        """Whether an earlier report left a part of it: this version's, in the same form."""
        outcome = self.state.outcomes.get(stem)
        if self.state.running != stem and not (outcome and outcome.why):
            return False
        try:
            document = json.loads(target.read_text(encoding="utf-8"))
            return bool((document["commit"], document["is_quick"]) == (current_commit(), "--quick" in words))
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def _wait(self, child: subprocess.Popen[bytes], may_run_s: float, show: Callable[[float], None]) -> bool:
        """Until it ends; whether it had to be ended."""
        began_s = time.monotonic()
        try:
            while time.monotonic() - began_s < may_run_s:
                show(time.monotonic() - began_s)
                with suppress(subprocess.TimeoutExpired):
                    child.wait(_TICK_S)
                    return False
            return True
        except KeyboardInterrupt:
            sys.stderr.write("\nending the experiment, which takes down what it started\n")
            raise
        finally:
            _take_down(child)

    def _end(self, each: Experiment, outcome: Outcome, console: Console) -> None:
        self.state.end(each.stem, outcome)
        said = f"failed: {outcome.why}" if outcome.why else f"{outcome.wall_s:.0f} s"
        console.print(f"{each.stem}: {escape(said)}", highlight=False)


def _last_line(log: Path) -> str:
    """What an experiment wrote last: the step it is at; empty before it wrote anything."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _take_down(child: subprocess.Popen[bytes]) -> None:
    """End it, if it runs still: first so that it takes down what it started."""
    for ask, patience_s in ((child.terminate, _DOWN_S), (child.kill, _DOWN_S)):
        if child.poll() is not None:
            return
        ask()
        with suppress(subprocess.TimeoutExpired):
            child.wait(patience_s)


def _why_failed(code: int, log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line for line in lines if line.startswith("benchmarks: ")] or [
        line for line in lines if line.strip()
    ]
    last = errors[-1].removeprefix("benchmarks: ")[:300] if errors else "it said nothing"
    return f"exit code {code}: {last} (logs/{log.name})"


def benchmark_command(is_quick: bool, mode: str) -> Command:
    """The command of an experiment, with this Python."""

    def words(each: Experiment, target: Path) -> list[str]:
        return [sys.executable, "-m", "benchmarks", *each.words(target, is_quick=is_quick, mode=mode)]

    return words
