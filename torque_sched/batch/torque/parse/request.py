"""What a job asks for, from the attributes the server keeps, and the grammar of ``nodes=``.

::

    nodes   = chunk {"+" chunk} {"#" word {":" word}}
    chunk   = (count | name) {":" word}
    word    = "ppn=" N | "gpus=" N | "mics=" N | mode | property

A single word in place of the count is a node's name or a property; only somebody who knows the nodes
can tell, so it stays :attr:`Chunk.name`. Words after ``#`` stand at the end of every chunk.

As in Torque (src/server/node_manager.c, ``proplist()``) a mode is a mode from ``gpus=`` to the end of its
chunk, in any case of letters. The last one counts, ``reseterr`` goes with any of them, and a second ``gpus=``
begins anew. Before ``gpus=``, and without it, the same word is a property.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from torque_sched.errors import ModelError, RecordError
from torque_sched.model.request import AccessPolicy, Chunk, GenericResource, Request
from torque_sched.model.units import boolean, count, duration_s, size_bytes

T = TypeVar("T")
GPU_MODES = frozenset({"exclusive_thread", "exclusive", "exclusive_process", "default", "shared"})
_WORD = re.compile(r"[^\s:+#=,]{1,255}")
_MOST_PIECES = 1_000_000
_MOST = 1_000_000_000
_FAMILY = "Resource_List."
_NAMES = (
    "nodes", "procs", "ncpus", "walltime", "cput", "mem", "pmem", "vmem", "pvmem", "gres", "host", "feature",
    "naccesspolicy", "software", "arch", "opsys", "tokens", "qos",
)  # fmt: skip
HEEDED = frozenset(_NAMES)
"""Resources of ``-l`` that mean something to us; a server may know others."""
_KEYS = tuple(_FAMILY + name for name in _NAMES)
_EXTRA_KEYS = ("node_exclusive", "x", "L_Request")


@functools.lru_cache(maxsize=4096)
def parse_nodes_spec(text: str) -> tuple[Chunk, ...]:
    """The chunks of a ``nodes=`` text.

    >>> (chunk,) = parse_nodes_spec("2:ppn=4:big:gpus=1:Shared:reseterr")
    >>> chunk.count, chunk.slots, chunk.gpus, chunk.properties, chunk.gpu_mode, chunk.resets_gpu_errors
    (2, 4, 1, ('big',), 'shared', True)

    Raises:
        RecordError: the text does not follow the grammar.
    """
    if len(text) > 100_000:
        raise RecordError(f"nodes={text[:40]}... is {len(text)} characters long")
    spec, *everywhere = text.strip().split("#")
    shared = [word for words in reversed(everywhere) for word in words.split(":") if word]
    chunks = tuple(_chunk(part.strip(), shared, text) for part in spec.split("+"))
    return _bounded(chunks, f"nodes={text[:40]}", "nodes")


def _bounded(chunks: tuple[Chunk, ...], text: str, pieces: str) -> tuple[Chunk, ...]:
    if sum(chunk.count for chunk in chunks) > _MOST_PIECES:
        raise RecordError(f"{text} asks for more than {_MOST_PIECES} {pieces}")
    return chunks


def _chunk(part: str, shared: list[str], text: str) -> Chunk:
    first, *own = part.split(":")
    is_number = first.isascii() and first.isdigit() and len(first) < 10
    is_word = not is_number and first.partition("=")[0] in _AMOUNTS
    own = [first, *own] if is_word else own
    has_gpus = any(word.startswith("gpus=") for word in [*own, *shared])
    words = [*own, *(word for word in shared if word not in {"shared", "excl"} or has_gpus)]
    numbers = dict(_AMOUNTS)
    properties: list[str] = []
    mode, resets, has_gpus = "", False, False
    for word in words:
        key, equals, value = word.partition("=")
        if equals and key in numbers and value.isascii() and value.isdigit() and len(value) < 10:
            numbers[key] = int(value)
            if key == "gpus":
                mode, resets, has_gpus = "", False, True
        elif has_gpus and word.lower() in _AFTER_GPUS:
            mode, resets = _with_mode(mode, resets, word.lower(), text)
        elif _WORD.fullmatch(word):
            properties.append(word)
        else:
            raise _bad_nodes(text, word)
    if not (is_number or is_word or _WORD.fullmatch(first)):
        raise _bad_nodes(text, first)
    if numbers["ppn"] < 1 or (is_number and int(first) < 1):
        raise _bad_nodes(text, part)
    return Chunk(
        count=int(first) if is_number else 1,
        name=None if is_number or is_word else first,
        properties=tuple(properties),
        gpu_mode=mode,
        resets_gpu_errors=resets,
        slots=numbers["ppn"],
        gpus=numbers["gpus"],
        mics=numbers["mics"],
    )


def _with_mode(mode: str, resets: bool, word: str, text: str) -> tuple[str, bool]:
    if word == "prohibited":
        raise RecordError(f"nodes={text[:80]}: the server refuses the mode 'prohibited'", cure=_MODES_CURE)
    return (mode, True) if word == "reseterr" else (word, resets)


_AFTER_GPUS = GPU_MODES | {"reseterr", "prohibited"}
_AMOUNTS = {"ppn": 1, "gpus": 0, "mics": 0}
_MODES_CURE = f"write one of {', '.join(sorted(GPU_MODES))}"


def _bad_nodes(text: str, word: str) -> RecordError:
    return RecordError(
        f"nodes={text[:80]}: {word[:40]!r} is not understood",
        cure="write COUNT_OR_NAME[:ppn=N][:PROPERTY]...[:gpus=N[:MODE]], joined by +",
    )


def parse_request(attributes: Mapping[str, str]) -> Request:
    """The request in a job's attributes. What cannot be understood goes into ``trouble``.

    Equal requests are one object: ten thousand jobs have a few hundred shapes.
    """
    values = tuple(map(attributes.get, _KEYS))
    extra = tuple(map(attributes.get, _EXTRA_KEYS))
    tasks: tuple[tuple[str, str], ...] = ()
    if extra[2] is not None or "req_information.task_count.0" in attributes:
        tasks = tuple((k, v) for k, v in attributes.items() if k.startswith("req_information."))
    return _request(values, extra, tasks)


@functools.lru_cache(maxsize=16384)
def _request(
    values: tuple[str | None, ...], extra: tuple[str | None, ...], tasks: tuple[tuple[str, str], ...]
) -> Request:
    given = {name: text for name, text in zip(_NAMES, values, strict=True) if text is not None}
    exclusive, x, l_request = extra
    reader = _Reader(given)
    return Request(
        chunks=reader.read("nodes", parse_nodes_spec, ()),
        tasks=reader.guard("-L", lambda: _tasks(dict(tasks), l_request or ""), ()),
        procs=reader.read("procs", _natural, 0),
        ncpus=reader.read("ncpus", _natural, 0),
        walltime_s=reader.read("walltime", duration_s, None),
        cput_s=reader.read("cput", duration_s, None),
        mem_bytes=reader.read("mem", size_bytes, None),
        pmem_bytes=reader.read("pmem", size_bytes, None),
        vmem_bytes=reader.read("vmem", size_bytes, None),
        pvmem_bytes=reader.read("pvmem", size_bytes, None),
        gres=reader.read("gres", _gres, ()),
        tokens=reader.read("tokens", parse_tokens, ()),
        host=given.get("host"),
        features=tuple(word for word in re.split(r"[:,]", given.get("feature", "")) if word),
        node_exclusive=reader.guard("node_exclusive", lambda: boolean(exclusive or "False"), False),
        access=_access(given.get("naccesspolicy", ""), x or ""),
        qos=_qos(given.get("qos", ""), x or ""),
        software=given.get("software", ""),
        arch=given.get("arch", ""),
        opsys=given.get("opsys", ""),
        nodes_text=given.get("nodes", ""),
        trouble="; ".join(reader.troubles),
    )


class _Reader:
    """Reads values one by one and collects what could not be read."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given
        self.troubles: list[str] = []

    def read(self, name: str, convert: Callable[[str], T], default: T) -> T:
        text = self._given.get(name)
        return default if text is None else self.guard(name, lambda: convert(text), default)

    def guard(self, name: str, call: Callable[[], T], default: T) -> T:
        try:
            return call()
        except (RecordError, ModelError) as error:
            message = error.message
            self.troubles.append(message if message.startswith(f"{name}=") else f"{name}: {message}")
            return default


def _natural(text: str) -> int:
    number = count(text)
    if not 0 <= number <= _MOST:
        raise ModelError(f"{text} is {'negative' if number < 0 else 'more than there can be'}")
    return number


def _gres(text: str) -> tuple[GenericResource, ...]:
    entries = []
    for part in re.split(r"[+,]", text):
        words = re.split(r"[:=]", part.strip())
        number = words[1] if len(words) > 1 and words[1] else "1"
        if words[0]:
            entries.append(GenericResource(words[0], _natural(number)))
    return tuple(entries)


def parse_tokens(text: str) -> tuple[tuple[str, float], ...]:
    """``name:2,other:1.5`` as the server's attribute ``tokens`` and a job's request have it.

    Raises:
        RecordError: a part is not of that form.
    """
    found = []
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, _, number = part.rpartition(":")
        try:
            amount = float(number)
        except ValueError:
            amount = -1.0
        if not name or not 0 <= amount < 1e12:
            raise RecordError(f"tokens={text[:60]}: {part[:40]!r} is not NAME:NUMBER")
        found.append((name, amount))
    return tuple(found)


def _access(policy: str, x: str) -> AccessPolicy | None:
    found = re.search(r"NACCESSPOLICY[:=]([A-Za-z]+)", x)
    word = (policy or (found.group(1) if found else "")).strip().lower()
    return next((member for member in AccessPolicy if member.value == word), None)


def _qos(qos: str, x: str) -> str:
    """The quality of service of ``-l qos=NAME``, else of ``-W x=QOS:NAME``."""
    found = re.search(r"\bQOS[:=]([^\s;,]+)", x, re.IGNORECASE)
    return qos.strip() or (found.group(1) if found else "")


def _tasks(information: Mapping[str, str], l_request: str) -> tuple[Chunk, ...]:
    """Tasks from ``req_information.NAME.N``, else from the ``L_Request`` text."""
    chunks = []
    for number in range(1000):
        prefix, suffix = "req_information.", f".{number}"
        if f"{prefix}task_count{suffix}" not in information:
            break
        words = ("task_count", "lprocs", "gpus", "memory")
        chunks.append(_task({word: information.get(f"{prefix}{word}{suffix}", "") for word in words}))
    if chunks or not l_request:
        return _bounded(tuple(chunks), "-L", "tasks")
    for text in re.split(r"\s*(?:-L\s+|;)\s*", l_request):
        pairs = (word.partition("=") for word in text.split(":"))
        given = {key: value for key, _, value in pairs}
        if "tasks" in given:
            chunks.append(_task({**given, "task_count": given["tasks"]}))
    return _bounded(tuple(chunks), f"-L {l_request[:40]}", "tasks")


def _task(given: Mapping[str, str]) -> Chunk:
    memory = given.get("memory", "")
    return Chunk(
        count=_natural(given["task_count"]),
        slots=_natural(given.get("lprocs") or "1"),
        gpus=_natural(given.get("gpus") or "0"),
        # The server keeps the number in kb and does not always say so.
        mem_bytes=size_bytes(memory + "kb" if memory.isdigit() else memory) if memory else 0,
    )
