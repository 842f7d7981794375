"""Scripted commands and what a Torque answered: one text for real servers and for the emulation alike.

A transcript has one entry per step: exit code, output, and what changed on the jobs and nodes. What differs
from run to run (times, session numbers, measurements) is blanked out, in width where columns depend on it.
"""

from __future__ import annotations

import functools
import re
import shlex
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

FOLDER = Path(__file__).resolve().parents[3] / "golden" / "torque_scenarios"
FIRST_JOB = 1000
SCRIPT = "sleep 1000"
HOME = Path("/home")
"""Of the users of the recorded servers."""
_VOLATILE = frozenset(
    (
        "ctime", "mtime", "qtime", "etime", "start_time", "comp_time", "total_runtime", "session_id",
        "queue_rank", "Remaining", "Execution_Time",
    )
)  # fmt: skip
_PLACE = re.compile(",LD_LIBRARY_PATH=[^,]*")
"""Where the programs lie, in the environment of a job."""
_UNSTEADY = ("resources_used.", "Walltime.", "status", "gpu_status", "session_id")
"""What comes with a mom's report, whenever that is."""
_PLAIN = {
    "Checkpoint": "u", "Join_Path": "n", "Keep_Files": "n", "Mail_Points": "a", "Priority": "0",
    "Rerunable": "True", "fault_tolerant": "False", "job_radix": "0", "submit_host": "head", "server": "head",
    "queue_type": "E", "init_work_dir": f"{HOME}/alice", "request_version": "1", "mom_service_port": "15002",
    "mom_manager_port": "15003", "power_state": "Running", "ntype": "cluster", "egroup": "hpc",
    "Resource_List.walltime": "01:00:00", "Hold_Types": "n", "Job_Owner": "alice@head", "euser": "alice",
    "Job_Name": "STDIN", "substate": "10", "Error_Path": rf"head:{HOME}/alice/STDIN\.e\d+",
    "Output_Path": rf"head:{HOME}/alice/STDIN\.o\d+", "ctime": r"\*", "mtime": r"\*", "qtime": r"\*",
    "queue_rank": r"\*", "submit_args": ".*", "queue": "batch",
    "Variable_List": f"(PBS_ARRAYID=\\d+,)?PBS_O_QUEUE=batch,PBS_O_HOME={HOME}/alice,PBS_O_LOGNAME=alice,"
    f"PBS_O_PATH=/usr/bin:/bin,PBS_O_SHELL=/bin/bash,PBS_O_LANG=C.UTF-8,PBS_O_WORKDIR={HOME}/alice,"
    "PBS_O_HOST=head,PBS_O_SERVER=head",
}  # fmt: skip
"""What nearly every job or node has: not written."""


State = dict[str, dict[str, str]]


@dataclass(frozen=True)
class Step:
    """One line of a scenario: a command by a user, or seconds to wait."""

    text: str
    user: str = ""
    argv: tuple[str, ...] = ()
    stdin: str = ""
    wait_s: float = 0.0


@dataclass(frozen=True)
class Scenario:
    """Steps on a cluster of its own."""

    name: str
    steps: tuple[Step, ...]


class Cluster(Protocol):
    """Something that answers like Torque."""

    def run(self, user: str, argv: tuple[str, ...], stdin: str) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""

    def wait(self, seconds: float) -> None:
        """Let time pass."""

    def settle(self, look: Callable[[], State]) -> None:
        """Wait until nothing changes any more."""

    def events(self) -> list[int]:
        """Codes sent to the scheduler since the last call."""


@dataclass
class Entry:
    """A step and what came of it."""

    step: str
    lines: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """As written in a transcript."""
        return "\n".join([f"$ {self.step}", *self.lines])


def read_scenarios(path: Path = FOLDER / "scenarios.txt") -> list[Scenario]:
    """All scenarios of the file, in order."""
    found: list[tuple[str, list[Step]]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("== "):
            found.append((line[3:], []))
        elif line and not line.startswith("#"):
            found[-1][1].append(_step(line))
    return [Scenario(name, tuple(steps)) for name, steps in found]


def _step(line: str) -> Step:
    if line.startswith("wait "):
        return Step(line, wait_s=float(line[5:]))
    user, _, command = line.partition(": ")
    command, bar, stdin = command.partition(" | ")
    argv = tuple(shlex.split(command))
    text = stdin if bar else SCRIPT
    needs = bar or argv[0] in ("qsub", "sh")
    return Step(line, user, argv, text.replace(";", "\n") + "\n" if needs else "")


@dataclass(frozen=True)
class Seen:
    """What one step gave, raw."""

    step: str
    code: int
    out: str
    err: str
    before: State
    after: State
    events: tuple[int, ...]

    def entry(self) -> Entry:
        """As a transcript has it."""
        lines = [*_printed(self.code, self.out, self.err), *_changes(self.before, self.after)]
        told = [code for code in self.events if code != 3]
        if told:
            # The timer knocks when it likes; how many events melt into one is a matter of milliseconds.
            lines.append(f"event {told[-1]}")
        return Entry(self.step, lines)


def play(cluster: Cluster, scenario: Scenario) -> list[Seen]:
    """Run all steps; what each printed and changed."""
    seen = []
    before = look(cluster)
    cluster.events()
    for step in scenario.steps:
        code, out, err = 0, "", ""
        if step.wait_s:
            cluster.wait(step.wait_s)
        else:
            code, out, err = cluster.run(step.user, step.argv, step.stdin)
        after = before
        if step.argv[:1] not in (("qstat",), ("qselect",)):
            cluster.settle(lambda: look(cluster))
            after = look(cluster)
        seen.append(Seen(step.text, code, out, err, before, after, tuple(cluster.events())))
        before = after
    return seen


def _printed(code: int, out: str, err: str) -> Iterator[str]:
    if code:
        yield f"= {code}"
    for mark, text in ((">", out), ("!", err)):
        for line in blanked(text).splitlines():
            yield f"{mark} {line}".rstrip()


def look(cluster: Cluster) -> State:
    """Attributes of all jobs and nodes."""
    state: State = {}
    for words in (("qstat", "-f", "-x"), ("qstat", "-f", "-t", "-x"), ("pbsnodes", "-x")):
        _, out, _ = cluster.run("root", words, "")
        if not out.strip():
            continue
        for element in ElementTree.fromstring(out):
            flat = _flat(element)
            state[flat.pop("Job_Id", "") or flat.pop("name")] = flat
    return state


def _flat(element: ElementTree.Element) -> dict[str, str]:
    flat: dict[str, str] = {}
    for leaf in element:
        for each in leaf:
            flat[f"{leaf.tag}.{each.tag}"] = each.text or ""
        if not len(leaf):
            flat[leaf.tag] = leaf.text or ""
    return {name: _steady(name, value) for name, value in flat.items() if not _is_unsteady(name)}


@functools.cache
def _is_unsteady(name: str) -> bool:
    return name.startswith(_UNSTEADY)


@functools.lru_cache(1 << 14)
def _steady(name: str, value: str) -> str:
    return "*" if name.rpartition(".")[2] in _VOLATILE else _PLACE.sub("", value)


def _changes(before: State, after: State) -> Iterator[str]:
    for key in sorted({**before, **after}, key=_place):
        old, new = before.get(key), after.get(key)
        if new is None:
            yield f"- {key}"
        elif old is None:
            shown = [f"{name}={value}" for name, value in sorted(new.items()) if not _is_plain(name, value)]
            yield f"+ {key} " + "; ".join(shown)
        elif old != new:
            shown = [f"{name}={new[name]}" if name in new else f"-{name}"
                     for name in sorted({**old, **new}) if old.get(name) != new.get(name)]  # fmt: skip
            yield f"~ {key} " + "; ".join(shown)


def _is_plain(name: str, value: str) -> bool:
    return re.fullmatch(_PLAIN.get(name, "$^"), value) is not None


def _place(key: str) -> tuple[int, int, str]:
    match = re.match(r"(\d+)(?:\[(\d*)\])?", key)
    return (0, 0, key) if match is None else (int(match[1]), int(match[2] or -1), key)


_DATE = "DAY MON DD HH:MM:SS YYYY"
_BLANKS: list[tuple[re.Pattern[str], str]] = [
    (re.compile(r"^(\d.{25} .{16} .{15} )[ \d:]{8}( [A-Z] )", re.MULTILINE), r"\1TIME USE\2"),
    (re.compile(r"^[Uu]sage:\s*(\w+).*\Z", re.MULTILINE | re.DOTALL), r"usage: \1 ..."),
    (re.compile(r"\b17\d{8}\b|\b18\d{8}\b"), "EPOCHTIME."),
    (re.compile(r"\b(Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}"), _DATE),
    (re.compile(r"((session_id|queue_rank|total_runtime|net_counter|Walltime.Remaining) = )[\d. ]+"), r"\1*"),
    (re.compile(r"<(session_id|queue_rank|total_runtime|Remaining|Execution_Time)>[^<]*<"), r"<\1>*<"),
    (re.compile(r"^ *resources_used\.\w+ = .*\n", re.MULTILINE), ""),
    (re.compile(r"<resources_used>.*?</resources_used>"), ""),
    (re.compile(r"(?<=head)\([\d.]+\)"), "(ADDRESS)"),
    (re.compile(r"(?<=status = )[^\n]*(\n {17}[^\n]*)*"), "*"),
    (re.compile(r"(?<=<status>)[^<]*"), "*"),
    (re.compile(r"set node (\w+) status [^\n]*\n"), ""),
    (re.compile(r"((?:pbs_version = |^Version: )[\d.]+)\S*", re.MULTILINE), r"\1"),
    (re.compile(r"^Commit:.*", re.MULTILINE), "Commit:"),
    (re.compile(r"'ncpus=\d+'"), "'ncpus=N'"),
    (re.compile(r"(?<= )\d\d:\d\d:\d\d(?= *$| R | C | E | S | H )", re.MULTILINE), "HH:MM:SS"),
    (re.compile(r"^(\d.{22} .{11} .{8} .{16}) [ \d]{5}\d ", re.MULTILINE), r"\1 SESSID "),
    (re.compile(r"(?<= [A-Z]  )\d\d:\d\d:\d\d"), "HH:MM:SS"),
]  # fmt: skip


def blanked(text: str) -> str:
    """A text without what differs from run to run."""
    for pattern, instead in _BLANKS:
        text = pattern.sub(instead, text)
    return text


def write_transcript(entries: dict[str, list[Entry]]) -> str:
    """All scenarios of one server as a text."""
    return "\n".join(
        f"== {name}\n" + "\n".join(e.text for e in steps) + "\n" for name, steps in entries.items()
    )


def read_transcript(text: str) -> dict[str, list[Entry]]:
    """The inverse of :func:`write_transcript`."""
    found: dict[str, list[Entry]] = {}
    steps: list[Entry] = []
    for line in text.splitlines():
        if line.startswith("== "):
            steps = found.setdefault(line[3:], [])
        elif line.startswith("$ "):
            steps.append(Entry(line[2:]))
        elif line:
            steps[-1].lines.append(line)
    return found
