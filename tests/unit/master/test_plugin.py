"""A master without a task service: it serves agents and people, and loads nothing of tasks and DAGs."""

import json
import subprocess
import sys

import pytest

from yarn_accel.errors import ConfigError
from yarn_accel.master.config import SOME_MANAGERS, parse_config
from yarn_accel.master.tasks.settings import TaskSettings

APPLICATION_OF_ACCELERATORS = """
import asyncio, json, sys
from pathlib import Path
from tests.unit.master.fake_yarn import FakeYarn, rig

async def work():
    async with FakeYarn({"a1": "/r1", "w1": "/r1"}) as yarn, rig(yarn, Path(sys.argv[1])) as all_:
        await all_.until("the first bindings", lambda: all_.bound() == {"w1": "a1"})
        late = {"apps": {"ann/job": [1, 1, 2.0]}, "figures": [], "figures_seen": [0, 0], "identifiers": ["x"]}
        beat = {"node": "w1", "version": 1, "devices": [], "epoch": 1, "late_binding": late}
        answer = await all_.master._agents.heartbeat("agent:w1", beat)
        assert "apps" in answer["late_binding"], answer
        for path in ("/", "/v1/state", "/metrics", "/healthz"):
            status, text = await all_.get(path)
            assert status == 200, (path, text)
            assert "Applications of tasks" not in text
        try:
            await all_.control("tasks-status")
        except Exception as error:
            assert "runs without a task service" in str(error), error
        else:
            raise AssertionError("answered")

asyncio.run(work())
print(json.dumps(sorted(sys.modules)))
"""
OF_TASKS = (
    "yarn_accel.core.tasks",
    "yarn_accel.core.dags",
    "yarn_accel.dags",
    "yarn_accel.master.tasks",
    "yarn_accel.tasks",
    "yarn_accel.worker",
)


def test_an_application_of_accelerators_loads_nothing_of_tasks(tmp_path):
    argv = [sys.executable, "-c", APPLICATION_OF_ACCELERATORS, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout.splitlines()[-1])
    assert "yarn_accel.master.metrics" in loaded
    assert "yarn_accel.master.page" in loaded
    assert [name for name in loaded if name.startswith(OF_TASKS)] == []


def test_the_settings_of_tasks_are_checked_with_the_others():
    config = parse_config({**SOME_MANAGERS, "tasks": {"cores": 2, "more_sizes": [{"role": "worker-big"}]}})
    assert isinstance(config.tasks, TaskSettings)
    assert [each.role for each in config.tasks.sizes()] == ["worker", "worker-big"]
    assert parse_config({**SOME_MANAGERS, "tasks": None}).tasks is None
    assert config.model_dump(mode="json")["tasks"]["cores"] == 2


@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        ({"cores": 0}, "tasks.cores: must be at least 1, not 0"),
        ({"core": 1}, "tasks.core: unknown key; known: accounting_uri, bandwidth_bytes_per_s, cores, "),
        ({"more_sizes": [{"gpus": -1}]}, "tasks.more_sizes.0.gpus: must be at least 0, not -1"),
        ({"policy": "best"}, "tasks: policy: "),
        ([], "tasks: must be a mapping of keys to values, not []"),
    ],
)
def test_a_fault_in_the_settings_of_tasks_names_its_place(tasks, words):
    with pytest.raises(ConfigError) as caught:
        parse_config({**SOME_MANAGERS, "tasks": tasks})
    assert words in str(caught.value)
