"""Two users' applications on one cluster whose containers all run as one user, from start to kill and stop.

Each has agents, servers and jobs of its own; the first one holds the nodes' slots, until it is over.
"""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import hdfs_native
import pytest
import yaml

from tests.fixtures.command_server import run_command
from tests.fixtures.yarn_site import DEADLINE_S, ROOT, Caller, Site
from tests.integration.conftest import SLOTS
from yarn_accel.adapters.hadoop_rpc import ApplicationId
from yarn_accel.hadoop.control import RetainedApplication
from yarn_accel.hadoop.rm_client import find_running, kill
from yarn_accel.launch.stop import restore_left_nodes
from yarn_accel.master.operator_commands import OWNER
from yarn_accel.node.paths import default_run_dir

pytestmark = [pytest.mark.hadoop]


class User:
    """One of the cluster's users, with a state folder, a folder in HDFS and an application."""

    def __init__(self, site, name, application=""):
        self.site, self.name, self.said = site, name, ""
        self.application_name = application or f"of-{name}"
        state = str(site.folder / f"{name}-state")
        self.environ = {**site.environ, "HADOOP_USER_NAME": name, "XDG_STATE_HOME": state}
        self.settings = site.folder / f"{self.application_name}.yaml"
        launch = site.options.launch(site.servers, "")
        launch["app"] = {"name": self.application_name}
        self.settings.write_text(yaml.safe_dump(launch))
        root = site.rm_client.site.properties["fs.defaultFS"]
        # Whoever runs the cluster makes the folders of its users.
        files = hdfs_native.Client(root)
        files.mkdirs(f"/user/{name}", 0o755, create_parent=True)
        files.set_owner(f"/user/{name}", name, name)
        self.folder_uri = f"{root}/user/{name}/.yarn-accel/applications"

    def run(self, *words, code=0):
        done = run_command("yarn_accel", words, env=self.environ, timeout=DEADLINE_S)
        assert done.returncode == code, f"{done.stdout}\n{done.stderr}\n{self.site.logs()}"
        return done.stdout + done.stderr

    def start(self):
        return self.run("start", "--config", str(self.settings), "--wait")

    def status(self):
        return json.loads(self.run("status", "--json"))

    @property
    def application(self):
        (found,) = self.site.ask(lambda manager: find_running(manager, self.application_name))
        return str(found.id)

    def mapper(self, host, *variables):
        """The server that a mapper of this user finds on a node by YARN's variables, and its result."""
        script = Path(__file__).with_name("mapper_of_w2.py")
        python = [sys.executable, str(script), str(ROOT), str(self.site.token_file())]
        found = [f"NM_HOST={host}", f"USER={self.name}"]
        argv = self.site.cluster.exec_argv(self.site.names[host], ["env", *found, *variables, *python])
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    def retained(self):
        folder = RetainedApplication.of("x", self.environ).folder.parent
        return sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []

    def stored(self):
        """Applications that have a folder in HDFS."""
        store = self.site.rm_client.store()
        found = store.list(self.folder_uri) if store.exists(self.folder_uri) else []
        return sorted(each.rpartition("/")[2] for each in found)


@pytest.fixture(scope="module")
def site(two_racks, tmp_path_factory):
    if two_racks.applications():
        two_racks.stop()
    return Site(two_racks.cluster, two_racks.options, tmp_path_factory.mktemp("users"))


@pytest.fixture(scope="module")
def users(site):
    ann, bob = User(site, "ann"), User(site, "bob")
    ann.said, bob.said = ann.start(), bob.start()
    yield ann, bob
    # Agents and servers that YARN kills leave files, which their successors remove after an hour.
    for each in site.applications():
        site.ask(lambda manager, found=each: kill(manager, found.id, "the test is over"))
    site.ask(lambda manager: restore_left_nodes(manager, print))
    for folder in own_folders(site):
        shutil.rmtree(folder, ignore_errors=True)


def own_folders(site):
    """Folders of this cluster's applications in the places where agents listen by default."""
    # The number before an id is when the ResourceManager started.
    started = {str(each.id).split("_")[1] for each in site.ask(lambda manager: manager.applications())}
    found = [each for host in site.names for each in Path(default_run_dir(host)).glob("*_*")]
    return [each for each in found if each.name.split("_")[0] in started]


def failures(user):
    """How often a container of the user's application failed."""
    nodes = user.status()["state"]["nodes"].values()
    return sum(place["failures"] for node in nodes for place in node["places"].values())


def test_the_second_start_says_who_is_there(users):
    ann, bob = users
    assert "runs here already" not in ann.said
    assert (
        f"{ann.application} (of-ann, of ann) runs here already; it holds the slots of w1, w2, w3, w4"
        in bob.said
    )
    assert "every accelerator node serves" in bob.said
    assert f"{ann.application} runs already" in ann.start(), "not both: one's own by its name"


def test_nothing_is_started_against_the_other(users):
    assert [failures(user) for user in users] == [0, 0]


def test_a_mapper_finds_the_servers_of_its_own_user(site, users):
    for user in users:
        found = user.mapper(site.others[0])
        assert f"/{user.application.partition('_')[2]}/" in found["where"], found
        assert found["error"] < 1e-9


def test_a_mapper_finds_those_of_the_application_that_is_named(site, users):
    ann, bob = users
    found = ann.mapper(site.others[0], "ACCEL_APPLICATION=of-bob")
    assert f"/{bob.application.partition('_')[2]}/" in found["where"], found


def test_the_first_one_holds_the_slots_and_the_second_says_so(site, users):
    ann, bob = users
    assert {site.attribute(host, OWNER) for host in site.names} == {ann.application}
    assert ann.status()["state"]["service"]["problems"] == []
    (problem,) = bob.status()["state"]["service"]["problems"]
    assert f"those of {ann.application} (of-ann, of ann)" in problem


def test_after_a_kill_the_other_takes_over_and_the_next_start_clears_the_rest(site, users):
    ann, bob = users
    killed = ann.application
    site.ask(lambda manager: kill(manager, ApplicationId.parse(killed), "an operator"))
    site.until(
        "the other holds the slots",
        lambda: {site.attribute(host, OWNER) for host in site.names} == {bob.application},
    )
    site.until("it says so no more", lambda: bob.status()["state"]["service"]["problems"] == [])
    assert ann.retained() == [killed]
    said = ann.start()
    assert f"removed what {killed} (KILLED) left" in said
    assert f"{bob.application} (of-bob, of bob) runs here already" in said
    assert ann.retained() == [ann.application]
    assert ann.stored() == [ann.application]


def test_an_end_leaves_the_other_and_its_slots(site, users):
    ann, bob = users
    slots = site.slots()
    stopped = ann.application
    assert "has ended: FINISHED (SUCCEEDED)" in ann.run("stop")
    assert site.slots() == slots
    site.until(
        "its folders are gone",
        lambda: stopped.partition("_")[2] not in {each.name for each in own_folders(site)},
    )
    assert "of-bob" in bob.run("status")
    assert bob.mapper(site.others[0])["error"] < 1e-9


def test_nodes_that_a_killed_application_left_are_restored(site, users):
    """By its master, if YARN leaves it the time, else by what a start does first."""
    _, bob = users
    killed = ApplicationId.parse(bob.application)
    site.ask(lambda manager: kill(manager, killed, "an operator"))
    site.until("no process of a container is left", lambda: not site.processes())
    site.attributes()
    site.ask(lambda manager: restore_left_nodes(manager, print))
    assert set(site.slots().values()) == {SLOTS}
    assert not site.attributes()
    assert "nothing runs" in bob.run("stop")
    assert (bob.retained(), bob.stored()) == ([], [])


# ---- an upgrade


@pytest.fixture
def next_version(site, tmp_path):
    """Ann's next version: another environment, under another name."""
    about = tmp_path / "next_version-2.dist-info"
    about.mkdir()
    (tmp_path / "next_version.py").write_text("VERSION = 2\n")
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: next-version\nVersion: 2\n")
    (about / "RECORD").write_text(
        "".join(f"{name},,\n" for name in ("next_version.py", f"{about.name}/METADATA"))
    )
    found = User(site, "ann", "next")
    found.environ["PYTHONPATH"] = str(tmp_path)
    launch = yaml.safe_load(found.settings.read_text())
    launch["environment"]["packages"] = ["next-version"]
    found.settings.write_text(yaml.safe_dump(launch))
    return found


def server(answer):
    """Whose answer to a `Caller` it is."""
    return answer["node"], answer["port"]


@pytest.mark.slow
def test_a_mapper_goes_on_while_the_next_version_takes_the_place_of_the_old_one(site, users, next_version):
    old, _ = users
    host = site.others[0]
    old.start()
    stopped = old.application
    program = ROOT / "tests/fixtures/yarn_site/caller_program.py"
    python = [sys.executable, str(program), str(ROOT), str(site.token_file()), "0.1"]
    argv = ["env", f"NM_HOST={host}", "USER=ann", *python]
    with Caller(site.cluster.exec_argv(site.names[host], argv)) as caller:
        site.until("the old version's server answers", lambda: caller.answers)
        before = {server(each) for each in caller.answers}
        next_version.start()
        site.until("the next version's answers", lambda: server(caller.answers[-1]) not in before)
        assert "has ended: FINISHED (SUCCEEDED)" in old.run("stop", "--application", stopped)
        ended = time.time()
        answer = site.until("it goes on", lambda: caller.after(ended))
        assert server(answer) not in before
        assert caller.failures() == []
    assert "has ended: FINISHED (SUCCEEDED)" in next_version.run("stop", "--application", "next")
