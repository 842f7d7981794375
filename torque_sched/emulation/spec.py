"""The grammar of a node request, as Torque's server reads it at run time.

``count|name[:ppn=N][:gpus=N[:mode]][:property...]`` joined with ``+``; an optional ``#global`` at the
end.
"""

from __future__ import annotations

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
    """A request that no server would understand."""


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


def parse_spec(text: str) -> tuple[Chunk, ...]:
    """Read a whole request.

    Raises:
        SpecError: an empty element, a count or an amount that is no number.
    """
    body = text.split("#", 1)[0]
    if not body:
        raise SpecError("an empty request")
    return tuple(_chunk(element) for element in body.split("+"))


def gpu_mode(text: str) -> str:
    """The mode word of a request, or empty: what the server copies back after ``qrun -H``."""
    return next((word for word in text.replace("+", ":").split(":") if word in GPU_MODES), "")


def _chunk(element: str) -> Chunk:
    head, *rest = element.split(":")
    if not head:
        raise SpecError(f"nothing before the first colon of '{element}'")
    counted = head.isdigit()
    # `node3/4-5`: the server ignores the index and hands out its lowest free slot.
    properties = [] if counted else [head.split("/", 1)[0]]
    amounts = {"ppn": 1, "gpus": 0}
    mode = ""
    for word in rest:
        key, sign, value = word.partition("=")
        if sign:
            if key not in amounts or not value.isdigit():
                raise SpecError(f"'{word}' in '{element}'")
            amounts[key] = int(value)
        elif word in GPU_MODES:
            mode = word
        elif not word or word == "prohibited":
            raise SpecError(f"'{word}' in '{element}'")
        else:
            properties.append(word)
    return Chunk(
        int(head) if counted else 1, amounts["ppn"], amounts["gpus"], mode, tuple(properties), counted
    )
