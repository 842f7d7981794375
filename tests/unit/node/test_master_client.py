"""Where the master is, and how long to wait between heartbeats."""

import asyncio
from http.client import BadStatusLine

import pytest

from tests.unit.adapters.hadoop_rpc.fake_hadoop import FakeHadoop
from yarn_accel.adapters.hadoop_rpc import ApplicationId, Token, TokenFile, write_token_file
from yarn_accel.adapters.hadoop_rpc.methods import GetApplicationReportResponse, GetApplicationsResponse
from yarn_accel.adapters.hadoop_rpc.records import ApplicationReport, ApplicationState
from yarn_accel.errors import RejectedError, RemoteProtocolError, UnavailableError
from yarn_accel.node.config import load_config
from yarn_accel.node.master_client import HeartbeatInterval, MasterDiscovery, master_urls

APPLICATION = "application_1700000000000_0001"


def app(address="10.0.0.5:40123", state="RUNNING", started=1, **more):
    report = {"id": APPLICATION, "state": state, "startedTime": started, **more}
    return {**report, "amRPCAddress": address} if address else report


class ResourceManagers:
    """Answers by URL; records who was asked."""

    def __init__(self, **answers):
        self.answers = answers
        self.asked = []

    def __call__(self, url, timeout_s):
        self.asked.append(url)
        answer = self.answers[url.split("/")[2].split(":")[0]]
        if isinstance(answer, Exception):
            raise answer
        return answer


def config(**settings):
    return load_config(None, {}, node="w1", run_dir="/run/a", **settings)


def discovery(managers, application_id=APPLICATION, hosts=("rm1", "rm2")):
    urls = [f"http://{host}:8088" for host in hosts]
    return MasterDiscovery(config(rm_urls=urls, application_id=application_id), managers)


def test_the_address_of_the_running_attempt():
    managers = ResourceManagers(rm1={"app": app()})
    assert discovery(managers).find() == ("http://10.0.0.5:40123",)
    assert managers.asked == [f"http://rm1:8088/ws/v1/cluster/apps/{APPLICATION}"]


def test_a_new_attempt_lives_elsewhere():
    managers = ResourceManagers(rm1={"app": app()})
    finding = discovery(managers)
    finding.find()
    managers.answers["rm1"] = {"app": app(address=None)}
    with pytest.raises(UnavailableError, match=f"{APPLICATION} is RUNNING, without"):
        finding.find()
    managers.answers["rm1"] = {"app": app("10.0.0.6:40124")}
    assert finding.find() == ("http://10.0.0.6:40124",)


@pytest.mark.parametrize(
    "standby",
    [
        UnavailableError("no answer"),
        RemoteProtocolError("This is standby RM"),
        RejectedError("http-307", "redirect"),
        BadStatusLine("SSH-2.0"),
        {"about": "something else"},
        [],
        None,
    ],
)
def test_a_standby_is_passed_over_and_not_asked_first_again(standby):
    managers = ResourceManagers(rm1=standby, rm2={"app": app()})
    finding = discovery(managers)
    assert finding.find() == ("http://10.0.0.5:40123",)
    finding.find()
    assert [url.split("/")[2] for url in managers.asked] == ["rm1:8088", "rm2:8088", "rm2:8088"]


@pytest.mark.parametrize(
    ("answers", "complaint"),
    [
        (
            {"rm1": UnavailableError("off"), "rm2": UnavailableError("2")},
            "no ResourceManager answers: off; 2",
        ),
        ({"rm1": RejectedError("http-404", "not found")}, f"knows no {APPLICATION}"),
    ],
    ids=["all are away", "nobody knows it"],
)
def test_without_an_answer_there_is_no_master(answers, complaint):
    with pytest.raises(UnavailableError, match=complaint):
        discovery(ResourceManagers(**answers)).find()


def test_by_type_the_newest_comes_first():
    apps = [app(f"10.0.0.{n}:{n}", started=n) for n in (1, 3, 2)]
    managers = ResourceManagers(rm1={"apps": {"app": apps}})
    urls = tuple(f"http://10.0.0.{n}:{n}" for n in (3, 2, 1))
    assert discovery(managers, application_id="").find() == urls
    assert managers.asked == ["http://rm1:8088/ws/v1/cluster/apps?states=RUNNING&applicationTypes=yarn-accel"]


@pytest.mark.parametrize("apps", [None, {}, {"app": []}, {"app": None}])
def test_by_type_there_may_be_none(apps):
    with pytest.raises(UnavailableError, match=r"an application of type yarn-accel does not run.*start it"):
        discovery(ResourceManagers(rm1={"apps": apps}), application_id="").find()


def test_one_application_instead_of_a_list_and_an_address_of_version_6():
    assert master_urls({"apps": {"app": app("[::1]:80")}}) == ("http://[::1]:80",)


@pytest.mark.parametrize(
    "address",
    [
        *("N/A:-1", "N/A:0", "10.0.0.5", "10.0.0.5:0", "10.0.0.5:70000", "evil/path:80", "a b:80", "@x:80"),
        *("h:80\n", ":80"),
    ],
)
def test_addresses_that_are_none(address):
    with pytest.raises(UnavailableError, match="without a master's address"):
        master_urls({"app": app(address)})


@pytest.mark.parametrize("state", ["FINISHED", "KILLED", "FAILED"])
def test_an_application_that_is_over_must_be_started_again(state):
    with pytest.raises(UnavailableError, match=f"{state}, without.*start it again"):
        master_urls({"app": app(state=state)})


def test_an_address_in_the_settings_needs_no_resource_manager():
    known = config(master_url="http://m:1/", rm_urls=["http://rm:1"])
    assert MasterDiscovery(known, get=None).find() == ("http://m:1",)
    with pytest.raises(UnavailableError, match="set rm_urls"):
        MasterDiscovery(config()).find()


TOKEN = Token(b"identifier", b"password", "RM_DELEGATION_TOKEN", "")


@pytest.fixture
def credentials(tmp_path, monkeypatch):
    (tmp_path / "tokens").write_bytes(write_token_file(TokenFile({"rm": TOKEN})))
    monkeypatch.setenv("HADOOP_TOKEN_FILE_LOCATION", str(tmp_path / "tokens"))
    return tmp_path / "tokens"


@pytest.mark.parametrize("application", [APPLICATION, ""])
async def test_with_kerberos_the_master_is_asked_for_by_rpc(application, credentials):
    found = ApplicationReport(
        ApplicationId.parse(APPLICATION), host="10.0.0.5", rpc_port=40123, state=ApplicationState.RUNNING
    )
    handlers = {
        "getApplicationReport": lambda _: GetApplicationReportResponse(found),
        "getApplications": lambda _: GetApplicationsResponse((found,)),
    }
    async with FakeHadoop(handlers, tokens=[TOKEN], qop="auth-conf") as server:
        known = config(rm_addresses=[str(server.address)], application_id=application)
        assert await asyncio.to_thread(MasterDiscovery(known).find) == ("http://10.0.0.5:40123",)
    assert server.users == [TOKEN.identifier]
    with pytest.raises(UnavailableError, match="no connection"):
        await asyncio.to_thread(MasterDiscovery(known).find)
    credentials.unlink()
    with pytest.raises(UnavailableError, match="HADOOP_TOKEN_FILE_LOCATION"):
        await asyncio.to_thread(MasterDiscovery(known).find)


def test_steady_give_or_take_a_tenth():
    assert [
        HeartbeatInterval(1.0, 5.0, lambda u=u: u).next_wait_s() for u in (0.0, 0.5, 1.0)
    ] == pytest.approx([0.9, 1.0, 1.1])


def waits(u, n, max_backoff_s=5.0):
    """The pauses after so many failures in a row."""
    pace = HeartbeatInterval(1.0, max_backoff_s, lambda: u)
    found = [pace.failed() or pace.next_wait_s() for _ in range(n)]
    pace.succeeded()
    assert pace.next_wait_s() == pytest.approx(0.9 + 0.2 * u)
    return found


def test_failures_double_the_pause_up_to_a_bound_and_success_ends_it():
    assert waits(0.0, 5) == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert waits(0.0, 10_000)[-1] == 5.0, "a night without a master"


def test_nodes_that_failed_together_come_back_apart():
    assert [waits(u, 4, 8.0)[-1] for u in (0.0, 0.5, 1.0)] == [8.0, 6.0, 4.0]


def test_the_master_sets_the_interval():
    pace = HeartbeatInterval(1.0, 5.0, lambda: 0.5)
    pace.succeeded(20.0)
    assert pace.next_wait_s() == pytest.approx(20.0)
    pace.failed()
    assert pace.next_wait_s() == pytest.approx(15.0)
    pace.succeeded(0.0)
    assert pace.next_wait_s() == pytest.approx(20.0)
