"""The state on disk: a snapshot and the changes since, one line per command, and the jobs' scripts.

A killed server reads both back. A line is written with one ``write`` before the client hears of the change,
so an answer to a client is never lost when the server is killed; but a start in the background is, as with
real servers, done and written after its client's answer. It is not flushed to the disk: a power cut may lose
the last seconds. Generations: ``snapshot.json`` names the journal that follows it, and is replaced by
renaming.

The script of a job is ``server_priv/jobs/JOB.SC`` as well, as real servers of Torque keep it.
"""

from __future__ import annotations

import functools
import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torque_sched.emulation.model import (
    EmulatedJob,
    EmulatedNode,
    EmulatedObject,
    EmulatedQueue,
    from_record,
    to_record,
)
from torque_sched.emulation.world import Settings, World

_COMPACT_BYTES = 64 * 1024 * 1024
_ENCODER = json.JSONEncoder(separators=(",", ":"), check_circular=False)
_KINDS = {"job": EmulatedJob, "queue": EmulatedQueue, "node": EmulatedNode, "object": EmulatedObject}


def is_openpbs(directory: Path) -> bool:
    """Whether the state under ``directory`` is that of an emulated OpenPBS."""
    record = json.loads((directory / "snapshot.json").read_text(encoding="utf-8"))
    return Settings(**record["settings"]).is_openpbs


class Journal:
    """Reads and writes the state under one directory.

    Args:
        directory: the ``state`` folder; accounting goes to ``server_priv/accounting`` in it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._generation = 0
        self._file = -1
        self._size = 0
        self._accounting = directory / "server_priv" / "accounting"
        self._open_day = ("", -1)
        self._server: dict[str, Any] = {}
        """The server's record as last written."""

    def load(self) -> World:
        """The world as last committed, with everything derived built anew."""
        text = (self._directory / "snapshot.json").read_text(encoding="utf-8")
        snapshot = json.loads(text)
        self._generation = snapshot["generation"]
        settings = snapshot["settings"]
        settings["listeners"] = tuple(settings["listeners"])
        settings["admins"] = tuple(settings["admins"])
        world = World(Settings(**settings))
        _apply(world, snapshot)
        last: dict[str, Any] = {}
        path = self._journal_path()
        if path.exists():
            for line in path.read_bytes().split(b"\n")[:-1]:
                last = json.loads(line)
                _apply(world, last)
        self._repair_accounting(last)
        for node in world.nodes.values():
            world.slots[node.name] = [None] * node.np
            world.gpu_slots[node.name] = [None] * node.gpus
        for job in world.jobs.values():
            if job.state in "RE":
                world.occupy(job)
        if world.settings.is_old:
            # Seen on 4.2.10: a server that starts knows the slots of its jobs, and not their GPUs.
            for name, table in world.gpu_slots.items():
                world.gpu_slots[name] = [None] * len(table)
        world.dirty.clear()
        self.compact(world)
        return world

    def compact(self, world: World) -> None:
        """Write a snapshot and begin an empty journal."""
        self._generation += 1
        record = _whole(world)
        record["generation"] = self._generation
        record["settings"] = asdict(world.settings)
        old = self._file
        temporary = self._directory / "snapshot.json.new"
        temporary.write_text(json.dumps(record), encoding="utf-8")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(self._journal_path(), flags, 0o644)
        self._size = 0
        temporary.replace(self._directory / "snapshot.json")
        if old >= 0:
            os.close(old)
        for path in self._directory.glob("journal.*.jsonl"):
            if path != self._journal_path():
                path.unlink()

    def commit(self, world: World) -> None:
        """Write what changed since the last commit, and its accounting records."""
        if not world.dirty and not world.records and not world.altered:
            return
        record: dict[str, Any] = {"now_s": world.now_s}
        for kind in _KINDS:
            table = _table(world, kind)
            changed = world.dirty.get(kind)
            if changed:
                record[kind] = {key: to_record(table[key]) if key in table else None for key in changed}
        whole = world.dirty.get("job", ())
        record["attributes"] = {
            key: {name: world.jobs[key].attributes[name] for name in names}
            for key, names in world.altered.items()
            if key not in whole
        }
        if "server" in world.dirty or "job" in world.dirty:
            # Most of what happens to jobs changes nothing of it.
            server = _server_record(world)
            if server != self._server:
                record["server"] = self._server = server
        text = ""
        if world.records:
            day, _ = _moment(int(world.records[0][0]))
            text = "".join(f"{_moment(int(at_s))[1]};{line}\n" for at_s, line in world.records)
            record["accounting"] = {"file": day, "at": os.fstat(self._day(day)).st_size, "text": text}
        line = _ENCODER.encode(record).encode() + b"\n"
        os.write(self._file, line)
        if text:
            self._account(record["accounting"])
        world.dirty.clear()
        world.altered.clear()
        world.records.clear()
        self._size += len(line)
        if self._size > _COMPACT_BYTES:
            self.compact(world)

    def _journal_path(self) -> Path:
        return self._directory / f"journal.{self._generation}.jsonl"

    def _account(self, entry: dict[str, Any]) -> None:
        os.write(self._day(entry["file"]), entry["text"].encode("utf-8", "surrogateescape"))

    def _day(self, name: str) -> int:
        """The accounting file of a day, kept open."""
        if self._open_day[0] != name:
            if self._open_day[1] >= 0:
                os.close(self._open_day[1])
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._open_day = (name, os.open(self._accounting / name, flags, 0o644))
        return self._open_day[1]

    def _repair_accounting(self, last: dict[str, Any]) -> None:
        """Only the newest line can have lost its records: write them again at their place."""
        entry = last.get("accounting")
        if entry:
            path = self._accounting / entry["file"]
            path.touch()
            os.truncate(path, min(path.stat().st_size, entry["at"]))
            self._account(entry)


@functools.lru_cache(maxsize=64)
def _moment(at_s: int) -> tuple[str, str]:
    """The accounting file of a second, and the second as its lines have it."""
    at = time.localtime(at_s)
    return time.strftime("%Y%m%d", at), time.strftime("%m/%d/%Y %H:%M:%S", at)


def _table(world: World, kind: str) -> dict[str, Any]:
    tables: dict[str, dict[str, Any]] = {
        "job": world.jobs, "queue": world.queues, "node": world.nodes, "object": world.objects,
    }  # fmt: skip
    return tables[kind]


def _server_record(world: World) -> dict[str, Any]:
    return {
        "attributes": dict(world.server),
        "next_job": world.next_job,
        "next_rank": world.next_rank,
        "assigned": list(world.assigned),
    }


def _whole(world: World) -> dict[str, Any]:
    return {
        "now_s": world.now_s,
        "server": _server_record(world),
        "queue": {key: to_record(value) for key, value in world.queues.items()},
        "node": {key: to_record(value) for key, value in world.nodes.items()},
        "job": {key: to_record(value) for key, value in world.jobs.items()},
        "object": {key: to_record(value) for key, value in world.objects.items()},
    }


def _apply(world: World, record: dict[str, Any]) -> None:
    world.now_s = max(world.now_s, record["now_s"])
    for kind in _KINDS:
        table = _table(world, kind)
        for key, value in record.get(kind, {}).items():
            if value is None:
                table.pop(key, None)
            else:
                table[key] = from_record(_KINDS[kind], value)
    for key, values in record.get("attributes", {}).items():
        world.jobs[key].attributes.update(values)
    server = record.get("server")
    if server:
        world.server = dict(server["attributes"])
        world.next_job, world.next_rank = server["next_job"], server["next_rank"]
        world.assigned = list(server["assigned"])


class ScriptFiles:
    """The script files of one server; those of jobs it has forgotten go.

    Args:
        folder: made when it is missing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._place = str(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._kept = {path.name.removesuffix(".SC") for path in folder.glob("*.SC")}

    def keep(self, world: World, job_id: str) -> None:
        """Write the script of a job that was just submitted; readable for its owner alone."""
        job = world.jobs.get(job_id)
        if job is None:
            return
        # Plain system calls: this stands between a qsub and its answer.
        temporary = f"{self._place}/.{job_id}.new"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, job.script.encode("utf-8", "surrogateescape"))
        finally:
            os.close(fd)
        os.rename(temporary, f"{self._place}/{job_id}.SC")  # noqa: PTH104 -- see above
        self._kept.add(job_id)

    def tidy(self, world: World) -> None:
        """Remove those of jobs that are gone."""
        for job_id in [each for each in self._kept if each not in world.jobs]:
            (self._folder / f"{job_id}.SC").unlink(missing_ok=True)
            self._kept.discard(job_id)
