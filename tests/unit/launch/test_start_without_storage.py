"""A start where the cluster's storage takes nothing: it says so before it packs, which takes longest."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.unit.launch import yarn as fake
from yarn_accel.errors import StorageError
from yarn_accel.hadoop.control import retained_applications
from yarn_accel.launch import start as starting
from yarn_accel.launch.config import LaunchConfig


class NoStore:
    """As HDFS in safe mode: it can be read, and takes no changes."""

    def exists(self, uri: str) -> bool:
        return False

    def __getattr__(self, name: str):
        def refuse(uri: str, *_: object) -> None:
            raise StorageError(f"{uri}: HDFS is in safe mode", cure="wait", transient=True)

        return refuse


def test_it_is_said_before_anything_is_packed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(fake.FakeRmClient, "store", lambda _: NoStore())
    monkeypatch.setattr(starting, "pack", lambda *_: pytest.fail("it was packed"))
    rm_client = fake.rm_client(tmp_path)
    config = LaunchConfig.model_validate({"environment": {"staging_uri": f"file://{tmp_path}/staging"}})
    with pytest.raises(StorageError, match="staging: HDFS is in safe mode: wait"):
        asyncio.run(starting.start(rm_client, config, lambda _: None))
    assert not retained_applications()
