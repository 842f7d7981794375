"""The grammar of a node request, as Torque's server reads it at run time.

``count|name[:ppn=N][:gpus=N[:mode]][:property...]`` joined with ``+``; an optional ``#global`` at the
end.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

__all__ = ["GPU_MODES", "Chunk", "SpecError", "gpu_mode", "parse_spec"]

GPU_MODES = {
    "default": 0,
    "shared": 0,
    "exclusive": 1,
    "exclusive_thread": 1,
    "exclusive_process": 3,
    "reseterr": 4,
}
"""Mode word -> the integer shown as ``gpu_flags``. ``prohibited`` is refused, as by the real server."""


class SpecError(ValueError):
    """A request that no server would understand; ``is_amount``: only a number in it is no good."""

    def __init__(self, text: str, *, is_amount: bool = False) -> None:
        super().__init__(text)
        self.is_amount = is_amount


@dataclass(frozen=True, slots=True)
class Chunk:
    """One element of a request: `count` nodes, each with `ppn` slots, `gpus` GPUs and all `properties`."""

    count: int
    ppn: int = 1
    gpus: int = 0
    mode: str = ""
    properties: tuple[str, ...] = ()
    is_counted: bool = True
    """False when the element starts with a name instead of a number."""


@functools.lru_cache(maxsize=4096)
def parse_spec(text: str) -> tuple[Chunk, ...]:
    """Read a whole request.

    Raises:
        SpecError: an empty element, a count or an amount that is no number.
    """
    body, _, everywhere = text.partition("#")
    if not body or re.search(r"[\s;]", text):
        raise SpecError(f"'{text}' is no request")
    more = f":{everywhere}" if everywhere else ""
    return tuple(_chunk(element + more) for element in body.split("+"))


def gpu_mode(text: str) -> str:
    """The mode word of a request, or empty: what the server copies back after ``qrun -H``."""
    return next((word for word in text.replace("+", ":").split(":") if word in GPU_MODES), "")


def _chunk(element: str) -> Chunk:
    head, *rest = element.split(":")
    if not head or not (head[0].isalnum() or head[0] == "_"):
        raise SpecError(f"no count and no name before the first colon of '{element}'")
    counted = head.isdigit()
    if counted and not int(head):
        raise SpecError(f"'{element}' asks for nothing", is_amount=True)
    # `node3/4-5`: the server ignores the index and hands out its lowest free slot.
    properties = [] if counted else [head.split("/", 1)[0]]
    amounts = {"ppn": 1, "gpus": 0}
    mode = ""
    for word in rest:
        key, sign, value = word.partition("=")
        if key == "mics" and sign:
            # No node here has any: as a property that none has.
            properties.append(word)
        elif sign:
            if key not in amounts or not value.isdigit() or not int(value):
                raise SpecError(f"'{word}' in '{element}'", is_amount=True)
            amounts[key] = int(value)
        elif word in GPU_MODES and "gpus=" in element:
            mode = word
        elif not word:
            raise SpecError(f"'{word}' in '{element}'")
        else:
            properties.append(word)
    return Chunk(
        int(head) if counted else 1, amounts["ppn"], amounts["gpus"], mode, tuple(properties), counted
    )
