"""The last part of a task's reason in a simulation: which inputs it waited for, written and read again."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

_MOST_SHOWN = 6
_BEGIN = "; inputs: "
_INPUT = re.compile(
    r"(?P<parent>.+?) from (?P<machine>.+?) at (?P<ready_s>\d+(?:\.\d+)?(?:e[-+]?\d+)?)"
    r"(?:, | and \d+ earlier$|$)"
)


@dataclass(frozen=True, slots=True)
class InputArrival:
    """What a parent made on `machine` was on the task's machine at `ready_s`."""

    parent: str
    machine: str
    ready_s: float


def with_inputs(reason: str, arrivals: Collection[InputArrival]) -> str:
    """A reason that ends with the inputs, the last to come first."""
    if not arrivals:
        return reason
    last = sorted(arrivals, key=lambda each: -each.ready_s)[:_MOST_SHOWN]
    shown = ", ".join(f"{each.parent} from {each.machine} at {each.ready_s!r}" for each in last)
    more = f" and {len(arrivals) - len(last)} earlier" if len(arrivals) > len(last) else ""
    return f"{reason}{_BEGIN}{shown}{more}"


def inputs_of(reason: str) -> tuple[str, list[InputArrival]]:
    """The policy's part of a reason, and the inputs in it."""
    ours, _, inputs = reason.rpartition(_BEGIN)
    if not ours:
        return reason, []
    return ours, list(_read(inputs))


def _read(inputs: str) -> Iterator[InputArrival]:
    for match in _INPUT.finditer(inputs):
        yield InputArrival(match["parent"], match["machine"], float(match["ready_s"]))
