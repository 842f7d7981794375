"""`start` and `stop` against a ResourceManager that lives in a list; the real one is in tests/integration."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.launch import yarn as fake
from tests.unit.launch.yarn import FakeRmClient, Yarn, app, node, report
from yarn_accel.adapters.credentials import create_master_secret
from yarn_accel.adapters.hadoop_rpc import ConnectionLostError, RemoteCallError, read_token_file
from yarn_accel.adapters.hadoop_rpc.records import ApplicationState, FinalStatus, NodeAttribute, YarnResource
from yarn_accel.errors import (
    AuthenticationError,
    ConfigError,
    JobError,
    StartupError,
    StorageError,
    UnavailableError,
)
from yarn_accel.hadoop.control import RetainedApplication, retained_applications
from yarn_accel.launch import start as starting
from yarn_accel.launch import stop as stopping
from yarn_accel.launch.bootstrap import EXIT_GLIBC, node_facts
from yarn_accel.launch.config import LaunchConfig
from yarn_accel.launch.packing import Environment, Requirement
from yarn_accel.launch.start import dry_run, start
from yarn_accel.launch.stop import clear_ended, force
from yarn_accel.master.credentials import AGENTS_ALIAS

RUNNING, ACCEPTED, FAILED = ApplicationState.RUNNING, ApplicationState.ACCEPTED, ApplicationState.FAILED


class Scene:
    """A rm_client, a packed environment, and what was reported."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.yarn = Yarn()
        self.rm_client: FakeRmClient = fake.rm_client(folder, self.yarn)
        self.config = LaunchConfig.model_validate(
            {"environment": {"staging_uri": f"file://{folder}/staging"}, "server": {"memory_mib": 6000}}
        )
        self.lines: list[str] = []

    def start(self, wait_s: float = 20.0) -> starting.Started:
        return asyncio.run(start(self.rm_client, self.config, self.lines.append, wait_s))

    def left(self) -> tuple[list[Path], tuple[RetainedApplication, ...]]:
        """Folders of applications in the storage, and what is kept on this machine."""
        return list((self.folder / "staging" / "applications").glob("*")), retained_applications()


@pytest.fixture
def scene(tmp_path, monkeypatch) -> Scene:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = tmp_path / f"accel-environment-{'0a' * 16}.zip"
    path.write_bytes(b"zip")
    packed = Environment(path, "0a" * 16, Requirement(**node_facts()), 3, 10, 1)
    monkeypatch.setattr(starting, "pack", lambda *_: packed)
    monkeypatch.setattr(starting, "_POLL_S", 0.0)
    monkeypatch.setattr(stopping, "_POLL_S", 0.0)
    return Scene(tmp_path)


def test_it_is_submitted_and_waited_for(scene) -> None:
    scene.yarn.story = [report(1, ACCEPTED, rpc_port=-1), report(1, RUNNING, rpc_port=-1), report(1)]
    started = scene.start()
    assert started.is_new
    assert started.report.rpc_port == 4000
    (submission,) = scene.yarn.submitted
    assert submission.application == app(1)
    assert f"submitted {app(1)}" in scene.lines
    folders, kept = scene.left()
    assert [folder.name for folder in folders] == [str(app(1))]
    assert [each.application for each in kept] == [str(app(1))]
    assert kept[0].staging_uri().endswith(f"/applications/{app(1)}")


def test_a_second_start_finds_the_first_and_does_nothing(scene) -> None:
    scene.yarn.add(report(7))
    started = scene.start()
    assert (started.is_new, started.report.id) == (False, app(7))
    assert not scene.yarn.submitted
    assert scene.left() == ([], ())


def test_a_site_without_a_secret_for_jobs_gets_one_and_its_place(scene) -> None:
    site = replace(scene.rm_client.site, master_secret_file=None)
    object.__setattr__(scene.rm_client, "site", site)
    scene.yarn.story = [report(1)]
    scene.start()
    path = scene.folder / "state" / "cluster-accel" / "master-secret"
    assert any(f"master_secret_file: {path}" in line for line in scene.lines)
    (submission,) = scene.yarn.submitted
    assert submission.launch.credentials is not None
    assert bytes.fromhex(path.read_text()) in read_token_file(submission.launch.credentials).secrets.values()


def test_another_name_is_another_application(scene) -> None:
    scene.yarn.add(report(7, name="other"))
    scene.yarn.story = [report(8)]
    assert scene.start().is_new


@pytest.mark.parametrize("number", [1, 9])
def test_of_two_starts_at_once_the_application_that_yarn_took_first_stays(scene, monkeypatch, number) -> None:
    submit = scene.yarn.submit

    async def submit_second(submission: Any) -> None:
        await submit(submission)
        scene.yarn.reports[app(2)] = replace(scene.yarn.reports[app(2)], start_ms=1001)
        scene.yarn.add(report(number, ACCEPTED, start_ms=1000))

    scene.yarn.next_number = 2
    monkeypatch.setattr(scene.yarn, "submit", submit_second)
    started = scene.start()
    assert (started.is_new, started.report.id) == (False, app(number))
    assert scene.yarn.reports[app(2)].state is ApplicationState.KILLED
    assert scene.left() == ([], ())


@pytest.mark.parametrize("number", [1, 9])
def test_of_two_starts_at_once_the_first_goes_on(scene, monkeypatch, number) -> None:
    submit = scene.yarn.submit

    async def submit_first(submission: Any) -> None:
        await submit(submission)
        scene.yarn.reports[app(2)] = replace(scene.yarn.reports[app(2)], start_ms=1000)
        scene.yarn.add(report(number, ACCEPTED, start_ms=1001))

    scene.yarn.next_number = 2
    monkeypatch.setattr(scene.yarn, "submit", submit_first)
    scene.yarn.story = [report(2, start_ms=1000)]
    assert scene.start().report.id == app(2)
    assert not scene.yarn.killed


def test_of_two_starts_within_a_millisecond_the_smaller_id_stays(scene, monkeypatch) -> None:
    scene.yarn.next_number = 2
    scene.yarn.story = [report(2)]
    listed = scene.yarn.applications

    async def late(**which: Any) -> Any:
        # The other is listed only when ours is registered.
        if scene.yarn.submitted and not scene.yarn.story:
            scene.yarn.add(report(1, ACCEPTED))
        return await listed(**which)

    monkeypatch.setattr(scene.yarn, "applications", late)
    started = scene.start()
    assert (started.is_new, started.report.id) == (False, app(1))
    assert scene.yarn.reports[app(2)].state is ApplicationState.KILLED
    assert scene.left() == ([], ())


def test_what_fails_before_the_submission_leaves_nothing(scene, monkeypatch) -> None:
    async def refuse(_: object) -> None:
        raise UnavailableError("the queue is full")

    monkeypatch.setattr(scene.yarn, "submit", refuse)
    with pytest.raises(UnavailableError, match="queue is full"):
        scene.start()
    assert scene.left() == ([], ())


def test_what_yarn_may_have_taken_keeps_its_files_and_secret(scene, monkeypatch) -> None:
    take = scene.yarn.submit

    async def take_and_go(submission: Any) -> None:
        await take(submission)
        raise ConnectionLostError("rm:8032 closed the connection", was_sent=True)

    monkeypatch.setattr(scene.yarn, "submit", take_and_go)
    with pytest.raises(UnavailableError, match=r"went away while application_.*yarn-accel start"):
        scene.start()
    (folder,), (kept,) = scene.left()
    assert (folder.name, kept.application) == (str(app(1)), str(app(1)))
    assert {path.name for path in folder.iterdir()} >= {"pipeline.json", "agent.yaml"}
    assert len(kept.secret()) == 32
    assert not scene.start().is_new


def test_a_folder_that_a_failed_start_cannot_remove_is_named(scene, monkeypatch) -> None:
    class Away:
        def mkdirs(self, uri: str) -> None:
            """The last that works."""

        def delete(self, uri: str) -> bool:
            raise StorageError(f"{uri}: Name node is in safe mode")

        def exists(self, uri: str) -> bool:
            raise StorageError(f"{uri}: Name node is in safe mode")

    monkeypatch.setattr(FakeRmClient, "store", lambda _: Away())
    with pytest.raises(StorageError, match="safe mode"):
        scene.start()
    assert any("may be left, remove it" in line and str(app(1)) in line for line in scene.lines)


def test_a_container_that_cannot_be_is_refused_before_the_submission(scene, monkeypatch) -> None:
    monkeypatch.setattr(starting, "check_gpu_environment", lambda config, nodes: [])
    scene.yarn.maximum = YarnResource.of(4000, 8)
    with pytest.raises(ConfigError, match=r"role server needs memory-mb 6000.*maximum-allocation-mb"):
        scene.start()
    values = {**scene.config.model_dump(), "server": {"gpus": 3}}
    scene.config = LaunchConfig.model_validate(values)
    scene.yarn.maximum = YarnResource.of(64000, 8)
    with pytest.raises(ConfigError, match=r"role server needs yarn\.io/gpu 3.*`gpus` of the role"):
        scene.start()
    assert not scene.yarn.submitted
    assert scene.left() == ([], ())


def test_the_secret_of_the_sites_agents_is_looked_at_before_the_submission(scene) -> None:
    secret = scene.folder / "agents"
    values = {**scene.config.model_dump(), "agent": {"enabled": False, "secret_file": str(secret)}}
    scene.config = LaunchConfig.model_validate(values)
    for work in (
        scene.start,
        lambda: asyncio.run(dry_run(scene.rm_client, scene.config, scene.lines.append)),
    ):
        with pytest.raises(ConfigError, match=r"agent\.secret_file .*agents: No such file"):
            work()
    assert not scene.yarn.submitted
    create_master_secret(secret)
    scene.yarn.story = [report(1)]
    scene.start()
    (submission,) = scene.yarn.submitted
    secrets = read_token_file(submission.launch.credentials).secrets
    assert secrets[AGENTS_ALIAS].hex() == secret.read_text().strip()


def test_an_end_is_reported_with_what_our_exit_code_means(scene) -> None:
    words = f"AM Container for appattempt_1 exited with  exitCode: {EXIT_GLIBC}\nFailing this attempt."
    scene.yarn.story = [report(1, FAILED, diagnostics=words)]
    with pytest.raises(JobError, match=r"FAILED: the node's glibc is older.*yarn logs -applicationId"):
        scene.start()
    assert scene.left() == ([], ())


def test_servers_that_may_touch_no_storage_are_reported(scene) -> None:
    def reported() -> bool:
        scene.lines.clear()
        scene.yarn.reports.clear()
        scene.yarn.story = [report(1)]
        scene.start()
        return any("forbidden-uri" in line for line in scene.lines)

    assert reported()
    rehearsed = asyncio.run(dry_run(scene.rm_client, scene.config, scene.lines.append))
    assert any("forbidden-uri" in line for line in rehearsed.warnings)
    tenants = {"*": {"read_prefixes": ["hdfs://"]}}
    pipeline = {**scene.config.pipeline, "tenants": tenants}
    scene.config = LaunchConfig.model_validate({**scene.config.model_dump(), "pipeline": pipeline})
    assert not reported()


def test_a_queue_that_does_not_exist_is_reported_with_its_setting(scene) -> None:
    words = "Application application_1 submitted by user ada to unknown queue: nope"
    scene.yarn.story = [report(1, FAILED, diagnostics=words)]
    with pytest.raises(JobError, match=r"unknown queue: nope: name one there is as `app: \{queue"):
        scene.start()
    assert scene.left() == ([], ())


def test_what_yarn_does_not_take_is_reported_with_the_settings_to_look_at(scene, monkeypatch) -> None:
    async def refuse(_: object) -> None:
        raise RemoteCallError("InvalidLabelResourceRequestException", "node label not enabled")

    monkeypatch.setattr(scene.yarn, "submit", refuse)
    with pytest.raises(JobError, match=r"node label not enabled: .*node_label.*under `app`"):
        scene.start()
    assert scene.left() == ([], ())


def test_a_master_that_does_not_come_is_reported_with_yarns_reason(scene) -> None:
    waiting = report(1, ACCEPTED, rpc_port=-1, diagnostics="Queue's AM resource limit exceeded.")
    scene.yarn.story = [waiting] * 3
    with pytest.raises(StartupError, match="after 0 s: Queue's AM resource limit exceeded"):
        scene.start(wait_s=0)
    assert scene.left()[1], "it still may come, and will be asked then"


def test_nodes_that_cannot_run_it_are_reported(scene) -> None:
    scene.yarn.story = [report(1)]
    scene.yarn.node_reports = (node("w1", accel_python="2.7"), node("w2"))
    scene.start()
    assert any("w1" in line and "2.7" in line for line in scene.lines)
    assert any("1 nodes tell neither" in line for line in scene.lines)


def test_nothing_is_submitted_where_no_node_can_run_it(scene) -> None:
    scene.yarn.node_reports = (node("w1", accel_python="2.7"), node("w2", accel_glibc="2.5"))
    with pytest.raises(StartupError, match="none of the 2 nodes"):
        scene.start()
    scene.yarn.node_reports = ()
    with pytest.raises(UnavailableError, match="no usable node"):
        scene.start()
    assert not scene.yarn.submitted


def test_a_rehearsal_finds_the_running_one_and_the_warnings(scene) -> None:
    rehearsal = asyncio.run(dry_run(scene.rm_client, scene.config, scene.lines.append))
    assert rehearsal.running is None
    assert any(
        "no node is large enough for a container of role server" in each for each in rehearsal.warnings
    )
    scene.yarn.add(report(7))
    rehearsal = asyncio.run(dry_run(scene.rm_client, scene.config, scene.lines.append))
    assert rehearsal.running == report(7)
    assert scene.left() == ([], ())


# ---- stop


def started(scene: Scene) -> None:
    scene.yarn.story = [report(1)]
    scene.start()


def test_stop_asks_the_master_and_clears_away(scene, monkeypatch) -> None:
    started(scene)
    asked: list[str] = []

    async def ask(_: object, verb: str, document: object = None) -> dict[str, Any]:
        asked.append(verb)
        ending = report(1, RUNNING)
        ended = report(1, ApplicationState.FINISHED, final_status=FinalStatus.SUCCEEDED)
        scene.yarn.story = [ending, ending, ended]
        return {}

    monkeypatch.setattr(stopping.Control, "ask", ask)
    ended = asyncio.run(stopping.stop(scene.rm_client, scene.yarn, report(1), scene.lines.append, wait_s=20))
    assert asked == ["stop"]
    assert ended.final_status is FinalStatus.SUCCEEDED
    assert scene.left() == ([], ())


def test_without_the_secret_nothing_is_stopped(scene) -> None:
    started(scene)
    RetainedApplication.of(str(app(1))).remove()
    with pytest.raises(AuthenticationError, match="control secret"):
        asyncio.run(stopping.stop(scene.rm_client, scene.yarn, report(1), scene.lines.append, wait_s=20))
    assert scene.left()[0]


def test_one_that_does_not_end_in_time_is_reported(scene, monkeypatch) -> None:
    started(scene)

    async def ask(*_: object) -> dict[str, Any]:
        return {}

    monkeypatch.setattr(stopping.Control, "ask", ask)
    with pytest.raises(UnavailableError, match=r"has not ended after 0 s.*--force"):
        asyncio.run(stopping.stop(scene.rm_client, scene.yarn, report(1), scene.lines.append, wait_s=0))
    assert scene.left()[1], "the next `stop` needs the secret"


def test_force_needs_no_master_and_no_secret(scene) -> None:
    started(scene)
    (scene.left()[1][0].folder / "control-secret").unlink()
    ended = asyncio.run(force(scene.rm_client, scene.yarn, report(1), scene.lines.append, wait_s=20))
    assert ended.state is ApplicationState.KILLED
    assert scene.left() == ([], ())


def test_force_restores_what_the_master_would_have_restored(scene) -> None:
    started(scene)
    changed = node("w1")
    assert changed.capability is not None
    ours = [NodeAttribute.of("accel-slots", "7"), NodeAttribute.of("accel-bind", "w2")]
    theirs = [NodeAttribute.of("rack-height", "42")]
    capability = changed.capability.with_amount("acct/slot", 2)
    changed = replace(changed, capability=capability, attributes=(*ours, *theirs))
    scene.yarn.node_reports = (changed, node("w2"))
    asyncio.run(force(scene.rm_client, scene.yarn, report(1), scene.lines.append, wait_s=20))
    restored = scene.yarn.node_reports[0]
    assert restored.capability == capability.with_amount("acct/slot", 7)
    assert [each.key.name for each in restored.attributes] == ["rack-height"]
    assert not any("note" in line and "left as they are" in line for line in scene.lines)


def test_what_ended_by_itself_is_cleared_away_later(scene) -> None:
    started(scene)
    scene.yarn.add(report(1, FAILED))
    RetainedApplication.of("application_1600000000000_0009").create(f"file://{scene.folder}/x")
    (scene.folder / "state" / "cluster-accel" / "applications" / "notes").mkdir()
    asyncio.run(clear_ended(scene.rm_client, scene.yarn, scene.lines.append))
    folders, kept = scene.left()
    assert not folders
    # Another cluster's may still run there.
    assert {each.application for each in kept} == {"application_1600000000000_0009", "notes"}


def test_a_storage_that_is_away_is_tried_again_by_the_next_stop(scene, monkeypatch) -> None:
    started(scene)
    scene.yarn.add(report(1, FAILED))

    class Away:
        def delete(self, uri: str) -> bool:
            raise StorageError(f"{uri}: no NameNode")

    monkeypatch.setattr(FakeRmClient, "store", lambda _: Away())
    asyncio.run(clear_ended(scene.rm_client, scene.yarn, scene.lines.append))
    assert any("no NameNode" in line for line in scene.lines)
    monkeypatch.undo()
    monkeypatch.setenv("XDG_STATE_HOME", str(scene.folder / "state"))
    asyncio.run(clear_ended(scene.rm_client, scene.yarn, scene.lines.append))
    assert scene.left() == ([], ())


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
        asyncio.run(starting.start(rm_client, config, lambda _: None, wait_s=20))
    assert not retained_applications()
