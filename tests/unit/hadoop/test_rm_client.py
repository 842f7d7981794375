"""Our applications on a cluster, by RPC and by the web service; and the addresses that follow."""

import asyncio
import os
import pwd
import socket
from dataclasses import replace

import pytest

from tests.unit.adapters.hadoop_rpc.fake_hadoop import FakeHadoop, in_thread
from tests.unit.launch.yarn import Yarn, app, report, rm_client
from yarn_accel.adapters.hadoop_rpc.methods import GetApplicationsResponse
from yarn_accel.adapters.hadoop_rpc.records import ApplicationState
from yarn_accel.errors import ConfigError, StartupError, StorageError, UnavailableError
from yarn_accel.hadoop import rm_client as hadoop_rm_client
from yarn_accel.hadoop import rm_client as rm_client_module
from yarn_accel.hadoop.rm_client import kill
from yarn_accel.hadoop.site import HadoopSite, SiteSettings

_SERVICES = ("", "scheduler.", "admin.")


def test_uploads_go_to_the_users_home_or_where_the_settings_say(tmp_path):
    ours = rm_client(tmp_path, **{"fs.defaultFS": "hdfs://nn:8020/"})
    assert ours.staging_uri() == "hdfs://nn:8020/user/alice/.yarn-accel"
    assert ours.staging_uri("hdfs://nn:8020/apps/accel/") == "hdfs://nn:8020/apps/accel"
    with pytest.raises(StorageError, match="absolute"):
        ours.staging_uri("hdfs://nn:8020/../x")
    with pytest.raises(ConfigError, match=r"core-site\.xml: fs\.defaultFS is not set.*staging_uri"):
        rm_client(tmp_path).staging_uri()


def test_names_that_only_the_cluster_knows_become_addresses(tmp_path):
    ours = rm_client(tmp_path)
    assert ours.url_of(report(1)) == "http://10.0.0.2:4000"
    assert ours.url_of(report(1, host="other")) == "http://other:4000"
    assert ours.page_of(report(1)) == f"http://10.0.0.1:8088/proxy/{app(1)}/"
    assert ours.page_of(report(1, tracking_url="")) == ""
    assert ours.page_of(report(1, tracking_url="https://other/x")) == "https://other/x"


@pytest.mark.parametrize("away", [{"rpc_port": -1}, {"host": "N/A"}, {"host": ""}])
def test_a_master_between_two_attempts_has_no_address(tmp_path, away):
    with pytest.raises(UnavailableError, match="does not run at the moment"):
        rm_client(tmp_path).url_of(report(1, **away))


def test_only_live_applications_of_ours_are_found_oldest_first():
    yarn = Yarn()
    for each in (
        report(5),
        report(3, ApplicationState.ACCEPTED),
        report(4, name="other"),
        report(1, ApplicationState.FINISHED),
        report(2, type="MAPREDUCE"),
    ):
        yarn.add(each)
    assert [each.id.number for each in asyncio.run(hadoop_rm_client.find_running(yarn))] == [3, 4, 5]
    assert [each.id.number for each in asyncio.run(hadoop_rm_client.find_running(yarn, "other"))] == [4]


def test_the_one_that_is_meant():
    several = [report(1), report(2)]
    assert hadoop_rm_client.one_of(several[:1]) is several[0]
    assert hadoop_rm_client.one_of(several, str(app(2))) is several[1]
    with pytest.raises(ConfigError, match=f"{app(1)}.*{app(2)}.*--application"):
        hadoop_rm_client.one_of(several)
    with pytest.raises(UnavailableError, match="no application of type yarn-accel runs: yarn-accel start"):
        hadoop_rm_client.one_of([])
    with pytest.raises(UnavailableError, match=f"{app(3)} does not run"):
        hadoop_rm_client.one_of(several, str(app(3)))
    assert hadoop_rm_client.one_of([*several, report(4, name="other")], "other").name == "other"
    mine = replace(report(5), user="bob")
    assert hadoop_rm_client.one_of([*several, mine], user="bob") is mine, "where several run, one's own"
    with pytest.raises(ConfigError, match="several applications run"):
        hadoop_rm_client.one_of([*several, mine], user="carl")


def test_a_kill_is_asked_for_until_it_is_done():
    yarn = Yarn()
    yarn.add(report(1))
    asyncio.run(kill(yarn, app(1), "why"))
    assert yarn.killed == [app(1), app(1)]

    class Stuck(Yarn):
        async def kill(self, application, diagnostics=""):
            return False

    with pytest.raises(UnavailableError, match="has not ended"):
        asyncio.run(kill(Stuck(), app(1), "why", wait_s=0))


def test_looking_at_a_cluster_needs_no_java(tmp_path, monkeypatch):
    """`status`, `top` and `explain` run where only the configuration is."""
    (tmp_path / "core-site.xml").write_text(
        "<configuration><property><name>fs.defaultFS</name><value>hdfs://nn:8020</value></property>"
        "<property><name>yarn.resourcemanager.hostname</name><value>rm</value></property></configuration>"
    )
    (tmp_path / "hosts").write_text("10.0.0.7 rm\n")
    (tmp_path / "yarn-accel-site.yaml").write_text("client_hosts_file: hosts\n")
    bare = {"HADOOP_CONF_DIR": str(tmp_path), "HADOOP_USER_NAME": "alice"}

    def no_java(*_):
        raise StartupError("no Java")

    monkeypatch.setattr("yarn_accel.hadoop.site.find_java", no_java)
    with pytest.raises(StartupError, match="Java"):
        HadoopSite.load(bare)
    ours = hadoop_rm_client.RmClient.load(bare)
    assert ours.staging_uri() == "hdfs://nn:8020/user/alice/.yarn-accel"
    assert ours.site.resourcemanager_webs() == ["http://10.0.0.7:8088"]


def site(folder, **properties):
    """The environment of somebody whose site has only these properties in its yarn-site.xml."""
    (folder / "core-site.xml").write_text("<configuration/>")
    rows = "".join(f"<property><name>{n}</name><value>{v}</value></property>" for n, v in properties.items())
    (folder / "yarn-site.xml").write_text(f"<configuration>{rows}</configuration>")
    return {"HADOOP_CONF_DIR": str(folder)}


def test_an_address_that_is_none_is_reported_with_its_file_and_key(tmp_path):
    with pytest.raises(ConfigError, match=r"yarn-site\.xml: .*ha.rm-ids names none"):
        hadoop_rm_client.RmClient.load(site(tmp_path, **{"yarn.resourcemanager.ha.enabled": "true"}))
    key = "yarn.resourcemanager.address"
    with pytest.raises(ConfigError, match=rf"yarn-site\.xml: {key}: 'rm:80x' is no host:port"):
        hadoop_rm_client.RmClient.load(site(tmp_path, **{key: "rm:80x"}))


def test_the_user_is_who_this_process_runs_as(tmp_path, monkeypatch):
    monkeypatch.setenv("LOGNAME", "somebody-else")
    monkeypatch.setenv("USER", "somebody-else")
    environ = site(tmp_path, **{"yarn.resourcemanager.hostname": "rm"})
    assert hadoop_rm_client.RmClient.load(environ).user == pwd.getpwuid(os.geteuid()).pw_name
    assert hadoop_rm_client.RmClient.load({**environ, "HADOOP_USER_NAME": "ada"}).user == "ada"


def test_where_no_resource_manager_answers_its_settings_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(rm_client_module, "_RM_PATIENCE_S", 0.0)
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ours = hadoop_rm_client.RmClient.load(
            site(tmp_path, **{f"yarn.resourcemanager.{each}address": address for each in _SERVICES})
        )

        async def ask():
            async with ours.manager() as manager:
                await hadoop_rm_client.find_running(manager)

        with pytest.raises(UnavailableError, match=rf"no ResourceManager answers: .*{address}") as caught:
            asyncio.run(ask())
    assert str(tmp_path / "yarn-site.xml") in caught.value.cure


TWO = {
    "yarn.resourcemanager.ha.enabled": "true",
    "yarn.resourcemanager.ha.rm-ids": "a,b",
    "yarn.resourcemanager.hostname.a": "rm1",
    "yarn.resourcemanager.hostname.b": "rm2",
}


def listed(number, started, url="", **more):
    more |= {"id": f"application_1_{number}", "startedTime": started}
    return {**more, "trackingUrl": url or f"http://rm/{number}"}


@pytest.fixture
def pages(tmp_path, monkeypatch):
    """The pages that are found when the first ResourceManager is away and the second answers this."""

    def act(answer):
        def get(url, **_):
            assert url.endswith("/ws/v1/cluster/apps?states=RUNNING&applicationTypes=yarn-accel")
            if "rm1" in url:
                raise UnavailableError("away")
            return answer

        monkeypatch.setattr(rm_client_module, "get_json", get)
        return hadoop_rm_client.tracking_pages(SiteSettings(tmp_path, TWO), "yarn-accel")

    return act


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ({"apps": {"app": [listed(1, 5), listed(2, 9)]}}, ("http://rm/2", "http://rm/1")),
        ({"apps": {"app": [listed(1, 5, "UNASSIGNED")]}}, ()),
        ({"apps": {}}, ()),
        ({"apps": None}, ()),
        (None, ()),
        ("<html>", ()),
    ],
)
def test_the_pages_of_what_runs_newest_first(pages, answer, found):
    assert pages(answer) == found


def test_nobody_answers(tmp_path, monkeypatch):
    def get(url, **_):
        raise UnavailableError("away")

    monkeypatch.setattr(rm_client_module, "get_json", get)
    assert hadoop_rm_client.tracking_pages(SiteSettings(tmp_path, TWO), "yarn-accel") == ()


@pytest.fixture
def several(tmp_path, monkeypatch):
    reports = [listed(1, 5, name="of-ann", user="ann"), listed(2, 9, name="of bob", user="bob")]
    reports += [listed(3, 7, name="second", user="bob")]
    monkeypatch.setattr(rm_client_module, "get_json", lambda url, **_: {"apps": {"app": reports}})
    return SiteSettings(tmp_path, TWO)


@pytest.mark.parametrize(
    ("user", "wanted", "pages", "named"),
    [
        ("ann", "", "http://rm/1", "of-ann"),
        ("bob", "", "http://rm/2,http://rm/3", "application_1_2"),
        ("carl", "", "http://rm/2,http://rm/3,http://rm/1", None),
        ("ann", "second", "http://rm/3", "second"),
        ("ann", "application_1_2", "http://rm/2", "application_1_2"),
    ],
)
def test_a_job_uses_the_application_of_its_user_or_the_one_that_is_named(
    several,
    monkeypatch,
    user,
    wanted,
    pages,
    named,
):
    """A name that Hadoop's options would split is replaced by the id."""
    monkeypatch.setenv("HADOOP_USER_NAME", user)
    found = hadoop_rm_client.mapper_environment(several, wanted)
    assert found == {"ACCEL_MASTER": pages, **({"ACCEL_APPLICATION": named} if named else {})}


def test_with_kerberos_a_mapper_gets_the_masters_own_address(tmp_path, ticket, keytabs):
    """The ResourceManager's proxy wants a ticket, and no mapper has one."""
    running = [
        report(1, host="w1", rpc_port=4001, user="bob", start_ms=1),
        report(2, host="w2", rpc_port=4002, user="alice", start_ms=2),
        report(3, host="N/A", rpc_port=-1, user="alice", start_ms=3),
    ]
    handlers = {"getApplications": lambda _: GetApplicationsResponse(tuple(running))}
    with in_thread(FakeHadoop(handlers, tokens=[], keytab=keytabs["rm"])) as manager:
        properties = {
            "hadoop.security.authentication": "kerberos",
            "yarn.resourcemanager.principal": "rm/m.test",
            "yarn.resourcemanager.address": str(manager.address),
        }
        site = SiteSettings(tmp_path, properties)
        found = hadoop_rm_client.mapper_environment(site)
        assert hadoop_rm_client.site_user(site) == "alice"
    environ = {"ACCEL_APPLICATION": "yarn-accel", "ACCEL_SERVICE_USER": "alice"}
    assert found == {"ACCEL_MASTER": "http://w2:4002", **environ}


def test_one_that_does_not_run_is_refused_with_those_that_do(several):
    with pytest.raises(UnavailableError, match=r"no application third runs; running: of bob .*of-ann"):
        hadoop_rm_client.mapper_environment(several, "third")
