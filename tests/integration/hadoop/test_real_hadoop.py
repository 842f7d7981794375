"""Streaming jobs on the real Hadoop of all tests, and what Java takes from the class data archive."""

import itertools
import re
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from yarn_accel.adapters.journal_file import StoredJournal
from yarn_accel.adapters.rest import get_json
from yarn_accel.errors import JobError, StorageError
from yarn_accel.hadoop.java import class_path_names, write_class_path_jar
from yarn_accel.hadoop.site import HadoopSite
from yarn_accel.hadoop.streaming import NLINE_INPUT_FORMAT, StreamingJob, run_streaming
from yarn_accel.storage import Store
from yarn_accel.testbed import Cluster
from yarn_accel.testbed.single_node import SingleNode
from yarn_accel.testbed.software import ensure_archive, ensure_hadoop, find_archive, shared_classes

pytestmark = [pytest.mark.hadoop]

MAPPER = """#!/usr/bin/env python3
import os, sys
print("reporter:status:working", file=sys.stderr)
for line in sys.stdin:
    if "bad" in line:
        sys.exit("record 'bad' cannot be used\\nsecond line")
    print("reporter:counter:yarn-accel,done,1", file=sys.stderr)
    print(line.strip(), os.environ["mapreduce_map_resource_acct_slot"], sep="\\t")
"""
NUMBER = itertools.count()


def silent(_):
    """Report nothing."""


@pytest.fixture(scope="module")
def install():
    return ensure_hadoop(silent)


@pytest.fixture(scope="module")
def archive(install):
    built = ensure_archive(install, silent)
    assert built is not None
    return built


@dataclass(frozen=True)
class Node:
    """The cluster of all tests, and a folder of its own on it for inputs and outputs."""

    cluster: Cluster
    site: HadoopSite
    store: Store
    work: Path
    root: str


@pytest.fixture(scope="module")
def node(hadoop_cluster, hadoop_environ, tmp_path_factory):
    """With two inputs and a mapper."""
    site = HadoopSite.load(hadoop_environ)
    root = f"{site.properties['fs.defaultFS']}/of-test-real-hadoop"
    made = Node(hadoop_cluster, site, Store(hadoop_cluster.conf_dir), tmp_path_factory.mktemp("jobs"), root)
    made.store.write_atomic(f"{root}/good.txt", [b"".join(b"line%d\n" % k for k in range(4))])
    made.store.write_atomic(f"{root}/bad.txt", [b"bad\n"])
    (made.work / "mapper.py").write_text(MAPPER)
    return made


@pytest.fixture(scope="module")
def site(node):
    return node.site


def job(node, name, **changes):
    properties = {
        "mapreduce.input.lineinputformat.linespermap": "2",
        "mapreduce.map.resource.acct/slot": "1",
        "mapreduce.map.maxattempts": "1",
    }
    plain = StreamingJob(
        name=name,
        mapper="python3 mapper.py",
        inputs=[f"{node.root}/{name}.txt"],
        output=f"{node.root}/out-{next(NUMBER)}",
        files=[str(node.work / "mapper.py")],
        properties=properties,
        input_format=NLINE_INPUT_FORMAT,
    )
    return replace(plain, **changes)


def test_a_job_tells_its_progress_counters_attempts_and_output(node, site):
    lines = []
    wanted = job(node, "good")
    result = run_streaming(site, wanted, lines.append)
    assert result.check().state == "SUCCEEDED"
    assert result.counters["yarn-accel"] == {"done": 4}
    assert result.counters["org.apache.hadoop.mapreduce.TaskCounter"]["MAP_INPUT_RECORDS"] == 4
    done = [attempt for attempt in result.tasks if attempt.state == "SUCCEEDED"]
    assert len(done) == 2
    places = {("MAP", worker.host, worker.rack) for worker in node.cluster.plan.workers}
    assert {(attempt.kind, attempt.node, attempt.rack) for attempt in done} <= places
    assert all(0 < attempt.start_s <= attempt.finish_s for attempt in done)
    assert any(f"{result.job_id} submitted" in line for line in lines)
    assert any("map 100 %" in line for line in lines)
    parts = [node.store.read_bytes(uri, 1 << 20) for uri in node.store.list(wanted.output) if "/part-" in uri]
    assert sorted(b"".join(parts).decode().splitlines()) == [f"line{k}\t1" for k in range(4)]


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"inputs": ["/none"]}, r"Input path does not exist: hdfs://\S+/none"),
        pytest.param(
            {"output": "/of-test-real-hadoop/good.txt"},
            r"Output directory hdfs://\S+/good.txt already exists",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"input_format": "no.such.Format"},
            "-inputformat : class not found : no.such.Format",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_job_that_is_not_accepted_is_one_line(node, site, changes, cause):
    with pytest.raises(JobError, match=cause) as caught:
        run_streaming(site, job(node, "good", **changes), silent)
    assert "\n" not in str(caught.value)
    assert "was not accepted" in str(caught.value)


def test_an_interrupted_run_kills_its_job(node, site):
    seen = []

    def interrupt(line):
        seen.append(line)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_streaming(site, job(node, "good", mapper="sleep 600"), interrupt)
    application = seen[0].split()[1].replace("job_", "application_")
    manager = f"http://{node.cluster.plan.master.address}:{node.cluster.plan.ports.rm_http}"
    end_s = time.monotonic() + 120
    state = ""
    while state != "KILLED" and time.monotonic() < end_s:
        state = get_json(f"{manager}/ws/v1/cluster/apps/{application}")["app"]["state"]
        time.sleep(0.2)
    assert state == "KILLED"


def test_a_failed_job_gives_the_mapper_s_own_first_line_from_a_hadoop_home_too(
    node, hadoop_environ, install, tmp_path
):
    share = tmp_path / "home" / "share" / "hadoop"
    for name in class_path_names(install.class_path_jar):
        part = (
            "tools/lib"
            if "streaming" in name
            else "common"
            if name.startswith("hadoop-common")
            else "hdfs/lib"
        )
        (share / part).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(install.lib_dir / name, share / part / name)
    environ = {
        **hadoop_environ,
        "HADOOP_HOME": str(tmp_path / "home"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    site = HadoopSite.load(environ)
    assert site.install.class_path_jar.is_relative_to(tmp_path / "cache")
    assert site.install.n_jars == install.n_jars
    result = run_streaming(site, job(node, "bad"), silent)
    assert (result.ok, result.state) == (False, "FAILED")
    assert result.diagnostics.startswith("record 'bad' cannot be used (attempt_")
    hosts = "|".join(re.escape(worker.host) for worker in node.cluster.plan.workers)
    assert re.search(rf" on ({hosts})\)$", result.diagnostics)
    with pytest.raises(JobError, match="record 'bad' cannot be used"):
        result.check()


def test_daemons_really_have_the_archive_mapped(node, archive):
    daemons = [daemon for daemon in node.cluster.status().daemons if daemon.role != "pipeline"]
    assert len(daemons) == 11
    for daemon in daemons:
        assert str(archive) in Path(f"/proc/{daemon.pid}/maps").read_text(), daemon


def test_the_archive_is_used_and_another_class_path_gets_nothing_from_it(install, archive, tmp_path):
    assert find_archive(install) == archive
    shared, loaded = shared_classes(install, archive)
    assert loaded > 0
    assert shared == loaded
    for name in class_path_names(install.class_path_jar):
        (tmp_path / name).symlink_to(install.lib_dir / name)
    (tmp_path / "added.jar").symlink_to(install.streaming_jar)
    changed = replace(install, class_path_jar=tmp_path / "class-path.jar")
    write_class_path_jar(changed.class_path_jar, ["added.jar", *class_path_names(install.class_path_jar)])
    assert find_archive(changed) is None
    assert shared_classes(changed, archive)[0] == 0


def test_the_real_install_is_what_the_package_promises(install):
    names = class_path_names(install.class_path_jar)
    assert len(names) == install.n_jars == len(set(names))
    assert names == sorted(names)
    assert 80e6 < install.n_bytes < 200e6
    assert "hadoop-yarn-server-timelineservice-3.5.0.jar" in names


def test_a_journal_in_hdfs_is_taken_from_the_attempt_that_writes_it(node):
    """As after a master that only seemed dead: what it still writes counts for nobody."""
    store, folder = node.store, f"{node.root}/journal"
    first, second = StoredJournal(store, folder, 1), StoredJournal(store, folder, 2)
    assert first.read() == b""
    first.replace(b"begun\n")
    for number in range(5):
        first.append(b"line %d\n" % number)
    content = second.read()
    assert content == b"begun\n" + b"".join(b"line %d\n" % number for number in range(5))
    with pytest.raises(StorageError, match="journal-00000001"):
        first.append(b"too late\n")
    second.replace(content)
    second.append(b"more\n")
    second.close()
    assert StoredJournal(store, folder, 3).read() == content + b"more\n"


@pytest.mark.slow
def test_a_single_node_runs_a_job_and_leaves_no_process(install, archive, tmp_path):
    """What records the list of classes."""
    (tmp_path / "line.txt").write_text("line\n")
    with SingleNode(install, tmp_path / "node", silent, archive=archive) as single:
        single.put(tmp_path / "line.txt", "/line.txt")
        site = HadoopSite.load(single.environ)
        wanted = StreamingJob(name="line", mapper="cat", inputs=["/line.txt"], output="/out")
        assert run_streaming(site, wanted, silent).check().state == "SUCCEEDED"
        daemons = of_conf_dir(single.conf_dir)
        assert len(daemons) >= 5
    assert not of_conf_dir(single.conf_dir)


def of_conf_dir(conf_dir):
    """The processes whose command line names this configuration."""
    return [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(conf_dir).encode() in read(path)]


def read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""
