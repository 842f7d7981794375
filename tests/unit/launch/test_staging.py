import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from tests.unit.launch.yarn import rm_client
from yarn_accel.adapters.journal_file import StoredJournal
from yarn_accel.errors import ConfigError
from yarn_accel.launch.config import LaunchConfig, load_launch_config
from yarn_accel.launch.container_entry import NODE_KEYS
from yarn_accel.launch.staging import (
    check_settings,
    master_document,
    server_document,
    stage,
    stage_dry_run,
    task_document,
    worker_document,
)
from yarn_accel.master.config import journal_uri
from yarn_accel.master.config import load_config as load_master
from yarn_accel.master.credentials import worker_name
from yarn_accel.master.environment import parse_plan
from yarn_accel.master.tasks.settings import TaskSettings
from yarn_accel.node.config import load_config as load_agent
from yarn_accel.pipeline.config import PipelineConfig
from yarn_accel.storage import Store
from yarn_accel.worker.config import load_worker_config

APPLICATION = "application_1700000000000_0001"


def config(tmp_path, **sections):
    staging = {"environment": {"staging_uri": f"file://{tmp_path}/staging"}}
    return LaunchConfig.model_validate({**staging, **sections})


@pytest.fixture
def ours(tmp_path):
    return rm_client(tmp_path)


def content(uri):
    return Path(urlsplit(uri).path)


def test_every_role_finds_what_its_command_names(ours, packed, tmp_path):
    staged = stage(ours, Store(), config(tmp_path), packed, APPLICATION)
    assert staged.folder_uri == f"file://{tmp_path}/staging/applications/{APPLICATION}"
    assert set(staged.plan.roles) == {"master", "server", "agent"}
    for role in staged.plan.roles.values():
        names = {resource.name for resource in role.resources}
        if role.name == "master":
            assert len(names) == 2, "nothing that is not on the node already, so no localizer is needed"
            names |= staged.delivered.keys()
        words = role.command.replace("'", "").split()
        assert {word for word in words if word.endswith((".yaml", ".json", ".zip", ".py"))} <= names
        for resource in role.resources:
            path = content(resource.uri)
            assert path.stat().st_size == resource.n_bytes
            assert path.stat().st_mtime_ns // 1_000_000 == resource.modified_ms
    assert staged.delivered["plan.json"] == staged.plan.to_json()


def test_the_documents_are_what_their_readers_take(ours, packed, tmp_path):
    sections = {
        "app": {"name": "mine"},
        "master": {"settings": {"accelerator_nodes": ["w1"], "policy": "weighted"}},
        "agent": {"settings": {"hot_celsius": 80.0}},
        "pipeline": {"pool_bytes": 64 << 20, "queue_bytes": 1 << 20, "max_request_bytes": 1 << 20},
    }
    staged = stage(ours, Store(), config(tmp_path, **sections), packed, APPLICATION)
    files = {each.name: content(each.uri) for role in staged.plan.roles.values() for each in role.resources}
    (tmp_path / "master.json").write_text(staged.delivered["master.json"])
    master = load_master(tmp_path / "master.json")
    assert (master.accelerator_nodes, master.policy, master.application_name) == (("w1",), "weighted", "mine")
    assert (master.rm_client, master.user) == (("rm:8032",), "alice")
    agent = load_agent(files["agent.yaml"], {"NM_HOST": "w1"})
    assert (agent.hot_celsius, agent.rm_urls) == (80.0, ("http://10.0.0.1:8088",))
    document = json.loads(files["pipeline.json"].read_text())
    assert PipelineConfig.model_validate(document["server"]).pool_bytes == 64 << 20
    assert document["agent"] == {"hot_celsius": 80.0}


def test_a_task_service_has_a_journal_before_its_first_master(ours, packed, tmp_path):
    """So a later one that finds none knows that it was lost."""
    staged = stage(ours, Store(), config(tmp_path), packed, APPLICATION)
    folder = journal_uri(staged.folder_uri)
    assert not Store().exists(folder)
    stage(ours, Store(), config(tmp_path, worker={"enabled": True}), packed, APPLICATION)
    assert StoredJournal(Store(), folder, 2).read() == b""


def test_a_node_finds_all_settings_of_a_server_but_its_own(tmp_path):
    server = server_document(config(tmp_path, pipeline={"name": "mine", "queue_bytes": 1 << 29}))["server"]
    missing = PipelineConfig.model_fields.keys() - server.keys()
    assert missing == NODE_KEYS - {"name"}
    assert (server["name"], server["queue_bytes"]) == ("mine", 1 << 29)


def test_a_server_gets_the_default_filesystem_unless_it_is_set(tmp_path):
    def default_fs(**pipeline):
        return server_document(config(tmp_path, pipeline=pipeline), "hdfs://nn:8020")["server"]["default_fs"]

    assert default_fs() == "hdfs://nn:8020"
    assert default_fs(default_fs="hdfs://mine") == "hdfs://mine"
    assert server_document(config(tmp_path), "file:///")["server"]["default_fs"] == ""


@pytest.mark.parametrize(
    ("pipeline", "expected"), [({}, ["hdfs://ns2"]), ({"hdfs_servers": ["hdfs://ns3"]}, ["hdfs://ns3"])]
)
def test_jobs_users_may_name_what_the_application_has_tokens_for(tmp_path, pipeline, expected):
    server = server_document(config(tmp_path, pipeline=pipeline), servers=("hdfs://ns2",))["server"]
    assert server["hdfs_servers"] == expected


@pytest.mark.parametrize(
    ("here", "found"), [("hdfs://10.0.0.1:8020", "hdfs://10.0.0.1:8020"), ("file:///", "")]
)
def test_masters_and_workers_get_hdfs_as_it_is_known_here(tmp_path, here, found):
    """Tokens name it so, and nodes may call it otherwise."""
    ours = rm_client(tmp_path, **{"fs.defaultFS": here})
    settings = config(tmp_path, worker={"enabled": True})
    assert master_document(ours, settings, "hdfs://nn/x")["default_fs"] == found
    assert worker_document(ours, settings, settings.worker)["default_fs"] == found


@pytest.mark.parametrize(("workers", "vcores", "expected"), [(0, 3, 3), (5, 3, 5), (None, 2, 2)])
def test_a_server_has_the_workers_its_container_was_sized_for(tmp_path, workers, vcores, expected):
    pipeline = {} if workers is None else {"workers": workers}
    settings = config(tmp_path, server={"vcores": vcores}, pipeline=pipeline)
    assert server_document(settings)["server"]["workers"] == expected


def test_no_secret_is_in_any_file(ours, packed, tmp_path):
    staged = stage(ours, Store(), config(tmp_path), packed, APPLICATION)
    texts = [path.read_bytes() for path in (tmp_path / "staging").rglob("*") if path.is_file()]
    assert len(texts) == 5
    assert not any(b"ab" * 32 in text for text in texts)
    assert not any("ab" * 32 in text for text in staged.delivered.values())


def test_a_rehearsal_writes_nothing(ours, packed, tmp_path):
    def facts(staged):
        roles = staged.plan.roles.items()
        return {name: (role.command, [each.name for each in role.resources]) for name, role in roles}

    rehearsed = stage_dry_run(ours, config(tmp_path), packed)
    assert not (tmp_path / "staging").exists()
    assert facts(rehearsed) == facts(stage(ours, Store(), config(tmp_path), packed, APPLICATION))


@pytest.mark.parametrize(
    ("sections", "complaint"),
    [
        ({"master": {"settings": {"polcy": "paper"}}}, "polcy"),
        ({"master": {"settings": {"policy": "best"}}}, "best"),
        ({"agent": {"settings": {"hot": 1}}}, "hot"),
    ],
)
def test_settings_of_master_and_agents_are_checked_before(ours, tmp_path, sections, complaint):
    check_settings(ours, config(tmp_path))
    with pytest.raises(ConfigError, match=complaint):
        check_settings(ours, config(tmp_path, **sections))


def sizes(**more):
    first = {"enabled": True, "vcores": 2, "memory_mib": 1024}
    second = {"size": "large", "vcores": 6, "gpus": 2, "memory_mib": 8192, "priority": 31, **more}
    return LaunchConfig.model_validate({"worker": [first, second], "tasks": {"max_workers": 9}})


def test_each_size_of_workers_has_a_role_a_file_and_a_row_of_the_task_service():
    config = sizes(max_workers=3, node_label="gpu", node_attribute="rm.yarn.io/disk=ssd")
    assert list(config.worker_roles) == ["worker", "worker-large"]
    document = task_document(config, "hdfs://nn/user/a/.yarn-accel")
    settings = TaskSettings.model_validate(document)
    first, large = settings.sizes()
    assert (first.role, first.cores, first.gpus, first.max_workers) == ("worker", 2, 0, 9)
    assert (large.role, large.cores, large.gpus, large.max_workers) == ("worker-large", 6, 2, 3)
    assert (large.node_label, large.node_attribute) == ("gpu", "rm.yarn.io/disk=ssd")
    assert settings.figures_uri == "hdfs://nn/user/a/.yarn-accel/task-figures.json"
    names = [size.name for size in settings.service_settings(1, 1).sizes]
    assert names == ["worker", "worker-large"]


def test_each_size_of_workers_finds_what_its_command_names(ours, packed, tmp_path):
    """From the staged files to the master's roles, and to a worker's own settings and name."""
    settings = sizes().model_copy(update={"environment": config(tmp_path).environment})
    staged = stage(ours, Store(), settings, packed, APPLICATION)
    assert set(staged.plan.roles) == {"master", "server", "agent", "worker", "worker-large"}
    (tmp_path / "master.json").write_text(staged.delivered["master.json"])
    master, plan = load_master(tmp_path / "master.json"), parse_plan(staged.delivered["plan.json"])
    for size, gpus in zip(master.tasks.sizes(), (0, 2), strict=True):
        role = staged.plan.roles[size.role]
        assert f"{size.role}.yaml" in role.command
        (path,) = (content(each.uri) for each in role.resources if each.name == f"{size.role}.yaml")
        worker = load_worker_config(path, {"NM_HOST": "n1"})
        assert worker.worker == worker_name(size.role, "n1")
        assert (worker.cores, len(worker.gpus), worker.memory_mib) == (size.cores, gpus, size.task_memory_mib)
        (row,) = (row for row in plan.roles if row.name == size.role)
        assert row.resource.memory_mib == role.memory_mib
        assert plan.roles.of_priority(role.priority) is row


def test_the_single_form_of_workers_stays_as_it_was():
    config = LaunchConfig.model_validate({"worker": {"enabled": True, "vcores": 5}, "tasks": {"cores": 3}})
    settings = TaskSettings.model_validate(task_document(config))
    assert [size.role for size in settings.sizes()] == ["worker"]
    assert settings.cores == 3
    assert LaunchConfig.model_validate({}).worker_roles == {}


@pytest.mark.parametrize(
    ("worker", "complaint"),
    [
        ([], "a list has one size or more"),
        ([{}, {"priority": 31}], "each size but the first needs a name"),
        ([{"size": "a"}, {"size": "a", "priority": 31}], "each size but the first needs a name"),
        ([{}, {"size": "a"}], "worker.priority and worker a.priority: both 30"),
        ([{}, {"size": "A b", "priority": 31}], "size"),
        ([{}, {"size": "a", "priority": 31, "node_attribute": "x"}], "node_attribute"),
    ],
)
def test_sizes_without_a_name_or_priority_of_their_own_are_refused(tmp_path, worker, complaint):
    path = tmp_path / "launch.yaml"
    path.write_text(yaml.safe_dump({"worker": worker}))
    with pytest.raises(ConfigError, match=complaint):
        load_launch_config(path)
