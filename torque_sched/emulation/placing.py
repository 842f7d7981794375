"""Where the server itself would put a job: first fit in nodes-file order, lowest free slots and GPUs
first."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from torque_sched.emulation.model import EmulatedJob, EmulatedNode
from torque_sched.emulation.spec import Chunk, SpecError, parse_spec
from torque_sched.emulation.world import World


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
