"""Two NameNodes and two ResourceManagers: the active one dies or hangs, the standby goes on where it was.

How long nobody answered is printed; docs/hadoop.md has such figures.
"""

from __future__ import annotations

import itertools
import json
import os
import posixpath
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import NEEDS_ROOT
from tests.fixtures.command_server import run_command
from tests.fixtures.two_masters import Masters
from tests.fixtures.yarn_site import DEADLINE_S, Site, SiteOptions, site_up
from tests.fixtures.yarn_site.job import Batch, Result, compare
from tests.fixtures.yarn_site.small_dag import SmallDag
from yarn_accel.errors import AccelError, UnavailableError
from yarn_accel.local_filesystem import unfinished_name
from yarn_accel.storage import Store
from yarn_accel.testbed.plan import NAME_SERVICE
from yarn_accel.users import user_name

pytestmark = [pytest.mark.hadoop, pytest.mark.root]
NAME = "two-masters"
SECTIONS = {
    "worker": {"enabled": True, "memory_mib": 768, "vcores": 2},
    "tasks": {"max_workers": 1, "policy": "mps"},
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, Any]) -> Iterator[Site]:
    """Two workers, of which one plays an accelerator, below two masters."""
    if os.geteuid() != 0:
        pytest.skip(f"{NEEDS_ROOT}: network namespaces")
    sections = {**environment, **SECTIONS}
    options = SiteOptions(NAME, workers=2, accelerators=1, mode="netns", ha=True, sections=sections)
    with site_up(options, tmp_path_factory.mktemp(NAME)) as found:
        yield found


class Writer:
    """Writes one file after the other until its block ends, and tries each again until it is written."""

    def __init__(self, store: Store, folder: str) -> None:
        self.written: dict[str, float] = {}
        self.refusals: list[AccelError] = []
        self._store, self._folder = store, folder
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join(DEADLINE_S)

    def _write(self) -> None:
        while not self._ends.is_set():
            uri = f"{self._folder}/{len(self.written)}"
            try:
                self._store.write_atomic(uri, [uri.encode()])
            except AccelError as error:
                self.refusals.append(error)
                continue
            self.written[uri] = time.time()

    def has_written(self, n_more: int) -> Callable[[], bool]:
        """Whether so many files more than now are written."""
        wanted = len(self.written) + n_more
        return lambda: len(self.written) >= wanted

    def check(self) -> None:
        """Each file is there as it was written, and every refusal said that another try may help."""
        assert all(error.transient for error in self.refusals), self.refusals
        assert {uri: self._store.read_bytes(uri).decode() for uri in self.written} == {
            uri: uri for uri in self.written
        }

    def longest_gap_s(self) -> float:
        times = list(self.written.values())
        return max(later - at for at, later in itertools.pairwise(times))


def has_nodes(site: Site) -> bool:
    """Whether a ResourceManager answers and has both nodes."""
    try:
        return set(site.nodes()) == {"w1", "w2"}
    except UnavailableError:
        return False


def test_no_file_is_lost_with_the_active_namenode(site: Site) -> None:
    store = Store(site.cluster.conf_dir)
    with Writer(store, f"hdfs://{NAME_SERVICE}/written") as writer:
        site.until("some files are written", writer.has_written(5))
        with Masters(site.cluster, "namenode").without(signal.SIGKILL):
            site.until("files are written again", writer.has_written(5))
    print(f"no file was written for {writer.longest_gap_s():.1f} s; {len(writer.refusals)} refusals")
    writer.check()
    assert store.read_bytes("hdfs:///written/0") == f"hdfs://{NAME_SERVICE}/written/0".encode()


def test_the_standby_resourcemanager_has_the_nodes(site: Site) -> None:
    with Masters(site.cluster, "resourcemanager").without(signal.SIGKILL):
        began_s = time.monotonic()
        site.until("both nodes are there", lambda: has_nodes(site))
        print(f"the ResourceManager had its nodes after {time.monotonic() - began_s:.1f} s")


def examined(site: Site, conf_dir: Path) -> dict[str, dict[str, Any]]:
    """What ``yarn-accel doctor`` finds with that configuration, by its code."""
    environ = {**site.environ, "HADOOP_CONF_DIR": str(conf_dir)}
    done = run_command("yarn_accel", ["doctor", "--json"], env=environ, timeout=DEADLINE_S)
    assert done.stderr == ""
    return {each["code"]: each for each in json.loads(done.stdout)["troubles"]}


def changed(conf_dir: Path, target: Path, name: str, value: str = "") -> Path:
    """A copy of a configuration in which a property has another value, or none."""
    shutil.copytree(conf_dir, target)
    places = [path for path in target.glob("*-site.xml") if f"<name>{name}</name>" in path.read_text()]
    assert places
    wanted = rf"(<name>{re.escape(name)}</name>\s*<value>)[^<]*"
    for path in places:
        path.write_text(re.sub(wanted, lambda found: found[1] + value, path.read_text()))
    return target


@pytest.mark.slow
def test_doctor_finds_the_troubles_of_two_masters(site: Site, tmp_path: Path) -> None:
    conf_dir, plan = site.cluster.conf_dir, site.cluster.plan
    assert examined(site, conf_dir) == {}
    for number, (name, value, code) in enumerate(
        (
            (f"dfs.namenode.rpc-address.{NAME_SERVICE}.nn2", "", "namenode-address-missing"),
            (f"dfs.client.failover.proxy.provider.{NAME_SERVICE}", "", "proxy-provider-missing"),
            ("yarn.resourcemanager.ha.rm-ids", "", "resourcemanager-ids-missing"),
            ("yarn.resourcemanager.hostname.rm2", "", "resourcemanager-address-missing"),
            ("fs.defaultFS", "hdfs://elsewhere", "unknown-name-service"),
        )
    ):
        found = examined(site, changed(conf_dir, tmp_path / str(number), name, value))
        assert code in found, (name, found)
    masters = Masters(site.cluster, "namenode")
    active = site.until("a namenode is active", masters.active)
    (standby,) = {"master", "master2"} - {active}
    site.cluster.kill(standby, "namenode")
    try:
        away = [each for each in examined(site, conf_dir).values() if "NameNode" in each["place"]]
    finally:
        site.cluster.start(standby, "namenode")
        site.until("all daemons are healthy", lambda: site.cluster.status().is_healthy)
    assert [each["is_warning"] for each in away] == [True]
    assert str(plan.node(standby).address) in away[0]["place"] or standby in away[0]["place"]


def unfinished_in(store: Store, folder: str) -> list[str]:
    """The files of a folder that are being written."""
    names = [posixpath.basename(uri) for uri in store.list(folder)] if store.exists(folder) else []
    return [name for name in names if unfinished_name(name)]


@pytest.mark.slow
@pytest.mark.parametrize("act", ["packing the environment", "uploading what the containers need"])
def test_a_start_goes_on_with_the_other_namenode(site: Site, act: str) -> None:
    """The active one dies as the start begins to pack, or in the middle of the upload."""
    store = Store(site.cluster.conf_dir)
    environments = f"hdfs://{NAME_SERVICE}/user/{user_name()}/.yarn-accel/environments"
    is_upload = act.startswith("uploading")
    store.delete(environments)
    began_s = time.monotonic()
    starting = site.begin("start", "--config", str(site.settings))
    assert starting.stderr is not None
    try:
        said = ""
        while act not in said:
            line = starting.stderr.readline()
            said += line
            assert line, said
        if is_upload:
            # Bytes of the archive are on their way: its temporary name is there.
            site.until("the upload has begun", lambda: unfinished_in(store, environments))
        with Masters(site.cluster, "namenode").without(signal.SIGKILL):
            assert not is_upload or starting.poll() is None, "the start was over before its NameNode died"
            _, err = starting.communicate(timeout=DEADLINE_S)
    finally:
        starting.kill()
    assert starting.returncode == 0, said + err
    site.until("every accelerator node serves and every other is bound", site.is_whole)
    n_tries = err.count("trying again")
    print(f"{act}, without the NameNode: {time.monotonic() - began_s:.1f} s, {n_tries} tries again")
    assert len(site.applications()) == 1
    site.stop()


@pytest.mark.slow
def test_a_start_goes_on_with_the_other_resourcemanager(site: Site) -> None:
    began_s = time.monotonic()
    starting = site.begin("start", "--config", str(site.settings))
    try:
        site.until("it is submitted", site.applications)
        with Masters(site.cluster, "resourcemanager").without(signal.SIGKILL):
            _, err = starting.communicate(timeout=DEADLINE_S)
    finally:
        starting.kill()
    assert starting.returncode == 0, err
    site.until("every accelerator node serves and every other is bound", site.is_whole)
    print(f"start without the ResourceManager: {time.monotonic() - began_s:.1f} s")
    assert len(site.applications()) == 1


@pytest.fixture(scope="module")
def batch(site: Site) -> Iterator[Batch]:
    """Matrices for streaming jobs, on a site whose application runs."""
    if not site.applications():
        print(f"start: {site.start():.1f} s")
    yield Batch(site, n_records=60, n_tasks=2)
    site.stop()


@pytest.fixture(scope="module")
def undisturbed(batch: Batch) -> Result:
    """The outcome of the job without a fault."""
    return batch.run()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("role", "signum"),
    [
        ("resourcemanager", signal.SIGKILL),
        ("resourcemanager", signal.SIGSTOP),
        ("namenode", signal.SIGSTOP),
        ("namenode", signal.SIGKILL),
    ],
)
def test_nothing_is_lost_or_doubled(
    site: Site, batch: Batch, undisturbed: Result, role: str, signum: int, tmp_path: Path
) -> None:
    """A streaming job, a DAG, requests and files are under way."""
    name = f"{role}-{signal.Signals(signum).name.lower()}"
    store = Store(site.cluster.conf_dir)
    root = f"hdfs://{NAME_SERVICE}"
    with (
        closing(SmallDag(site, name, tmp_path, f"{root}/dags")) as dag,
        site.caller("w2") as caller,
        Writer(store, f"{root}/{name}") as writer,
    ):
        site.until("the server answers", lambda: caller.answers)
        site.until("a task of the DAG runs", dag.is_running)
        job = batch.begin(name)
        site.until("the job is under way", lambda: job.is_under_way(5))
        at = time.time()
        with Masters(site.cluster, role).without(signum):
            site.until("files are written", writer.has_written(5))
            dag.go_on()
            site.until("YARN answers", lambda: has_nodes(site))
            yarn_s = time.time() - at
            site.until("the application's master answers", lambda: site.control("status", 60.0))
            master_s = time.time() - at
            result = job.result()
            dag.check(DEADLINE_S)
        last = time.time()
        site.until("the server answers", lambda: caller.after(last))
    print(
        f"{name}: no file for {writer.longest_gap_s():.1f} s, no answer for {caller.longest_gap_s(at):.2f} s,"
        f" YARN after {yarn_s:.1f} s, status after {master_s:.1f} s, "
        f"job {result.wall_s:.1f} s (undisturbed {undisturbed.wall_s:.1f} s, {result.way})"
    )
    writer.check()
    assert not caller.failures()
    assert compare(undisturbed, result).is_equal, compare(undisturbed, result).words()
    assert len(site.applications()) == 1
    site.until("every accelerator node serves and every other is bound", site.is_whole)
    (server,), (other,) = site.servers, site.others
    site.until("the binding is an attribute", lambda: site.attribute(other) == server)
    site.until("the slots are the application's", lambda: site.slots()[other] != site.options.slots)
