"""What became of a qrun: its exit code and stderr to one kind, as seen on Torque 6.1.3 and 4.2.10."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from torque_sched.core.texts import one_line


class RunKind(enum.Enum):
    """What the server answered to a qrun."""

    STARTED = "started"
    """Accepted. With ``-a`` the start itself may still fail; the next snapshot tells."""
    UNKNOWN_JOB = "unknown-job"
    BAD_ID = "bad-id"
    UNAUTHORISED = "unauthorised"
    ALREADY_RUNNING = "already-running"
    WRONG_STATE = "wrong-state"
    """Waiting for its time, exiting, or a whole array with running members."""
    ARRAY_PARENT = "array-parent"
    ARRAY_LIMIT = "array-limit"
    QUEUE_STOPPED = "queue-stopped"
    NEVER = "never"
    """``Unknown node in hostlist``: too much for the node, no such node, or a malformed list."""
    NOT_NOW = "not-now"
    """Full, down and offline nodes alike."""
    NO_REQUEST = "no-request"
    """The job has no node request of its own (``procs``, ``-L``) and no ``-H`` was given."""
    SERVER_GONE = "server-gone"
    USAGE = "usage"
    OTHER = "other"

    @property
    def is_transient(self) -> bool:
        """Whether the same qrun may work later without anybody changing anything."""
        return self in _TRANSIENT


_TRANSIENT = frozenset(
    {RunKind.NOT_NOW, RunKind.ARRAY_LIMIT, RunKind.SERVER_GONE, RunKind.QUEUE_STOPPED, RunKind.WRONG_STATE}
)

# In this order: the first that is found decides. The texts are those of the server's error table.
_TEXTS: tuple[tuple[str, RunKind], ...] = (
    (r"cannot connect to|could not connect to|Connection refused|Connection timed out", RunKind.SERVER_GONE),
    (r"No route to host|End of File|Premature end of message|Communication failure", RunKind.SERVER_GONE),
    (r"Unauthorized Request|operation not permitted", RunKind.UNAUTHORISED),
    (r"illegally formed job identifier", RunKind.BAD_ID),
    (r"Unknown Job I[dD]", RunKind.UNKNOWN_JOB),
    (r"job already running", RunKind.ALREADY_RUNNING),
    (r"Array slot limit", RunKind.ARRAY_LIMIT),
    (r"cannot run a job array", RunKind.ARRAY_PARENT),
    (r"non-started queue|not in an execution queue|non-execution queue", RunKind.QUEUE_STOPPED),
    (r"job [0-9]+\[\]\S* state ", RunKind.ARRAY_PARENT),
    (r"Request invalid for state of job", RunKind.WRONG_STATE),
    (r"Unknown node-attribute|hostlist '\(null\)", RunKind.NO_REQUEST),
    (r"Unknown node", RunKind.NEVER),
    (r"Resource temporarily unavailable|exceeds currently available", RunKind.NOT_NOW),
    (r"[Uu]sage: ?qrun", RunKind.USAGE),
)
_COMPILED = tuple((re.compile(text), kind) for text, kind in _TEXTS)


@dataclass(frozen=True, slots=True)
class RunResult:
    """The kind of answer and its words, for the log and the job's comment."""

    kind: RunKind
    text: str = ""
    """The server's words on one line without ``qrun:``; at most 300 characters."""


def classify_qrun(exit_code: int, stderr: bytes | str) -> RunResult:
    """What a finished qrun of one job means.

    >>> classify_qrun(2, "qrun: Unknown node in hostlist 'nosuch...' for job 51.head").kind
    <RunKind.NEVER: 'never'>
    """
    text = stderr.decode("utf-8", errors="replace") if isinstance(stderr, bytes) else stderr
    line = one_line(" ".join(text.split())[:2000])
    shown = line[line.rfind("qrun: ") :].removeprefix("qrun: ")[:300] if "qrun: " in line else line[:300]
    if exit_code == 0:
        return RunResult(RunKind.STARTED, shown)
    kind = next((kind for pattern, kind in _COMPILED if pattern.search(line)), RunKind.OTHER)
    return RunResult(kind, shown or f"exit code {exit_code} without a word")
