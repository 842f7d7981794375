"""Meaning of the exit statuses and diagnostics of YARN's containers."""

from __future__ import annotations

import re

_WORDS = {
    -100: "released, or its node was lost",
    -101: "the disks of its node failed",
    -102: "preempted",
    -103: "over its limit of virtual memory",
    -104: "over its limit of memory",
    -105: "stopped by the application",
    -106: "killed by the resource manager",
    -107: "killed after the application ended",
    -108: "killed by the container scheduler of its node",
}
#: YARN's diagnostics have what was used, and the limit.
_WITH_FIGURES = (-103, -104)
#: Also of a container whose files did not come to its node.
_NO_STATUS = -1000
#: Of 128 and the number of a signal. YARN then includes nothing of what the container wrote.
_SIGNALS = {
    134: "SIGABRT",
    135: "SIGBUS",
    137: "SIGKILL: by the kernel where memory ran out, or from outside",
    139: "SIGSEGV",
    143: "SIGTERM",
}
#: Not caused by the container, so it is requested again at once: YARN decides when resources are free.
_EXCUSED = frozenset((-100, -102, -105, -106, -107, -108))
#: Our own programs' refusals (`launch`) whose cause stays until somebody mends the node: another Python,
#: glibc or platform, no space to unpack, a damaged environment. Not 116, devices that another process holds:
#: it may be a server of before that is about to end.
_LASTING = frozenset((111, 112, 113, 114, 115))
#: Our programs end so when their settings are wrong (`ConfigError`), or they cannot start (`StartupError`).
_REFUSALS = frozenset((2, 3))

#: Lines that a JVM, Hadoop or Python itself writes to standard error, and that are no reason.
NOISE = re.compile(
    r"log4j:|SLF4J|WARNING: |OpenJDK |Java Hot\w+|reporter:(counter|status):|\w{3} \d{1,2}, \d{4} \d|INFO: "
    r"|SEVERE: |\s*at |\d{4}-\d\d-\d\d \d\d:|(\S+:)?\d+: \w*Warning: |sys:1: "
)
#: Before each end of a file that YARN includes.
_TAIL = re.compile(r"Last \d+ bytes of (\S+) ?:\s*")
#: After it, in the diagnostics of an application.
_AFTER = "For more detailed output, check the application tracking page"
_STAMP = re.compile(r"(?:.*Diagnostics: ?)?(?:\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}\])?")
#: YARN's own lines that say no more than the exit status does.
_KNOWN = re.compile(
    r"Exception from container-launch\.?$|Container id: |Exit code: |Container exited with a non-zero exit "
    r"|Container killed on request|Killed by external signal|Failing this attempt|Application application_"
    r"|Exception when trying to cleanup container|\s"
)
#: Of our own programs' one line, which ends them.
_OWN = "yarn-accel: "
_MAX_CHARS = 300


def is_lasting(exit_status: int) -> bool:
    """Whether the cause persists until somebody repairs the node."""
    return exit_status in _LASTING


def is_refusal(exit_status: int) -> bool:
    """Whether the program refused to start, as it will again until the named cause is gone."""
    return exit_status in _REFUSALS


def is_excused(exit_status: int) -> bool:
    """Whether the container did not cause its end: it is requested again at once, without a failure."""
    return exit_status in _EXCUSED


def describe_exit(exit_status: int, diagnostics: str = "") -> str:
    """One line for people: the meaning of the exit status, and the container's last words."""
    why = failure_line(diagnostics)
    if exit_status == _NO_STATUS:
        return f"not started: {why}" if why else "exit status unknown"
    if exit_status in _WORDS:
        text, why = _WORDS[exit_status], why if exit_status in _WITH_FIGURES else ""
    else:
        text, why = f"exit status {exit_status}", why or _SIGNALS.get(exit_status, "")
    return f"{text}: {why}" if why else text


def failure_line(diagnostics: str) -> str:
    """The line of YARN's diagnostics that says why a container failed; empty: none does.

    That is the last line of its standard error that is no noise, of which YARN includes the last 4096 bytes;
    else of the start script's; else, where it was never started, the first line of YARN's own.
    """
    lines = diagnostics.partition(_AFTER)[0].splitlines()
    end, seen = len(lines), set()
    for at in reversed(range(len(lines))):
        tail = _TAIL.match(lines[at])
        if tail is None:
            continue
        # YARN says all of it twice.
        if tail[1] not in seen and (found := _last_line(lines[at + 1 : end])):
            return found
        seen.add(tail[1])
        end = at
    own = (_STAMP.sub("", line, count=1) for line in lines[:end])
    return next((_fitted(line) for line in own if line.strip() and not _KNOWN.match(line)), "")


def _last_line(lines: list[str]) -> str:
    """The reason in a program's standard error: its own last line."""
    said = [line for line in lines if line.strip()]
    reasons = [line for line in said if line.startswith(_OWN)]
    reasons = reasons or [line for line in said if not line[0].isspace() and not NOISE.match(line)] or said
    return _fitted(reasons[-1].removeprefix(_OWN)) if reasons else ""


def _fitted(line: str) -> str:
    text = " ".join(line.split())
    return text if len(text) <= _MAX_CHARS else f"{text[: _MAX_CHARS - 3]}..."
