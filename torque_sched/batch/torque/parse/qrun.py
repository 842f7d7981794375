"""An order by qrun: its ``-H`` argument, and its answer as one kind.

An answer is exit code and stderr of a command, or an error number of the protocol. The texts are those of
Torque 6.1.3 and 4.2.10. A refusal over the protocol is brought into the words of the commands, so that both
ways read the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from torque_sched.batch.system import OrderKind, OrderResult
from torque_sched.batch.torque.protocol import ErrorCode
from torque_sched.model.decisions import NodeShare
from torque_sched.model.request import Request
from torque_sched.model.texts import one_line

_FIRST_GPUS = re.compile(r":gpus=[0-9]*(:[^+]*)?")
_COPIED_MODE = re.compile("exclusive|default|shared")

# In this order: the first that is found decides. The texts are those of the server's error table.
_TEXTS: tuple[tuple[str, OrderKind], ...] = (
    (
        r"cannot connect to|could not connect to|Connection refused|Connection timed out",
        OrderKind.SERVER_GONE,
    ),
    (r"No route to host|End of File|Premature end of message|Communication failure", OrderKind.SERVER_GONE),
    (r"Unauthorized Request|operation not permitted", OrderKind.UNAUTHORISED),
    (r"illegally formed job identifier", OrderKind.BAD_ID),
    (r"Unknown Job I[dD]", OrderKind.UNKNOWN_JOB),
    (r"job already running", OrderKind.ALREADY_RUNNING),
    (r"Array slot limit", OrderKind.ARRAY_LIMIT),
    (r"cannot run a job array", OrderKind.ARRAY_PARENT),
    (r"non-started queue|not in an execution queue|non-execution queue", OrderKind.QUEUE_STOPPED),
    (r"job [0-9]+\[\]\S* state ", OrderKind.ARRAY_PARENT),
    (r"Request invalid for state of job", OrderKind.WRONG_STATE),
    (r"Unknown node-attribute|hostlist '\(null\)", OrderKind.NO_REQUEST),
    (r"Unknown node", OrderKind.NEVER),
    (r"Resource temporarily unavailable|exceeds currently available", OrderKind.NOT_NOW),
    (r"[Uu]sage: ?qrun", OrderKind.USAGE),
)
_COMPILED = tuple((re.compile(text), kind) for text, kind in _TEXTS)


def hosts_argument(allocation: Iterable[NodeShare], request: Request) -> str:
    """The ``-H`` argument of qrun; the first node becomes mother superior.

    qrun replaces the job's whole node request by it, so ppn and gpus are always written out.

    Args:
        allocation: the share of each node.
        request: of the job, for its words about GPUs.

    >>> asked = Request(chunks=(Chunk(gpus=1, resets_gpu_errors=True),))
    >>> hosts_argument([NodeShare(NodeName("n1"), 2, 1), NodeShare(NodeName("n2"), 2)], asked)
    'n1:ppn=2:gpus=1:reseterr+n2:ppn=2'
    """
    words = "".join(f":{word}" for word in gpu_words(request))
    return "+".join(
        f"{share.node}:ppn={share.slots}" + (f":gpus={share.gpus}{words}" if share.gpus else "")
        for share in allocation
    )


def gpu_words(request: Request) -> tuple[str, ...]:
    """The words that follow ``gpus=N`` in ``qrun -H`` so that the job keeps its mode and ``reseterr``.

    The server gives a job the words of its last chunk with GPUs. With ``-H`` it copies the mode of the
    first one alone, where that is written in small letters, behind what stands there.
    """
    last = next((chunk for chunk in reversed(request.chunks) if chunk.gpus), None)
    if last is None:
        return ()
    first = _FIRST_GPUS.search(request.nodes_text)
    is_copied = first is not None and _COPIED_MODE.search(first.group(1) or "") is not None
    mode = (last.gpu_mode,) if last.gpu_mode and not is_copied else ()
    return (*mode, "reseterr") if last.resets_gpu_errors else mode


def classify_qrun(exit_code: int, stderr: bytes | str) -> OrderResult:
    """What a finished qrun of one job means.

    >>> classify_qrun(2, "qrun: Unknown node in hostlist 'nosuch...' for job 51.head").kind
    <OrderKind.NEVER: 'never'>
    """
    text = stderr.decode("utf-8", errors="replace") if isinstance(stderr, bytes) else stderr
    line = one_line(" ".join(text.split())[:2000])
    shown = line[line.rfind("qrun: ") :].removeprefix("qrun: ")[:300] if "qrun: " in line else line[:300]
    if exit_code == 0:
        return OrderResult(OrderKind.STARTED, shown)
    kind = next((kind for pattern, kind in _COMPILED if pattern.search(line)), OrderKind.OTHER)
    return OrderResult(kind, shown or f"exit code {exit_code} without a word")


_REFUSED = 2
_HOST_CHARACTERS = 16
_UNKNOWN_NODE = "Unknown node"
_DONE = OrderResult(OrderKind.STARTED)
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


def order_result(code: int, text: str, job: str, hosts: str | None = None) -> OrderResult:
    """What became of one order; ``code`` 0 is done."""
    if not code:
        return _DONE
    return classify_qrun(_REFUSED, refusal_words(code, text, job, hosts))
