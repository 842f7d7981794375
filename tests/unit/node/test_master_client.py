"""Where the master is, and how long to wait between heartbeats."""

from http.client import BadStatusLine

import pytest

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


def discovery(managers, application_id=APPLICATION, hosts=("rm1", "rm2")):
    urls = [f"http://{host}:8088" for host in hosts]
    config = load_config(None, {}, node="w1", run_dir="/run/a", rm_urls=urls, application_id=application_id)
    return MasterDiscovery(config, managers)


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


def test_all_away():
    managers = ResourceManagers(rm1=UnavailableError("off"), rm2=UnavailableError("off too"))
    with pytest.raises(UnavailableError, match="no ResourceManager answers: off; off too"):
        discovery(managers).find()


def test_an_application_nobody_knows():
    managers = ResourceManagers(rm1=RejectedError("http-404", "not found"))
    with pytest.raises(UnavailableError, match=f"knows no {APPLICATION}"):
        discovery(managers).find()


def test_by_type_the_newest_comes_first():
    apps = [app("10.0.0.1:1", started=1), app("10.0.0.3:3", started=3), app("10.0.0.2:2", started=2)]
    managers = ResourceManagers(rm1={"apps": {"app": apps}})
    assert discovery(managers, application_id="").find() == (
        "http://10.0.0.3:3",
        "http://10.0.0.2:2",
        "http://10.0.0.1:1",
    )
    assert managers.asked == ["http://rm1:8088/ws/v1/cluster/apps?states=RUNNING&applicationTypes=yarn-accel"]


@pytest.mark.parametrize("apps", [None, {}, {"app": []}, {"app": None}])
def test_by_type_there_may_be_none(apps):
    with pytest.raises(UnavailableError, match=r"an application of type yarn-accel does not run.*start it"):
        discovery(ResourceManagers(rm1={"apps": apps}), application_id="").find()


def test_one_application_instead_of_a_list():
    assert master_urls({"apps": {"app": app()}}) == ("http://10.0.0.5:40123",)


@pytest.mark.parametrize(
    "address",
    [
        "N/A:-1",
        "N/A:0",
        "10.0.0.5",
        "10.0.0.5:0",
        "10.0.0.5:70000",
        "evil/path:80",
        "a b:80",
        "@x:80",
        "h:80\n",
        ":80",
    ],
)
def test_addresses_that_are_none(address):
    with pytest.raises(UnavailableError, match="without a master's address"):
        master_urls({"app": app(address)})


@pytest.mark.parametrize("state", ["FINISHED", "KILLED", "FAILED"])
def test_an_application_that_is_over_must_be_started_again(state):
    with pytest.raises(UnavailableError, match=f"{state}, without.*start it again"):
        master_urls({"app": app(state=state)})


def test_ipv6():
    assert master_urls({"app": app("[::1]:80")}) == ("http://[::1]:80",)


def test_an_address_in_the_settings_needs_no_resource_manager():
    config = load_config(
        None, {}, node="w1", run_dir="/run/a", master_url="http://m:1/", rm_urls=["http://rm:1"]
    )
    assert MasterDiscovery(config, get=None).find() == ("http://m:1",)


def test_without_address_and_resource_managers_there_is_no_master():
    with pytest.raises(UnavailableError, match="set rm_urls"):
        MasterDiscovery(load_config(None, {}, node="w1", run_dir="/run/a")).find()


def test_steady_give_or_take_a_tenth():
    assert [
        HeartbeatInterval(1.0, 5.0, lambda u=u: u).next_wait_s() for u in (0.0, 0.5, 1.0)
    ] == pytest.approx([0.9, 1.0, 1.1])


def test_failures_double_the_pause_up_to_a_bound_and_success_ends_it():
    pace = HeartbeatInterval(1.0, 5.0, lambda: 0.0)
    waits = []
    for _ in range(5):
        pace.failed()
        waits.append(pace.next_wait_s())
    assert waits == [1.0, 2.0, 4.0, 5.0, 5.0]
    pace.succeeded()
    assert pace.next_wait_s() == pytest.approx(0.9)


def test_nodes_that_failed_together_come_back_apart():
    def wait(u):
        pace = HeartbeatInterval(1.0, 8.0, lambda: u)
        for _ in range(4):
            pace.failed()
        return pace.next_wait_s()

    assert [wait(u) for u in (0.0, 0.5, 1.0)] == [8.0, 6.0, 4.0]


def test_the_master_sets_the_interval():
    pace = HeartbeatInterval(1.0, 5.0, lambda: 0.5)
    pace.succeeded(20.0)
    assert pace.next_wait_s() == pytest.approx(20.0)
    pace.failed()
    assert pace.next_wait_s() == pytest.approx(15.0)
    pace.succeeded(0.0)
    assert pace.next_wait_s() == pytest.approx(20.0)


def test_a_night_without_a_master_overflows_nothing():
    pace = HeartbeatInterval(1.0, 5.0, lambda: 0.0)
    for _ in range(100_000):
        pace.failed()
    assert pace.next_wait_s() == 5.0
