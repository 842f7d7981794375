"""Node requests: their grammar as Torque's server reads it, and where the server itself would put a job.

``count|name[:ppn=N][:property...][:gpus=N[:mode][:reseterr]]`` joined with ``+``; any number of ``#global``
at the end. ``proplist()`` in src/server/node_manager.c reads the words of an element. The server places by
first fit in nodes-file order, lowest free slots and GPUs first.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from torque_sched.emulation.model import EmulatedJob, EmulatedNode
from torque_sched.emulation.world import World

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


class NeverFits(Exception):
    """The request can never be met (or cannot be read): ``Unknown node in hostlist`` and the like."""


class NotNow(Exception):
    """It would fit on an empty cluster: ``Resource temporarily unavailable``."""

    def __init__(self, requested: int, available: int) -> None:
        super().__init__(f"{requested} requested, {available} available")
        self.requested = requested
        self.available = available


@dataclass(frozen=True, slots=True)
class Placement:
    """Slots and GPUs per element of the request, in the order of the request."""

    slots: tuple[tuple[str, list[int]], ...]
    gpus: tuple[tuple[str, int], ...]


def can_ever_fit(world: World, text: str, *, at_submission: bool = False) -> tuple[Chunk, ...]:
    """The parsed request, if the cluster could ever hold it.

    Raises:
        NeverFits: unreadable, an unknown property, or more than the nodes have.
    """
    try:
        chunks = parse_spec(text)
    except SpecError as error:
        raise NeverFits(str(error)) from error
    single = len(chunks) == 1 and not chunks[0].is_counted
    if (
        single
        and not at_submission
        and not world.settings.is_old
        and chunks[0].properties[0] not in world.nodes
    ):
        # Seen on 6.1.3: a request of one element that starts with a letter is taken for a host name.
        raise NeverFits(f"no node is called {chunks[0].properties[0]}")
    for chunk in chunks:
        fitting = (node for node in _candidates(world, chunk) if _has(node, chunk))
        if sum(1 for _ in itertools.islice(fitting, chunk.count)) < chunk.count:
            raise NeverFits(text)
    return chunks


def find_placement(world: World, job: EmulatedJob, text: str) -> Placement:
    """Where ``text`` goes now.

    Raises:
        NeverFits: not even on an empty cluster.
        NotNow: nodes are full, down, offline or reserved.
    """
    chunks = can_ever_fit(world, text)
    taken_slots: dict[str, list[int]] = {}
    taken_gpus: dict[str, list[int]] = {}
    slots: list[tuple[str, list[int]]] = []
    gpus: list[tuple[str, int]] = []
    exclusive = job.attributes.get("node_exclusive") == "True"
    for chunk in chunks:
        found = 0
        begin, begin_gpus = len(slots), len(gpus)
        for node in _candidates(world, chunk):
            if found == chunk.count:
                break
            if not _has(node, chunk) or not _is_usable(world, node, exclusive and not world.settings.is_old):
                continue
            free = _free(world, node.name, taken_slots)
            free_gpus = [
                index
                for index, holder in enumerate(world.gpu_slots[node.name])
                if holder is None and index not in taken_gpus.get(node.name, ())
            ]
            if len(free) < chunk.ppn or len(free_gpus) < chunk.gpus:
                continue
            taken_slots.setdefault(node.name, []).extend(free[: chunk.ppn])
            taken_gpus.setdefault(node.name, []).extend(free_gpus[: chunk.gpus])
            slots.append((node.name, free[: chunk.ppn]))
            # Seen on 6.1.3: lowest free indices are taken, but listed from the highest down.
            gpus.extend((node.name, index) for index in reversed(free_gpus[: chunk.gpus]))
            found += 1
        if not world.settings.is_old:
            # Seen on 6.1.3: the nodes of one element are listed from the last to the first.
            slots[begin:] = reversed(slots[begin:])
            gpus[begin_gpus:] = _by_node(gpus[begin_gpus:])
        if found < chunk.count:
            raise NotNow(sum(each.count for each in chunks), len(slots))
    if world.settings.is_old:
        slots = _as_listed_by_old(world, slots)
    return Placement(tuple(slots), tuple(gpus))


def _as_listed_by_old(world: World, slots: list[tuple[str, list[int]]]) -> list[tuple[str, list[int]]]:
    """Seen on 4.2.10: in nodes-file order, but all behind the first from the last to the first."""
    order = list(world.nodes)
    first, *rest = sorted(slots, key=lambda pair: order.index(pair[0]))
    return [first, *reversed(rest)]


def _by_node(gpus: list[tuple[str, int]]) -> list[tuple[str, int]]:
    names = list(dict.fromkeys(name for name, _ in gpus))
    return [pair for name in reversed(names) for pair in gpus if pair[0] == name]


def _candidates(world: World, chunk: Chunk) -> Iterable[EmulatedNode]:
    if not chunk.is_counted and chunk.properties[0] in world.nodes:
        return [world.nodes[chunk.properties[0]]]
    return world.nodes.values()


def _has(node: EmulatedNode, chunk: Chunk) -> bool:
    if node.np < chunk.ppn or node.gpus < chunk.gpus:
        return False
    return all(name == node.name or name in node.properties for name in chunk.properties)


def _is_usable(world: World, node: EmulatedNode, exclusive: bool) -> bool:
    if node.offline or world.is_down(node):
        return False
    standing = world.jobs_on(node.name)
    if exclusive and standing:
        return False
    return not any(world.jobs[name].attributes.get("node_exclusive") == "True" for name in standing)


def _free(world: World, name: str, taken: dict[str, list[int]]) -> list[int]:
    blocked = set(taken.get(name, ())) | world.leaked.get(name, set())
    return [i for i, holder in enumerate(world.slots[name]) if holder is None and i not in blocked]
