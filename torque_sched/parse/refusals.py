"""A refusal over Torque's own protocol in the words and kinds of the commands, so that both read the same."""

from __future__ import annotations

from torque_sched.core.batch_protocol import ErrorCode
from torque_sched.parse.qrun import RunKind, RunResult, classify_qrun

_REFUSED = 2
_HOST_CHARACTERS = 16
_UNKNOWN_NODE = "Unknown node"
_DONE = RunResult(RunKind.STARTED)
_WORDS = {
    ErrorCode.UNKNOWN_JOB: "Unknown Job Id Error",
    ErrorCode.INVALID: "Invalid request",
    ErrorCode.NOT_ALLOWED: "Unauthorized Request",
    ErrorCode.WRONG_STATE: "Request invalid for state of job",
    ErrorCode.DOES_NOT_FIT_NOW: "Resource temporarily unavailable",
    ErrorCode.UNKNOWN_NODE: _UNKNOWN_NODE,
    ErrorCode.JOB_NOT_FOUND: "Unknown Job Id Error",
}


def refusal_words(code: int, text: str, job: str, hosts: str | None = None) -> str:
    """What the command would have printed behind its name.

    Args:
        code: the server's error number.
        text: its words; where it sent none, those of its number.
        job: the command adds it, unless the words end with it.
        hosts: of a start: qrun has its own words for 15064, with the beginning of the list.

    >>> refusal_words(15064, "Unknown node ", "51.head", "node1:ppn=3+node2:ppn=3")
    "Unknown node in hostlist 'node1:ppn=3+node...' for job 51.head"
    """
    words = " ".join(text.split()) or _known_words(code)
    if hosts is not None and code == ErrorCode.UNKNOWN_NODE and words.startswith(_UNKNOWN_NODE):
        return f"{_UNKNOWN_NODE} in hostlist '{(hosts or '(null)')[:_HOST_CHARACTERS]}...' for job {job}"
    return words if words.endswith(job) else f"{words} {job}"


def _known_words(code: int) -> str:
    known = {int(number): words for number, words in _WORDS.items()}
    return known.get(code, f"error {code} without a word")


def order_result(code: int, text: str, job: str, hosts: str | None = None) -> RunResult:
    """What became of one order; ``code`` 0 is done."""
    if not code:
        return _DONE
    return classify_qrun(_REFUSED, refusal_words(code, text, job, hosts))
