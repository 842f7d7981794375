"""What a master would do is asked of the real core, and nothing is registered or ordered."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.unit.master.fake_yarn import FakeYarn, config_for
from yarn_accel.errors import ConfigError
from yarn_accel.master.cli import group
from yarn_accel.master.dry_run import preview

RACKS = {"a1": "/r1", "n1": "/r1", "n2": "/r1", "n3": "/r2"}


def written(yarn: FakeYarn, folder: Path, **settings: Any) -> Path:
    file = folder / "master.json"
    file.write_text(config_for(yarn, folder, **settings).model_dump_json())
    return file


def test_every_container_and_binding_is_reported_and_none_is_made(tmp_path: Path) -> None:
    async def act() -> tuple[dict[str, Any], FakeYarn]:
        async with FakeYarn(RACKS) as yarn:
            return await preview(written(yarn, tmp_path)), yarn

    found, yarn = asyncio.run(act())
    asked = [(each["node"], each["role"]) for each in found["containers"]]
    assert asked == [("a1", "agent"), ("a1", "server"), ("n1", "agent"), ("n2", "agent"), ("n3", "agent")]
    assert all(each["resource"]["memory-mb"] > 0 for each in found["containers"])
    assert found["bound"] == {"n1": "a1", "n2": "a1"}, "n3 has no accelerator node in its rack"
    assert not any(node.runs(role) for node in yarn.nodes.values() for role in ("serve", "agent"))
    assert not any(node.attributes for node in yarn.nodes.values())


def test_many_nodes_take_several_steps(tmp_path: Path) -> None:
    racks = {**{f"a{i}": "/r" for i in range(3)}, **{f"n{i}": "/r" for i in range(70)}}

    async def act() -> dict[str, Any]:
        async with FakeYarn(racks) as yarn:
            return await preview(written(yarn, tmp_path, policy="weighted"))

    found = asyncio.run(act())
    assert (found["policy"], len(found["containers"]), len(found["bound"])) == ("weighted", 76, 70)


def test_the_command_prints_it_and_a_wrong_plan_is_named(tmp_path: Path) -> None:
    async def act() -> str:
        async with FakeYarn(RACKS) as yarn:
            file = written(yarn, tmp_path)
            command = ["run", "--dry-run", "--config", str(file)]
            out = await asyncio.to_thread(lambda: CliRunner().invoke(group, command, catch_exceptions=False))
            (tmp_path / "plan.json").write_text("{}")
            with pytest.raises(ConfigError, match=r"plan\.json: plan: roles"):
                await preview(file)
            return out.output

    assert json.loads(asyncio.run(act()))["bound"] == {"n1": "a1", "n2": "a1"}
