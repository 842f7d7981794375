"""Where the master is, from what a ResourceManager says."""

from http.client import BadStatusLine

import pytest

from yarn_accel.errors import RejectedError, RemoteProtocolError, UnavailableError
from yarn_accel.node.config import load_config
from yarn_accel.node.master_discovery import (
    FixedDiscovery,
    NoDiscovery,
    RestDiscovery,
    discovery_for,
    master_urls,
)

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
    return RestDiscovery(urls, application_id, "yarn-accel", 1.0, get=managers)


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


def test_which_finder_the_settings_ask_for(tmp_path):
    def made(**values):
        return discovery_for(load_config(None, {}, node="w1", run_dir=str(tmp_path), **values))

    assert isinstance(made(master_url="http://m:1", rm_urls=["http://rm:8088"]), FixedDiscovery)
    assert made(master_url="http://m:1/").find() == ("http://m:1",)
    assert isinstance(made(rm_urls=["http://rm:8088"]), RestDiscovery)
    assert isinstance(made(), NoDiscovery)
    with pytest.raises(UnavailableError, match="set rm_urls"):
        made().find()
