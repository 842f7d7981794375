"""`start` and `stop` against a ResourceManager that lives in a list; the real one is in tests/integration."""

import asyncio
from dataclasses import replace

import pytest

from tests.unit.launch import yarn as fake
from tests.unit.launch.yarn import FakeRmClient, Yarn, app, node, report
from yarn_accel import errors
from yarn_accel.adapters.credentials import create_master_secret
from yarn_accel.adapters.hadoop_rpc import (
    ConnectionLostError,
    Kerberos,
    RemoteCallError,
    Token,
    read_token_file,
)
from yarn_accel.adapters.hadoop_rpc.records import ApplicationState, FinalStatus, NodeAttribute, YarnResource
from yarn_accel.hadoop.control import RetainedApplication, retained_applications
from yarn_accel.hadoop.delegation import ApplicationTokens
from yarn_accel.launch import start as starting
from yarn_accel.launch import stop as stopping
from yarn_accel.launch.bootstrap import EXIT_GLIBC, node_facts
from yarn_accel.launch.config import LaunchConfig
from yarn_accel.launch.packing import Environment, Requirement
from yarn_accel.master.credentials import AGENTS_ALIAS
from yarn_accel.storage import Store

RUNNING, ACCEPTED, FAILED = ApplicationState.RUNNING, ApplicationState.ACCEPTED, ApplicationState.FAILED


class Scene:
    """A rm_client, a packed environment, and what was reported."""

    def __init__(self, folder):
        self.folder = folder
        self.yarn = Yarn()
        self.rm_client = fake.rm_client(folder, self.yarn)
        self.lines = []
        self.set(environment={"staging_uri": f"file://{folder}/staging"}, server={"memory_mib": 6000})

    def set(self, **sections):
        before = self.config.model_dump() if hasattr(self, "config") else {}
        self.config = LaunchConfig.model_validate({**before, **sections})

    def start(self, wait_s=20.0):
        return asyncio.run(starting.start(self.rm_client, self.config, self.lines.append, wait_s))

    def started(self):
        """As `start`, and its master is there."""
        self.yarn.story = [report(1)]
        return self.start()

    def dry_run(self):
        return asyncio.run(starting.dry_run(self.rm_client, self.config, self.lines.append))

    def end(self, how, wait_s=20.0):
        return asyncio.run(how(self.rm_client, self.yarn, report(1), self.lines.append, wait_s=wait_s))

    def clear_ended(self):
        asyncio.run(stopping.clear_ended(self.rm_client, self.yarn, self.lines.append))

    def has_said(self, *words):
        return any(all(word in line for word in words) for line in self.lines)

    def left(self):
        """Folders of applications in the storage, and what is kept on this machine."""
        return list((self.folder / "staging" / "applications").glob("*")), retained_applications()

    def assert_refused(self, error, words):
        """Nothing is left of a start that raises this."""
        with pytest.raises(error, match=words):
            self.start()
        assert self.left() == ([], ())


@pytest.fixture
def scene(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = tmp_path / f"accel-environment-{'0a' * 16}.zip"
    path.write_bytes(b"zip")
    packed = Environment(path, "0a" * 16, Requirement(**node_facts()), 3, 10, 1)
    monkeypatch.setattr(starting, "pack", lambda *_: packed)
    monkeypatch.setattr(starting, "_POLL_S", 0.0)
    monkeypatch.setattr(stopping, "_POLL_S", 0.0)
    monkeypatch.setattr(starting, "_STORAGE_PAUSE_S", 0.0)
    return Scene(tmp_path)


def test_it_is_submitted_and_waited_for(scene):
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


def test_a_second_start_finds_the_first_and_does_nothing(scene):
    scene.yarn.add(report(7))
    started = scene.start()
    assert (started.is_new, started.report.id) == (False, app(7))
    assert not scene.yarn.submitted
    assert scene.left() == ([], ())
    scene.yarn.reports = {app(7): report(7, name="other")}
    scene.yarn.story = [report(8)]
    assert scene.start().is_new, "another name is another application"


def test_a_site_without_a_secret_for_jobs_gets_one_and_its_place(scene):
    site = replace(scene.rm_client.site, master_secret_file=None)
    object.__setattr__(scene.rm_client, "site", site)
    scene.started()
    path = scene.folder / "state" / "cluster-accel" / "master-secret"
    assert scene.has_said(f"master_secret_file: {path}")
    (submission,) = scene.yarn.submitted
    assert bytes.fromhex(path.read_text()) in read_token_file(submission.launch.credentials).secrets.values()


@pytest.mark.parametrize("is_ours", [True, False])
@pytest.mark.parametrize("number", [1, 9])
def test_of_two_starts_at_once_the_application_that_yarn_took_first_stays(
    scene, monkeypatch, number, is_ours
):
    """Whichever has the smaller id."""
    submit = scene.yarn.submit

    async def submit_both(submission):
        await submit(submission)
        scene.yarn.reports[app(2)] = replace(scene.yarn.reports[app(2)], start_ms=1001)
        scene.yarn.add(report(number, ACCEPTED, start_ms=1002 if is_ours else 1000))

    scene.yarn.next_number = 2
    scene.yarn.story = [report(2, start_ms=1001)] if is_ours else []
    monkeypatch.setattr(scene.yarn, "submit", submit_both)
    started = scene.start()
    assert (started.is_new, started.report.id) == (is_ours, app(2 if is_ours else number))
    assert (scene.yarn.reports[app(2)].state is ApplicationState.KILLED) is not is_ours
    assert (scene.left() == ([], ())) is not is_ours


def test_of_two_starts_within_a_millisecond_the_smaller_id_stays(scene, monkeypatch):
    scene.yarn.next_number = 2
    scene.yarn.story = [report(2)]
    listed = scene.yarn.applications

    async def late(**which):
        # The other is listed only when ours is registered.
        if scene.yarn.submitted and not scene.yarn.story:
            scene.yarn.add(report(1, ACCEPTED))
        return await listed(**which)

    monkeypatch.setattr(scene.yarn, "applications", late)
    started = scene.start()
    assert (started.is_new, started.report.id) == (False, app(1))
    assert scene.yarn.reports[app(2)].state is ApplicationState.KILLED
    assert scene.left() == ([], ())


@pytest.mark.parametrize(
    ("refusal", "error", "words"),
    [
        (errors.UnavailableError("the queue is full"), errors.UnavailableError, "queue is full"),
        (
            RemoteCallError("InvalidLabelResourceRequestException", "node label not enabled"),
            errors.JobError,
            r"node label not enabled: .*node_label.*under `app`",
        ),
    ],
)
def test_what_yarn_does_not_take_leaves_nothing(scene, monkeypatch, refusal, error, words):
    monkeypatch.setattr(scene.yarn, "submit", refusing(refusal))
    scene.assert_refused(error, words)


def refusing(error):
    async def refuse(_):
        raise error

    return refuse


def test_a_start_that_fails_cancels_its_tokens(scene, monkeypatch):
    given, cancelled = ApplicationTokens({"nn": Token(b"i", b"p", "HDFS_DELEGATION_TOKEN", "nn")}), []

    async def tokens(*_):
        return given

    async def cancel(_, manager, each):
        cancelled.append(each)
        return ("a token goes on",)

    monkeypatch.setattr(FakeRmClient, "tokens", tokens)
    monkeypatch.setattr(FakeRmClient, "cancel", cancel)
    scene.started()
    assert not cancelled, "YARN cancels those of an application that it took"
    scene.yarn.reports.clear()
    monkeypatch.setattr(scene.yarn, "submit", refusing(errors.UnavailableError("the queue is full")))
    with pytest.raises(errors.UnavailableError, match="queue is full"):
        scene.start()
    assert cancelled == [given]
    assert scene.has_said("note: a token goes on")


def test_what_yarn_may_have_taken_keeps_its_files_and_secret(scene, monkeypatch):
    take = scene.yarn.submit

    async def take_and_go(submission):
        await take(submission)
        raise ConnectionLostError("rm:8032 closed the connection", was_sent=True)

    monkeypatch.setattr(scene.yarn, "submit", take_and_go)
    with pytest.raises(errors.UnavailableError, match=r"went away while application_.*yarn-accel start"):
        scene.start()
    (folder,), (kept,) = scene.left()
    assert (folder.name, kept.application) == (str(app(1)), str(app(1)))
    assert {path.name for path in folder.iterdir()} >= {"pipeline.json", "agent.yaml"}
    assert len(kept.secret()) == 32
    assert not scene.start().is_new


def test_a_folder_that_a_failed_start_cannot_remove_is_named(scene, monkeypatch):
    monkeypatch.setattr(FakeRmClient, "store", lambda _: NoStore("mkdirs"))
    for name in ("_STAGE_PATIENCE_S", "_FORGET_PATIENCE_S"):
        monkeypatch.setattr(starting, name, 0.0)
    with pytest.raises(errors.StorageError, match="safe mode"):
        scene.start()
    assert scene.has_said("may be left, remove it", str(app(1)))


def away(monkeypatch, name, n_times):
    """Have an operation of the storage refused so often, as while no NameNode is active."""
    real, left = getattr(Store, name), [None] * n_times

    def act(self, uri, *words, **options):
        if left:
            left.pop()
            raise errors.StorageError(f"{uri}: Connection refused", transient=True)
        return real(self, uri, *words, **options)

    monkeypatch.setattr(Store, name, act)


def test_a_start_waits_for_storage_that_is_away_for_a_moment(scene, monkeypatch):
    away(monkeypatch, "write_atomic", 3)
    assert scene.started().is_new
    assert sum("trying again" in line and "Connection refused" in line for line in scene.lines) == 3
    assert len(scene.yarn.submitted) == 1


def test_a_start_that_fails_waits_for_storage_to_leave_nothing_there(scene, monkeypatch):
    monkeypatch.setattr(scene.yarn, "submit", refusing(errors.UnavailableError("the queue is full")))
    away(monkeypatch, "delete", 3)
    scene.assert_refused(errors.UnavailableError, "queue is full")


def test_a_start_asks_each_hdfs_that_settings_name_for_a_token(scene, monkeypatch):
    asked = []
    token = Token(b"i", b"p", "HDFS_DELEGATION_TOKEN", "10.0.0.2:8020")

    async def tokens(_, manager, hdfs_servers):
        asked.extend(hdfs_servers)
        names = {"nn2:8020": token.service}
        return ApplicationTokens({"nn2": token}, ends_s=2e9, names=names, excluded=("ha-hdfs:ns2",))

    monkeypatch.setattr(FakeRmClient, "tokens", tokens)
    properties = {
        **scene.rm_client.site.properties,
        "fs.defaultFS": "hdfs://nn",
        "mapreduce.job.hdfs-servers": "hdfs://nn3:9000, viewfs://x",
    }
    object.__setattr__(scene.rm_client, "site", replace(scene.rm_client.site, properties=properties))
    tenants = {"*": {"read_prefixes": ["hdfs://ns2/in", "/data", "hdfs://*"]}}
    scene.set(pipeline={"tenants": tenants}, kerberos={"hdfs_servers": ["hdfs://nn2"]})
    scene.started()
    assert asked == ["hdfs://nn2", "hdfs://nn3:9000", "hdfs://ns2"]
    assert scene.has_said("does not prolong the token of ha-hdfs:ns2: mapreduce.")
    (submission,) = scene.yarn.submitted
    assert read_token_file(submission.launch.credentials).tokens["nn2"] == token
    (kept,) = retained_applications()
    kept.check_hdfs({"in": ["hdfs:///x", "hdfs://nn:8020/x", "hdfs://NS2/x", "file:///x"]})
    with pytest.raises(
        errors.ConfigError, match=r"hdfs://ns4: application_.* has no token .*hdfs_servers: \["
    ):
        kept.check_hdfs([{"out": "hdfs://ns4/out"}])


def test_a_container_that_cannot_be_is_refused_before_the_submission(scene, monkeypatch):
    monkeypatch.setattr(starting, "check_gpu_environment", lambda config, nodes: [])
    scene.yarn.maximum = YarnResource.of(4000, 8)
    scene.assert_refused(errors.ConfigError, r"role server needs memory-mb 6000.*maximum-allocation-mb")
    scene.set(server={"gpus": 3})
    scene.yarn.maximum = YarnResource.of(64000, 8)
    scene.assert_refused(errors.ConfigError, r"role server needs yarn\.io/gpu 3.*`gpus` of the role")
    assert not scene.yarn.submitted


def test_the_secret_of_the_sites_agents_is_looked_at_before_the_submission(scene):
    secret = scene.folder / "agents"
    scene.set(agent={"enabled": False, "secret_file": str(secret)})
    for work in (scene.start, scene.dry_run):
        with pytest.raises(errors.ConfigError, match=r"agent\.secret_file .*agents: No such file"):
            work()
    assert not scene.yarn.submitted
    create_master_secret(secret)
    scene.started()
    (submission,) = scene.yarn.submitted
    secrets = read_token_file(submission.launch.credentials).secrets
    assert secrets[AGENTS_ALIAS].hex() == secret.read_text().strip()


@pytest.mark.parametrize(
    ("diagnostics", "words"),
    [
        (
            f"AM Container for appattempt_1 exited with  exitCode: {EXIT_GLIBC}\nFailing this attempt.",
            r"FAILED: the node's glibc is older.*yarn logs -applicationId",
        ),
        (
            "Application application_1 submitted by user ada to unknown queue: nope",
            r"unknown queue: nope: name one there is as `app: \{queue",
        ),
    ],
)
def test_an_end_is_reported_with_its_cause(scene, diagnostics, words):
    scene.yarn.story = [report(1, FAILED, diagnostics=diagnostics)]
    scene.assert_refused(errors.JobError, words)


def test_servers_that_may_touch_no_storage_are_reported(scene):
    scene.started()
    assert scene.has_said("forbidden-uri")
    assert any("forbidden-uri" in line for line in scene.dry_run().warnings)
    scene.set(pipeline={"tenants": {"*": {"read_prefixes": ["hdfs://"]}}})
    scene.lines.clear()
    scene.yarn.reports.clear()
    scene.yarn.story = [report(2)]
    scene.start()
    assert not scene.has_said("forbidden-uri")


def test_a_start_by_ticket_names_what_is_left_out(scene):
    assert not any("takes no token" in line for line in scene.dry_run().warnings)
    object.__setattr__(scene.rm_client, "kerberos", Kerberos())
    (said,) = [line for line in scene.dry_run().warnings if "takes no token" in line]
    assert said.startswith("slots of nodes are not set, and bindings are not published")
    properties = {**scene.rm_client.site.properties, "hadoop.security.authentication": "kerberos"}
    object.__setattr__(scene.rm_client, "site", replace(scene.rm_client.site, properties=properties))
    scene.set(
        kerberos={"principal": "a@R", "keytab": "/a.keytab", "keytab_on_nodes": "/a", "clear_text": True}
    )
    assert not any("takes no token" in line for line in scene.dry_run().warnings)
    scene.set(kerberos={}, master={"settings": {"slots": False, "attributes": False}})
    assert not any("takes no token" in line for line in scene.dry_run().warnings)


def test_a_master_that_does_not_come_is_reported_with_yarns_reason(scene):
    waiting = report(1, ACCEPTED, rpc_port=-1, diagnostics="Queue's AM resource limit exceeded.")
    scene.yarn.story = [waiting] * 3
    with pytest.raises(errors.StartupError, match="after 0 s: Queue's AM resource limit exceeded"):
        scene.start(wait_s=0)
    assert scene.left()[1], "it still may come, and will be asked then"


def test_nodes_that_cannot_run_it_are_reported(scene):
    scene.yarn.node_reports = (node("w1", accel_python="2.7"), node("w2"))
    scene.started()
    assert scene.has_said("w1", "2.7")
    assert scene.has_said("1 nodes tell neither")


def test_nothing_is_submitted_where_no_node_can_run_it(scene):
    scene.yarn.node_reports = (node("w1", accel_python="2.7"), node("w2", accel_glibc="2.5"))
    scene.assert_refused(errors.StartupError, "none of the 2 nodes")
    scene.yarn.node_reports = ()
    scene.assert_refused(errors.UnavailableError, "no usable node")
    assert not scene.yarn.submitted


@pytest.mark.parametrize("knows_attributes", [True, False])
def test_a_start_says_what_it_does_without(scene, knows_attributes):
    scene.yarn.knows_attributes = knows_attributes
    scene.started()
    assert scene.has_said("note: this YARN has no node attributes") != knows_attributes
    rehearsed = [each for each in scene.dry_run().warnings if "no node attributes" in each]
    assert bool(rehearsed) != knows_attributes


def test_a_rehearsal_finds_the_running_one_and_the_warnings(scene):
    rehearsal = scene.dry_run()
    assert rehearsal.running is None
    assert any(
        "no node is large enough for a container of role server" in each for each in rehearsal.warnings
    )
    scene.yarn.add(report(7))
    assert scene.dry_run().running == report(7)
    assert scene.left() == ([], ())


# ---- stop


def test_stop_asks_the_master_and_clears_away(scene, monkeypatch):
    scene.started()
    asked = []

    async def ask(_, verb, document=None):
        asked.append(verb)
        ended = report(1, ApplicationState.FINISHED, final_status=FinalStatus.SUCCEEDED)
        scene.yarn.story = [report(1), report(1), ended]
        return {}

    monkeypatch.setattr(stopping.Control, "ask", ask)
    assert scene.end(stopping.stop).final_status is FinalStatus.SUCCEEDED
    assert asked == ["stop"]
    assert scene.left() == ([], ())


def test_without_the_secret_nothing_is_stopped(scene):
    scene.started()
    RetainedApplication.of(str(app(1))).remove()
    with pytest.raises(errors.AuthenticationError, match="control secret"):
        scene.end(stopping.stop)
    assert scene.left()[0]


def test_one_that_does_not_end_in_time_is_reported(scene, monkeypatch):
    scene.started()

    async def ask(*_):
        return {}

    monkeypatch.setattr(stopping.Control, "ask", ask)
    with pytest.raises(errors.UnavailableError, match=r"has not ended after 0 s.*--force"):
        scene.end(stopping.stop, wait_s=0)
    assert scene.left()[1], "the next `stop` needs the secret"


def test_force_needs_no_master_and_no_secret(scene):
    scene.started()
    (scene.left()[1][0].folder / "control-secret").unlink()
    assert scene.end(stopping.force).state is ApplicationState.KILLED
    assert scene.left() == ([], ())


def test_force_restores_what_the_master_would_have_restored(scene):
    scene.started()
    ours = [NodeAttribute.of("accel-slots", "7"), NodeAttribute.of("accel-bind", "w2")]
    theirs = NodeAttribute.of("rack-height", "42")
    capability = node("w1").capability.with_amount("acct/slot", 2)
    changed = replace(node("w1"), capability=capability, attributes=(*ours, theirs))
    scene.yarn.node_reports = (changed, node("w2"))
    scene.end(stopping.force)
    restored = scene.yarn.node_reports[0]
    assert restored.capability == capability.with_amount("acct/slot", 7)
    assert restored.attributes == (theirs,)
    assert not scene.has_said("note", "left as they are")


def test_what_ended_by_itself_is_cleared_away_later(scene):
    scene.started()
    scene.yarn.add(report(1, FAILED))
    RetainedApplication.of("application_1600000000000_0009").create(f"file://{scene.folder}/x")
    (scene.folder / "state" / "cluster-accel" / "applications" / "notes").mkdir()
    scene.clear_ended()
    folders, kept = scene.left()
    assert not folders
    # Another cluster's may still run there.
    assert {each.application for each in kept} == {"application_1600000000000_0009", "notes"}


def test_a_storage_that_is_away_is_tried_again_by_the_next_stop(scene, monkeypatch):
    scene.started()
    scene.yarn.add(report(1, FAILED))
    with monkeypatch.context() as away:
        away.setattr(FakeRmClient, "store", lambda _: NoStore())
        scene.clear_ended()
    assert scene.has_said("safe mode")
    scene.clear_ended()
    assert scene.left() == ([], ())


class NoStore:
    """As HDFS in safe mode: it can be read, and takes no changes, but for those that are named."""

    def __init__(self, *takes):
        self.takes = takes

    def exists(self, uri):
        return False

    def __getattr__(self, name):
        def refuse(uri, *_):
            if name not in self.takes:
                raise errors.StorageError(f"{uri}: HDFS is in safe mode", cure="wait", transient=True)

        return refuse


def test_it_is_said_before_anything_is_packed(scene, monkeypatch):
    monkeypatch.setattr(FakeRmClient, "store", lambda _: NoStore())
    monkeypatch.setattr(starting, "pack", lambda *_: pytest.fail("it was packed"))
    scene.assert_refused(errors.StorageError, "staging: HDFS is in safe mode: wait")
