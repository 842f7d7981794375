"""What an OpenPBS job asks for, and what it holds: ``select``, ``place`` and ``exec_vnode``.

::

    select     = chunk {"+" chunk}         chunk   = [N ":"] res "=" value {":" res "=" value}
    place      = arrangement [":" sharing] [":group=" RES]
    exec_vnode = element {"+" element}     element = "(" vnode ":" res "=" value .. {"+" vnode ..} ")"

The server has merged ``default_chunk`` and ``resources_default`` into them already. Chunks become the pieces
of a `Request`. Those of ``pack`` become one piece, as all of them lie on one host; ``free`` ones may share
hosts, ``scatter`` ones do not, and neither do ``vscatter`` ones here.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from torque_sched.errors import ModelError, RecordError
from torque_sched.model.request import AccessPolicy, Chunk, GenericResource, Request
from torque_sched.model.units import count, duration_s, size_bytes

_MOST_CHUNKS = 1_000_000
_LONGEST = 100_000
_WORD = re.compile(r"([A-Za-z][\w.\-]*)=(\"[^\"]*\"|'[^']*'|[^:+\"'=;\s]*)", re.ASCII)
_ARRANGEMENTS = frozenset({"free", "pack", "scatter", "vscatter"})
_SHARINGS = frozenset({"shared", "excl", "exclhost"})
_NUMBER = re.compile(r"[0-9]{1,18}(\.[0-9]{1,9})?")
_NO_DEMAND = frozenset({"mpiprocs", "ompthreads", "nchunk"})
"""Words of a chunk that say how it runs, not where."""
_ACCESS = {
    "shared": AccessPolicy.SHARED, "excl": AccessPolicy.SINGLE_PART, "exclhost": AccessPolicy.SINGLE_JOB,
}  # fmt: skip
_PROVISIONED = frozenset({"aoe", "eoe"})
_OF_CHUNKS = frozenset(
    {
        "ncpus", "mem", "ngpus", "nodect", "nodes", "select", "place", "walltime", "cput", "mpiprocs",
        "ompthreads", "min_walltime", "max_walltime", "soft_walltime", "preempt_targets", "pcput", "pmem",
        "pvmem", "file", "nice", "software",
    }
)  # fmt: skip
"""Resources of a whole job that are sums over its chunks, or mean nothing to a scheduler's counts."""


@dataclass(frozen=True, slots=True)
class Kinds:
    """What the site's resources are: what a job of one asks is counted, or must be equal.

    Attributes:
        counted: consumable on nodes, beside ncpus, mem and ngpus.
        booleans: those that are True or False; a node without one has False.
    """

    counted: frozenset[str] = frozenset()
    booleans: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class AskedChunk:
    """A chunk of a select as written."""

    count: int
    words: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How the chunks may lie; ``group`` is the resource whose value their hosts have in common."""

    arrangement: str = "free"
    sharing: str = ""
    group: str = ""


@functools.lru_cache(maxsize=4096)
def parse_select(text: str) -> tuple[AskedChunk, ...]:
    """The chunks of a ``select``.

    >>> parse_select("2:ncpus=4:mem=8gb+1:ngpus=1")[0]
    AskedChunk(count=2, words=(('ncpus', '4'), ('mem', '8gb')))

    Raises:
        RecordError: the text does not follow the grammar, or asks for more than a million chunks.
    """
    if len(text) > _LONGEST:
        raise RecordError(f"select={text[:40]}... is {len(text)} characters long")
    chunks = []
    for part in _split(text, "+"):
        number, *words = _split(part, ":")
        if not (number.isascii() and number.isdigit() and len(number) <= 9):
            number, words = "1", [number, *words]
        pairs = [_WORD.fullmatch(word) for word in words]
        if None in pairs:
            raise RecordError(f"select={text[:80]}: {part[:40]!r} is not understood")
        named = {found.group(1): found.group(2).strip("\"'") for found in pairs if found is not None}
        chunks.append(AskedChunk(int(number), tuple(named.items())))
    n_chunks = sum(chunk.count for chunk in chunks)
    if n_chunks > _MOST_CHUNKS or any(chunk.count < 1 for chunk in chunks):
        raise RecordError(f"select={text[:80]}: {n_chunks} chunks", cure="ask for 1 to a million")
    return tuple(chunks)


def _split(text: str, separator: str) -> list[str]:
    """Split where the separator is not quoted."""
    if '"' not in text and "'" not in text:
        return text.split(separator)
    parts, quote = [""], ""
    for letter in text:
        if letter == separator and not quote:
            parts.append("")
            continue
        quote = "" if letter == quote else quote or (letter if letter in "\"'" else "")
        parts[-1] += letter
    return parts


@functools.lru_cache(maxsize=1024)
def parse_place(text: str) -> Arrangement:
    """The words of a ``place``.

    >>> parse_place("scatter:excl:group=switch")
    Arrangement(arrangement='scatter', sharing='excl', group='switch')

    Raises:
        RecordError: a word in it is unknown.
    """
    arrangement, sharing, group = "free", "", ""
    for word in text.split(":"):
        if word in _ARRANGEMENTS:
            arrangement = word
        elif word in _SHARINGS:
            sharing = word
        elif word.startswith("group=") and len(word) > len("group="):
            group = word.removeprefix("group=")
        else:
            raise RecordError(f"place={text[:80]}: {word[:40]!r} is not understood")
    return Arrangement(arrangement, sharing, group)


def amount_of(text: str, *, rounds_up: bool = True) -> int:
    """The number of a consumable resource: bytes of a size, else a count, rounded up (or down).

    Raises:
        UnitError: it is neither.
    """
    found = _NUMBER.fullmatch(text)
    if found is None:
        return size_bytes(text)
    if not found.group(1):
        return int(text)
    return math.ceil(float(text)) if rounds_up else math.floor(float(text))


def is_amount(text: str) -> bool:
    """Whether a text could be the number of a consumable resource."""
    try:
        amount_of(text)
    except ModelError:
        return False
    return True


def is_true(text: str) -> bool:
    """Whether a boolean resource is set."""
    return text.lower() in {"true", "t", "y", "yes", "1"}


def property_of(name: str, value: str, kinds: Kinds) -> str:
    """How a node's property is written that a chunk asks for by ``name=value``."""
    return f"{name}={is_true(value)}" if name in kinds.booleans else f"{name}={value}"


def request_of(given: Mapping[str, str], kinds: Kinds) -> Request:
    """What a job asks for; what cannot be understood is in `Request.trouble`.

    Args:
        given: attributes of the job.
        kinds: of the site's resources.
    """
    select, place = given.get("Resource_List.select", "1:ncpus=1"), given.get("Resource_List.place", "free")
    try:
        walltime, cput = given.get("Resource_List.walltime"), given.get("Resource_List.cput")
        return _request(
            select, place, kinds,
            None if walltime is None else duration_s(walltime), None if cput is None else duration_s(cput),
            tuple((name, text) for name, text in given.items() if name.startswith("Resource_List.")),
        )  # fmt: skip
    except (ModelError, RecordError) as error:
        return Request(nodes_text=select, trouble=error.message)


@functools.lru_cache(maxsize=8192)
def _request(
    select: str,
    place: str,
    kinds: Kinds,
    walltime_s: float | None,
    cput_s: float | None,
    of_job: tuple[tuple[str, str], ...],
) -> Request:
    how, asked = parse_place(place), parse_select(select)
    chunks = tuple(_chunk(each, kinds) for each in asked)
    in_chunks = {name for each in asked for name, _ in each.words}
    is_pack = how.arrangement == "pack" or how.group == "host"
    is_scattered = how.arrangement == "scatter" and not is_pack
    if how.arrangement == "vscatter":
        chunks = tuple(replace(chunk, on_own_part=True) for chunk in chunks)
    if is_pack:
        chunks = (_packed(chunks),)
    is_free = not is_scattered and sum(chunk.count for chunk in chunks) > 1
    gres = []
    for name, text in of_job:
        name = name.removeprefix("Resource_List.")
        if name not in _OF_CHUNKS and name not in in_chunks and is_amount(text):
            gres.append(GenericResource(name, amount_of(text)))
    return Request(
        chunks=() if is_free else chunks,
        tasks=chunks if is_free else (),
        mixes_tasks=is_free,
        is_scattered=is_scattered,
        node_group="" if is_pack else how.group,
        walltime_s=walltime_s,
        cput_s=cput_s,
        gres=tuple(gres),
        access=_ACCESS.get(how.sharing),
        nodes_text=select,
        software=dict(of_job).get("Resource_List.software", ""),
    )


def _chunk(asked: AskedChunk, kinds: Kinds) -> Chunk:
    slots, gpus, mem_bytes = 1, 0, 0
    others: list[tuple[str, int]] = []
    properties: list[str] = []
    for name, text in asked.words:
        if name == "ncpus":
            # A chunk without processors still needs a host that has one free.
            slots = max(1, count(text))
        elif name == "ngpus":
            gpus = count(text)
        elif name == "mem":
            mem_bytes = size_bytes(text)
        elif name in _PROVISIONED:
            raise RecordError(f"{name}={text[:40]}: provisioning is not supported here")
        elif name in kinds.counted:
            others.append((name, amount_of(text)))
        elif name not in _NO_DEMAND:
            properties.append(property_of(name, text, kinds))
    return Chunk(
        count=asked.count, slots=slots, gpus=gpus, mem_bytes=mem_bytes,
        properties=tuple(properties), others=tuple(sorted(others)),
    )  # fmt: skip


def _packed(chunks: tuple[Chunk, ...]) -> Chunk:
    """All of them as one piece, which lies on one host."""
    others: dict[str, int] = {}
    for chunk in chunks:
        for name, amount in chunk.others:
            others[name] = others.get(name, 0) + amount * chunk.count
    return Chunk(
        slots=sum(chunk.count * chunk.slots for chunk in chunks),
        gpus=sum(chunk.count * chunk.gpus for chunk in chunks),
        mem_bytes=sum(chunk.count * chunk.mem_bytes for chunk in chunks),
        properties=tuple(dict.fromkeys(word for chunk in chunks for word in chunk.properties)),
        others=tuple(sorted(others.items())),
        joined=chunks,
    )


@dataclass(frozen=True, slots=True)
class VnodeShare:
    """What a job holds of one vnode, for one chunk or a part of one."""

    vnode: str
    words: tuple[tuple[str, str], ...]

    def amount(self, name: str) -> int:
        """How much of a resource; 0: none."""
        text = dict(self.words).get(name)
        return 0 if text is None else amount_of(text)


@functools.lru_cache(maxsize=8192)
def parse_exec_vnode(text: str) -> tuple[tuple[VnodeShare, ...], ...]:
    """The elements of an ``exec_vnode``, each with its vnodes.

    >>> parse_exec_vnode("(n[0]:ncpus=1+n[1]:ncpus=1)")[0][1].vnode
    'n[1]'

    The last parenthesis may be missing: the server takes such an order, and shows it so (seen on 23.06.06).

    Raises:
        RecordError: the text does not follow the grammar.
        ModelError: an amount in it is impossible.
    """
    elements: list[list[VnodeShare]] = []
    is_open = False
    for part in text.split("+") if text else ():
        part = part.strip()
        begins, ends = part.startswith("("), part.endswith(")")
        vnode, *words = part[begins : len(part) - ends].split(":")
        is_paired = not begins if is_open else begins or not ends
        if not vnode or not is_paired or {"(", ")"} & set("".join([vnode, *words])):
            raise RecordError(f"exec_vnode: {part[:60]!r} is not understood")
        pairs = tuple((name, value) for name, _, value in (word.partition("=") for word in words))
        share = VnodeShare(vnode, pairs)
        if is_open:
            elements[-1].append(share)
        else:
            elements.append([share])
        is_open = (is_open or begins) and not ends
    for element in elements:
        for share in element:
            share.amount("ncpus"), share.amount("ngpus"), share.amount("mem")
    return tuple(tuple(each) for each in elements)
