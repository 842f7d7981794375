"""Why a job does not run: one enum, and one table with the words for its owner and for the log.

Where the meaning is that of the C daemon, the words are the C daemon's too, misspellings included:
scripts of many sites search for them. Words in braces are filled from a decision's details.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from torque_sched.model.texts import one_line

COMMENT_LIMIT = 250
"""Longest comment in characters; longer ones are cut, so that the arguments of an order stay short."""

_NOT_RUNNING = "Not Running: "
# The C daemon's words stand first, so that searching for them finds ours too; details follow in brackets.
_NODES = "Not enough of the right type of nodes are available"
_NODES_LOG = "Not enough of the right type of nodes available"


class Reason(enum.Enum):
    """Why a job stays queued."""

    # The C daemon's own.
    QUEUE_NOT_STARTED = "queue-not-started"
    QUEUE_NOT_EXECUTION = "queue-not-execution"
    QUEUE_IGNORED = "queue-ignored"
    QUEUE_JOB_LIMIT = "queue-job-limit"
    SERVER_JOB_LIMIT = "server-job-limit"
    SERVER_USER_LIMIT = "server-user-limit"
    QUEUE_USER_LIMIT = "queue-user-limit"
    SERVER_GROUP_LIMIT = "server-group-limit"
    QUEUE_GROUP_LIMIT = "queue-group-limit"
    STRICT_FIFO = "strict-fifo"
    DRAINING = "draining"
    DEDICATED_TIME = "dedicated-time"
    CROSSES_DEDICATED_TIME = "crosses-dedicated-time"
    NOT_ENOUGH_NODES = "not-enough-nodes"
    NODES_TOO_LOADED = "nodes-too-loaded"
    NOT_QUEUED = "not-queued"
    NOT_ENOUGH_RESOURCE = "not-enough-resource"
    """``resources_available`` of queue or server; details: resource (mem, ncpus, nodect, ...)."""
    INTERNAL_ERROR = "internal-error"
    # Ours.
    NEVER_FITS = "never-fits"
    BAD_REQUEST = "bad-request"
    JOB_HELD = "job-held"
    DEPENDENCY = "dependency"
    WAITS_FOR_TIME = "waits-for-time"
    ARRAY_SLOT_LIMIT = "array-slot-limit"
    SCHEDULING_OFF = "scheduling-off"
    NO_FREE_SLOTS = "no-free-slots"
    NO_FREE_GPUS = "no-free-gpus"
    NO_FREE_MEMORY = "no-free-memory"
    NO_EMPTY_NODES = "no-empty-nodes"
    NODES_UNUSABLE = "nodes-unusable"
    NODES_BACK_OFF = "nodes-back-off"
    JOB_BACK_OFF = "job-back-off"
    START_PENDING = "start-pending"
    START_FAILED = "start-failed"
    CYCLE_FULL = "cycle-full"
    RESERVED = "reserved"
    GUARANTEED = "guaranteed"
    """Nodes are reserved, and the start is not later than announced; details: start, expected."""
    RESERVED_FOR_OTHERS = "reserved-for-others"
    ADVANCE_RESERVATION = "advance-reservation"
    """Nodes are kept for somebody then; details: name, start, end."""
    BEYOND_LIMIT = "beyond-limit"
    """More jobs wait than are looked at in one cycle; details: limit."""
    NOT_FIRST = "not-first"
    """Strictly in order: an earlier job waits; details: job."""
    LEARNED_MEMORY = "learned-memory"
    NOT_PERMITTED = "not-permitted"
    """The QoS it asks for, or the account it names, is not open to it; details: why."""
    HARD_LIMIT = "hard-limit"
    """A limit of the settings; details: whose, limit, used, wanted."""
    SOFT_LIMIT = "soft-limit"
    """The same, of a limit that holds only while others wait whom no limit holds."""

    @property
    def is_for_good(self) -> bool:
        """Whether the job waits until it, or the cluster, is changed; the C daemon deletes such jobs."""
        return self in {Reason.NEVER_FITS, Reason.BAD_REQUEST}

    @property
    def lets_others_pass(self) -> bool:
        """Whether jobs behind it go on where a queue is served strictly in order."""
        return self.is_for_good or self in {Reason.SOFT_LIMIT, Reason.NOT_PERMITTED}


class Broken(enum.Enum):
    """Why a promise could not be kept; a closed set, for figures by cause."""

    NODE_FAILED = "node-failed"
    LIMIT = "limit"
    RESERVATION = "reservation"
    OVERRUN = "overrun"
    HELD = "held"
    NODES = "nodes"
    """Nodes are less free than was known: taken by somebody else, in a pause after failures."""
    SETTINGS = "settings"
    OUTRANKED = "outranked"
    """A job of higher priority took the place over, where the settings let it."""


# Reason: words after "Not Running: ", words in the log (where they differ).
_WORDS: dict[Reason, tuple[str, str]] = {
    Reason.QUEUE_NOT_STARTED: ("Queue not started.", "Queue not started"),
    Reason.QUEUE_NOT_EXECUTION: ("Queue not an execution queue.", "Queue not an execution queue"),
    Reason.QUEUE_IGNORED: ("Queue is configured to be ignored", ""),
    Reason.QUEUE_JOB_LIMIT: ("Queue job limit has been reached.", "Queue job limit reached"),
    Reason.SERVER_JOB_LIMIT: ("Server job limit has been reached.", "Server job limit reached"),
    Reason.SERVER_USER_LIMIT: ("User has reached server running job limit.", "Server user limit reached"),
    Reason.QUEUE_USER_LIMIT: ("User has reached queue running job limit.", "Queue user limit reached"),
    Reason.SERVER_GROUP_LIMIT: ("Group has reached server running limit.", "Server group limit reached"),
    Reason.QUEUE_GROUP_LIMIT: ("Group has reached queue running limit.", "Queue group limit reached"),
    Reason.STRICT_FIFO: ("Strict fifo order", ""),
    Reason.DRAINING: (
        "Draining system to allow starving job to run",
        "Draining system to allow starving job to run",
    ),
    Reason.DEDICATED_TIME: ("Dedicated time conflict", "Dedicated Time"),
    Reason.CROSSES_DEDICATED_TIME: (
        "Job would cross dedicated time boundry",
        "Job would not finish before dedicated time",
    ),
    Reason.NOT_ENOUGH_NODES: (
        "Not enough of the right type of nodes are available",
        "Not enough of the right type of nodes available",
    ),
    Reason.NODES_TOO_LOADED: (
        "All timesharing nodes are too loaded to run job",
        "No available node to run job",
    ),
    Reason.NOT_QUEUED: ("Job not in queued state", "Job is not in queued state"),
    Reason.NOT_ENOUGH_RESOURCE: ("Not enough {resource} available", ""),
    Reason.INTERNAL_ERROR: ("An internal scheduling error has occured", "Internal Scheduling Error"),
    Reason.NEVER_FITS: ("Job can never run here: {why}", ""),
    Reason.BAD_REQUEST: ("The request cannot be understood: {why}", ""),
    Reason.JOB_HELD: ("Job is held ({holds})", ""),
    Reason.DEPENDENCY: ("Waiting for the jobs it depends on ({depend})", ""),
    Reason.WAITS_FOR_TIME: ("Not to be started before {time}", ""),
    Reason.ARRAY_SLOT_LIMIT: ("Array slot limit of {limit} has been reached", ""),
    Reason.SCHEDULING_OFF: ("Scheduling is switched off by the administrator", ""),
    Reason.NO_FREE_SLOTS: (_NODES + " (free slots: {why})", _NODES_LOG + " (free slots: {why})"),
    Reason.NO_FREE_GPUS: (_NODES + " (free GPUs: {why})", _NODES_LOG + " (free GPUs: {why})"),
    Reason.NO_FREE_MEMORY: ("Not enough memory available", ""),
    Reason.NO_EMPTY_NODES: (_NODES + " (it wants nodes of its own)", ""),
    Reason.NODES_UNUSABLE: (_NODES + " (down, offline or silent: {why})", ""),
    Reason.NODES_BACK_OFF: (_NODES + " (they failed lately: {why})", ""),
    Reason.JOB_BACK_OFF: ("Its last start failed; tried again later ({why})", ""),
    Reason.START_PENDING: ("Its start has been asked for and is not confirmed yet", ""),
    Reason.START_FAILED: ("Its start failed: {why}", ""),
    Reason.CYCLE_FULL: ("Other jobs were started first; its turn is the next cycle", ""),
    Reason.RESERVED: ("Nodes are reserved for it; estimated start {start}", ""),
    Reason.GUARANTEED: ("Nodes are reserved for it; it starts {start} ({expected})", ""),
    Reason.RESERVED_FOR_OTHERS: ("Free nodes are kept for other jobs: {why} ({job})", ""),
    Reason.ADVANCE_RESERVATION: (
        "It would run into {name}, which keeps nodes from {start} to {end}",
        "",
    ),
    Reason.BEYOND_LIMIT: ("Too many jobs wait before it; only the first {limit} are looked at", ""),
    Reason.NOT_FIRST: ("Strictly in order: an earlier job waits ({job})", ""),
    Reason.LEARNED_MEMORY: ("Jobs like this one used more memory than is free now ({why})", ""),
    Reason.NOT_PERMITTED: ("It may not run as asked: {why}", ""),
    Reason.HARD_LIMIT: ("{whose} may have {limit} at once: {used} now, {wanted} more for this job", ""),
    Reason.SOFT_LIMIT: (
        "While others wait, {whose} may have {limit} at once: {used} now, {wanted} more for this job",
        "",
    ),
}


class _Missing(dict[str, str]):
    """Details for a sentence; a word nobody supplied reads as a dash instead of failing."""

    def __missing__(self, key: str) -> str:
        return "-"


def comment_for(reason: Reason, details: Mapping[str, str] | None = None) -> str:
    """The job comment for a reason, one line, at most :data:`COMMENT_LIMIT` characters.

    >>> comment_for(Reason.NOT_ENOUGH_RESOURCE, {"resource": "memory"})
    'Not Running: Not enough memory available'
    """
    details = details or {}
    words = _WORDS[reason][0].format_map(_Missing(details))
    if "why broken" in details:
        words += f"; put off: {details['why broken']}"
    if "no guarantee" in details:
        words += f"; no start is guaranteed: {details['no guarantee']}"
    return _one_line(_NOT_RUNNING + words)


def log_text_for(reason: Reason, details: Mapping[str, str] | None = None) -> str:
    """The text of the scheduler's log line for a reason, as the C daemon writes it."""
    words, log_words = _WORDS[reason]
    return _one_line((log_words or words).format_map(_Missing(details or {})))


def started_comment(weekday: str, month: str, day: int, hour: int, minute: int) -> str:
    """The comment of a started job, in the C daemon's form.

    >>> started_comment("Fri", "Nov", 20, 17, 8)
    'Job started on Fri Nov 20 at 17:08'
    """
    return f"Job started on {weekday} {month} {day:02d} at {hour:02d}:{minute:02d}"


def run_failure_comment(server_text: str) -> str:
    """The comment after the server refused a start, in the C daemon's form."""
    return _one_line(f"Not Running - PBS Error: {server_text}")


def _one_line(text: str) -> str:
    line = one_line(" ".join(text.split()))
    return line if len(line) <= COMMENT_LIMIT else line[: COMMENT_LIMIT - 3] + "..."
