"""Runs the experiments of a report, each as a process of its own; a killed report goes on where it was.

A result that is current is taken. One that is not is measured anew, where this machine has what that needs;
where it has not, or where measuring fails, the old figures are shown and marked.

A benchmark writes its own JSON file as it goes. It gets SIGTERM when its report is killed, so that it takes
down what it started, and holds the report's lock until then: whoever goes on waits for that.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn

from benchmarks import ROOT
from benchmarks.papers.report.claims import PAPERS
from benchmarks.registry import RECORDINGS, RESUMABLE, TAKES_MODE, Recording, load, needs_of
from benchmarks.result import current_commit
from benchmarks.stale import verdict_of
from yarn_accel.errors import AccelError, ConfigError, StartupError
from yarn_accel.local_filesystem import write_atomic

#: These run here without what they need, and say in their rows what they left out.
_RUN_WITHOUT = frozenset({"backfill"})


@dataclass(frozen=True, slots=True)
class Experiment:
    """One that is run.

    Attributes:
        stem: name of its result, without ``.json``.
        log: the log that it reads; None: none.
        estimate_s: about how long it takes.
    """

    stem: str
    recording: Recording
    log: Path | None
    estimate_s: float

    def words(self, target: Path, *, is_quick: bool, mode: str) -> list[str]:
        """After ``python -m benchmarks``."""
        words = [*self.recording.words(is_quick=is_quick), "--json", str(target)]
        words += ["--log", str(self.log)] if self.log else []
        return words + (["--mode", mode] if mode and self.recording.benchmark in TAKES_MODE else [])


@dataclass(frozen=True, slots=True)
class Result:
    """A file of results.

    Attributes:
        document: its JSON.
        why_stale: it is older than the code it measures, or no whole result; empty: it is current.
        is_taken: of the recorded ones; else measured by this report.
    """

    document: Mapping[str, Any]
    why_stale: str
    is_taken: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done for a report.

    Attributes:
        todo: what is run, in this order.
        lacks: experiments that are not run, and why not.
    """

    todo: tuple[Experiment, ...]
    lacks: Mapping[str, str]


def names(keys: Iterable[str]) -> list[str]:
    """The results that these papers' claims are judged by, each once."""
    return list(dict.fromkeys(stem for key in keys for stem in PAPERS[key].results))


def read_result(root: Path, path: Path, *, is_taken: bool) -> Result | None:
    """A file of results against the history of the checkout `root`; None: it is not there.

    Raises:
        ConfigError: it is no result of a benchmark.
    """
    if not path.exists():
        return None
    verdict = verdict_of(root, path)
    return Result(json.loads(path.read_text(encoding="utf-8")), verdict.why, is_taken)


def recorded_results(folder: Path, stems: Iterable[str]) -> dict[str, Result]:
    """The recorded results in a folder that are there, of those named.

    Raises:
        ConfigError: one is no result of a benchmark.
    """
    found = {stem: read_result(ROOT, folder / f"{stem}.json", is_taken=True) for stem in stems}
    return {stem: each for stem, each in found.items() if each is not None}


def _is_done(path: Path, *, is_quick: bool, mode: str, benchmark: str) -> bool:
    """Whether this report, before it was killed, or one like it has measured it with this version."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        found = (document["commit"], document["state"], document["is_quick"])
        measured_in = document["machine"].get("cluster_mode", "")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    is_same_mode = benchmark not in TAKES_MODE or measured_in == mode
    return found == (current_commit(), "complete", is_quick) and is_same_mode


def left_of(
    todo: Iterable[Experiment], path_of: Callable[[str], Path], *, is_quick: bool, mode: str
) -> list[Experiment]:
    """What a report that was killed has not measured.

    Args:
        path_of: where the figures of an experiment lie.
    """
    return [
        each
        for each in todo
        if not _is_done(path_of(each.stem), is_quick=is_quick, mode=mode, benchmark=each.recording.benchmark)
    ]


def plan_of(
    stems: Sequence[str],
    recorded: Mapping[str, Result],
    logs: Sequence[Path],
    *,
    is_quick: bool,
    is_fresh: bool = False,
) -> Plan:
    """Decide what is run, and in which order: first what has no figures at all, then what takes longest.

    So what does not fit into a report's time is short, and there are figures of it.

    Args:
        stems: of the report.
        recorded: the files of ``benchmarks/results``.
        logs: of the Parallel Workloads Archive.
        is_fresh: take none of them.
    """
    todo, lacks = [], {}
    for stem in stems:
        known = recorded.get(stem)
        if known is not None and not known.why_stale and not is_fresh:
            continue
        recording = RECORDINGS[stem]
        log = _log_of(recording, logs)
        why = _why_not(stem, recording, log, is_quick=is_quick)
        if why:
            lacks[stem] = why
        else:
            estimate_s = recording.quick_s if is_quick else recording.full_s
            todo.append(Experiment(stem, recording, log, estimate_s))
    todo.sort(key=lambda each: (each.stem in recorded, -each.estimate_s))
    return Plan(tuple(todo), lacks)


def _log_of(recording: Recording, logs: Sequence[Path]) -> Path | None:
    return next((each for each in logs if recording.log and each.name.startswith(recording.log)), None)


def _why_not(stem: str, recording: Recording, log: Path | None, *, is_quick: bool) -> str:
    if is_quick and not recording.quick_s:
        return "left out of the quick form"
    needs = needs_of(stem)
    if not needs or log is not None or stem in _RUN_WITHOUT:
        return ""
    if recording.log:
        return f"needs {needs}: --log {recording.log}.gz"
    require = getattr(load(recording.benchmark), "require", None)
    if require is None:
        return f"needs {needs}"
    try:
        require(None)
    except AccelError as error:
        return f"needs {needs}: {error}"
    return ""


def check_logs(logs: Sequence[Path]) -> None:
    """Refuse a log that no experiment reads.

    Raises:
        ConfigError: naming those that some read.
    """
    known = sorted({each.log for each in RECORDINGS.values() if each.log})
    for path in logs:
        if not any(path.name.startswith(name) for name in known):
            raise ConfigError(
                f"--log {path}: no experiment of the report reads it",
                cure=f"give {' or '.join(f'{name}.gz' for name in known)}, under that name",
            )


_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an experiment ended.

    Attributes:
        wall_s: what its process took, with those before it that were killed.
        why: it failed, or could not be run; empty: it is complete.
    """

    wall_s: float
    why: str = ""


@dataclass
class State:
    """What was done so far, in a file.

    Attributes:
        path: of the file.
        running: the experiment that runs; what a killed report leaves here is begun again.
    """

    path: Path
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    running: str = ""

    @classmethod
    def read(cls, path: Path) -> State:
        """What is there; nothing where the file is absent or no state."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            outcomes = {
                str(name): Outcome(float(each["wall_s"]), str(each["why"]))
                for name, each in document["outcomes"].items()
            }
            return cls(path, outcomes, str(document["running"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return cls(path)

    def note(self, running: str = "", ended: Mapping[str, Outcome] | None = None) -> None:
        """This experiment runs now, and these ended so."""
        self.running = running
        self.outcomes |= ended or {}
        outcomes = {name: asdict(each) for name, each in self.outcomes.items()}
        write_atomic(self.path, json.dumps({"running": self.running, "outcomes": outcomes}, indent=1) + "\n")


@contextmanager
def locked(path: Path, wait_s: float) -> Iterator[int]:
    """Hold the lock of a folder of reports; gives the descriptor, for a child to hold it, too.

    Raises:
        StartupError: another one holds it for longer than `wait_s`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        until_s = time.monotonic() + wait_s
        while not _is_taken(descriptor):
            if time.monotonic() > until_s:
                raise StartupError(
                    f"another report writes to {path.parent}",
                    cure="wait for it, end it, or give another folder by --out",
                )
            time.sleep(_POLL_S)
        yield descriptor
    finally:
        os.close(descriptor)


def _is_taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_PR_SET_PDEATHSIG = 1
_TICK_S = 1.0
_SAY_S = 30.0
"""So often an experiment says how far it is where no terminal shows a bar."""
_TAIL_BYTES = 4096
_DOWN_S = 180.0
"""For a benchmark to take down what it started."""
_SLACK_S = 300.0
"""Beside three times its estimate; longer it may not run."""


def time_text(seconds: float) -> str:
    """Such as ``12 min`` or ``40 s``."""
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{max(0.0, seconds):.0f} s"


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
    command: Callable[[Experiment, Path], list[str]]
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

                console.print(f"{each.stem}: about {time_text(each.estimate_s)}", highlight=False)
                may_run_s = min(left_s, 3 * each.estimate_s + _SLACK_S)
                title = f"{each.stem} ({number + 1} of {len(todo)})"
                show = self._shown(progress, each, title, done_s, rest_s)
                self._end(each, self._run_one(each, may_run_s, show), console)
                done_s += each.estimate_s
                progress.update(bar, completed=done_s)

    def _shown(
        self, progress: Progress, each: Experiment, title: str, done_s: float, rest_s: float
    ) -> Callable[[float], None]:
        """A function that shows how far an experiment is, from its seconds so far: a bar, or lines.

        Args:
            progress: whose only task is the bar of all experiments.
            done_s, rest_s: estimates of the experiments before this one, and of those after it.
        """
        console, said_s = progress.console, 0.0

        def show(taken_s: float) -> None:
            nonlocal said_s
            step = _last_line(self._log(each))
            left = f"about {time_text(rest_s + each.estimate_s - taken_s)} left"
            text = f"{title}: {step[: console.width // 2]}" if step else title
            at_s = done_s + min(taken_s, each.estimate_s)
            progress.update(progress.task_ids[0], description=escape(text), completed=at_s, left=left)
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
        self.state.note(each.stem)
        log = self._log(each)
        log.parent.mkdir(parents=True, exist_ok=True)
        began_s = time.monotonic()
        with log.open("ab") as output:
            child = subprocess.Popen(
                words,
                cwd=ROOT,
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
        self.state.note(ended={each.stem: outcome})
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
