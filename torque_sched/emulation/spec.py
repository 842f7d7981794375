"""The grammar of a node request, as Torque's server reads it at run time.

``count|name[:ppn=N][:property...][:gpus=N[:mode][:reseterr]]`` joined with ``+``; any number of ``#global``
at the end. ``proplist()`` in src/server/node_manager.c reads the words of an element.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace

GPU_MODES = {
    "default": 0,
    "shared": 0,
    "exclusive": 1,
    "exclusive_thread": 1,
    "exclusive_process": 3,
}
"""Mode word, in any case of letters, -> the integer shown as ``gpu_flags``; without one it is 1."""
_RESET_FLAG = 1000
"""What ``reseterr`` adds to ``gpu_flags``."""
_COPIED = ("exclusive_thread", "exclusive_process", "exclusive", "default", "shared")
"""The words that ``qrun -H`` copies back, in the order the server looks for them, in small letters alone."""


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
    resets_errors: bool = False
    properties: tuple[str, ...] = ()
    is_counted: bool = True
    """False when the element starts with a name instead of a number."""


@functools.lru_cache(maxsize=4096)
def parse_spec(text: str) -> tuple[Chunk, ...]:
    """Read a whole request.

    Raises:
        SpecError: an empty element, a count or an amount that is no number.
    """
    body, *everywhere = text.split("#")
    if not body or re.search(r"[\s;]", text):
        raise SpecError(f"'{text}' is no request")
    more = "".join(f":{words}" for words in reversed(everywhere) if words)
    return tuple(_chunk(element + more) for element in body.split("+"))


def gpu_flags(text: str) -> int:
    """What ``gpu_flags`` shows of a job started with this request: the last element with GPUs decides."""
    chunk = next((each for each in reversed(parse_spec(text)) if each.gpus), Chunk(1))
    return GPU_MODES.get(chunk.mode, 1) + (_RESET_FLAG if chunk.resets_errors else 0)


def with_mode(hosts: str, needs: str) -> str:
    """The list of ``qrun -H`` with the mode of the job's own request (``get_correct_spec_string()``).

    The server looks at the first element with GPUs alone, and there for words in small letters;
    ``reseterr`` is not copied.
    """
    _, found, rest = needs.partition(":gpus=")
    rest = rest.lstrip("0123456789").partition("+")[0]
    mode = next((word for word in _COPIED if found and rest.startswith(":") and word in rest), "")
    if not mode:
        return hosts
    return "+".join(f"{each}:{mode}" if ":gpus" in each else each for each in hosts.split("+"))


def _chunk(element: str) -> Chunk:
    head, *rest = element.split(":")
    if not head or not (head[0].isalnum() or head[0] == "_"):
        raise SpecError(f"no count and no name before the first colon of '{element}'")
    if head.isdigit() and not int(head):
        raise SpecError(f"'{element}' asks for nothing", is_amount=True)
    count = int(head) if head.isdigit() else 1
    if "=" in head:
        return _with_words(Chunk(count), [head, *rest], element)
    # `node3/4-5`: the server ignores the index and hands out its lowest free slot.
    names = () if head.isdigit() else (head.split("/", 1)[0],)
    return _with_words(Chunk(count, properties=names, is_counted=head.isdigit()), rest, element)


def _with_words(chunk: Chunk, words: list[str], element: str) -> Chunk:
    for word in words:
        key, sign, value = word.partition("=")
        lower = word.lower()
        if key == "mics" and sign:
            # No node here has any: as a property that none has.
            chunk = replace(chunk, properties=(*chunk.properties, word))
        elif sign:
            if key not in {"ppn", "gpus"} or not value.isdigit() or not int(value):
                raise SpecError(f"'{word}' in '{element}'", is_amount=True)
            begun = {"gpus": int(value), "mode": "", "resets_errors": False}
            chunk = replace(chunk, **(begun if key == "gpus" else {"ppn": int(value)}))
        elif chunk.gpus and lower in GPU_MODES:
            chunk = replace(chunk, mode=lower)
        elif chunk.gpus and lower == "reseterr":
            chunk = replace(chunk, resets_errors=True)
        elif not word:
            raise SpecError(f"'{word}' in '{element}'")
        else:
            # `prohibited` among them: the server refuses it with the words for a feature that no node has.
            chunk = replace(chunk, properties=(*chunk.properties, word))
    return chunk
