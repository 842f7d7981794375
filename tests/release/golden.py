"""What later releases must read, as this one writes it: ``python -m tests.release.golden FOLDER``.

`tests/unit/test_compatibility.py` holds every later tree to these files, so a release writes them once, into
``tests/golden/release-X.Y``, and they are never written again:

- ``public.json``: the client's API, the commands with their options, the settings, the metrics with their
  labels, and the numbers of the formats below;
- ``frames.json``: a message of every kind of the wire protocol, its bytes and its fields;
- ``tasks.journal``: the journal of a task service in which applications, attempts and workers came and went;
- ``cycles.jsonl``: cycles of torque-sched as its journal has them;
- ``history.sql``: its history file, as SQL.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

import yarn_accel.client
from docs.reference import commands_of, fields_of, metric_families, settings_models
from tests.fixtures.torque_worlds import World as TorqueWorld
from tests.fixtures.torque_worlds import lived
from tests.unit.core.tasks.service.policies import RestlessPolicy
from tests.unit.core.tasks.service.world import SETTINGS, World, app
from tests.unit.torque.learn.test_store import balance, ended
from tests.unit.wire.test_codec import EXAMPLES
from torque_sched import cli as torque_cli
from torque_sched.daemon import journal_form
from torque_sched.grid.handshake import messages as grid_messages
from torque_sched.learn import schema
from torque_sched.learn.rows import CycleFacts, Use
from torque_sched.learn.store import Store
from yarn_accel import cli as yarn_cli
from yarn_accel import wire
from yarn_accel.client import binding


def public() -> dict[str, Any]:
    """All of it, as JSON has it."""
    return {
        "formats": {
            "wire": wire.VERSION,
            "binding": binding.VERSION,
            "cycles journal": journal_form.VERSION,
            "history": schema.VERSION,
            "messages between sites": grid_messages.VERSION,
        },
        "client": {name: dict(_members(name)) for name in sorted(yarn_accel.client.__all__)},
        "commands": {
            program: dict(_options(root))
            for program, root in (("yarn-accel", yarn_cli.root), ("torque-sched", torque_cli.main))
        },
        "settings": {
            f"{page}: {heading}": sorted(key for key, _ in fields_of(model))
            for page, parts in settings_models().items()
            for heading, (_, model) in parts.items()
        },
        "metrics": {
            family.name: [family.type, *family._labelnames]
            for families in metric_families().values()
            for family in families
        },
    }


def _members(name: str) -> Iterator[tuple[str, list[str]]]:
    """A public name's callables, each with the parameters that can be given; "name=": it has a default."""
    found = getattr(yarn_accel.client, name)
    if not callable(found):
        return
    if not inspect.isclass(found):
        yield "", _parameters(found)
        return
    for member, value in inspect.getmembers(found):
        if member.startswith("_") or (issubclass(found, tuple) and hasattr(tuple, member)):
            continue
        if issubclass(found, BaseException) and hasattr(Exception, member):
            continue
        yield member, _parameters(value) if callable(value) else []


def _parameters(function: Any) -> list[str]:
    return [
        {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(each.kind, "")
        + each.name
        + ("" if each.default is inspect.Parameter.empty else "=")
        for each in inspect.signature(function).parameters.values()
        if each.name != "self"
    ]


def _options(root: click.Command) -> Iterator[tuple[str, list[str]]]:
    """Of every command its options, and its arguments in capitals; "!" is before what must be given."""
    for path, command, _ in commands_of(root, ("",), None):
        found = (
            ("!" if each.required else "") + (opt if isinstance(each, click.Option) else opt.upper())
            for each in command.params
            for opt in (*each.opts, *each.secondary_opts)
        )
        yield " ".join(path[1:]), sorted(found)


def said_by(message: Any) -> dict[str, str]:
    """A message's name, and its fields as Python writes them."""
    names = getattr(message, "_fields", None) or inspect.signature(type(message)).parameters
    fields = {name: repr(getattr(message, name)) for name in names}
    return {"": type(message).__name__, **fields}


def frames() -> list[dict[str, Any]]:
    """A message of every kind: what is sent for it, and what was said."""
    sent = []
    for message in EXAMPLES:
        kind, varying_bytes, header, payload_bytes = wire.messages.encode(message)
        said = {"kind": kind, "varying_bytes": varying_bytes, "header": bytes(header).hex()}
        sent.append({**said, "payload_bytes": payload_bytes, "says": said_by(message)})
    return sent


def tasks_journal() -> bytes:
    """The journal of a task service whose master died twice, with one application still open."""
    world = World(RestlessPolicy, seed=4, settings=dataclasses.replace(SETTINGS, compact_records=60))
    for number in range(3):
        world.submit(app(f"app{number}", 8, output=f"hdfs:///out/{number}"))
        world.run(6)
        world.kill_master()
    world.submit(app("open", 5, chain={1: [0], 2: [0]}))
    world.run(2)
    return world.disk


def cycles() -> str:
    """Six cycles of torque-sched, a line each."""
    world = TorqueWorld(7, "conservative", "projected")
    lines = [
        journal_form.line_of(report, number, config, world.c_texts, mode="serve", cause="timer")
        for number, (config, report, _) in enumerate(lived(world, 6), 1)
    ]
    return "".join(json.dumps(line) + "\n" for line in lines)


def history() -> str:
    """A history file with two jobs that ended and one that runs, as SQL."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "history.sqlite")
        store = Store(path)
        key = ("3.head", 5.0)
        use = {(key, "n1"): Use(3, 50.0, 4.5, 1e9, 0.5, 1e8, True, False)}
        store.record(
            CycleFacts((ended(1), ended(2)), use, {("3.head", 5.0): "said"}, balance(7.0), now_s=60.0)
        )
        store.close()
        db = sqlite3.connect(path)
        version = db.execute("PRAGMA user_version").fetchone()[0]
        lines = [*db.iterdump(), f"PRAGMA user_version = {version};"]
        db.close()
    return "\n".join(lines) + "\n"


def main(folder: str) -> None:
    """Write all files into a new folder."""
    place = Path(folder)
    place.mkdir(parents=True)
    for name, values in (("public", public()), ("frames", frames())):
        text = json.dumps(values, indent=1, sort_keys=True)
        (place / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    (place / "tasks.journal").write_bytes(tasks_journal())
    (place / "cycles.jsonl").write_text(cycles(), encoding="utf-8")
    (place / "history.sql").write_text(history(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
