"""Both jobs on a real cluster: where the work is done, what becomes of bad input, that no secret leaks."""

from __future__ import annotations

import base64
import contextlib
import io
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.demo.cluster import read_servers
from jobs.embed.cli import put_model
from jobs.factorize.job import FactorizeJob, factors_of, good_entries, parts_uri, run_factorize
from jobs.factorize.manifest import key_of, parse_row
from jobs.factorize.matrices import (
    GARBAGE_LINE,
    LIMIT,
    balance,
    make_bytes,
    manifest_of,
    plan_flawed,
    plan_matrices,
    verify,
)
from jobs.images.job import ImagesJob, run_images
from jobs.images.make_input import PatchPlan, purity, write_files
from jobs.runners.hadoop import HadoopRunner
from jobs.runners.step import Report, Step, StepResult
from jobs.zipapp import ARCHIVE_NAME, build_zipapp
from tests.fixtures.hadoop_conf import conf_without
from tests.fixtures.programs import ran
from yarn_accel.adapters.credentials import issue_token_file, read_master_secret
from yarn_accel.client import SequenceFileReader
from yarn_accel.client.task_servers import load_credential
from yarn_accel.errors import JobError, StorageError
from yarn_accel.hadoop.site import SiteSettings
from yarn_accel.storage import Store
from yarn_accel.testbed import Cluster
from yarn_accel.wire.credential import Credential, encode

pytestmark = [pytest.mark.hadoop]

ROOT = Path(__file__).resolve().parents[3]
MAX_BYTES = 1 << 28
CREDENTIAL_FILE = re.compile(rb"mapreduce\.job\.credentials\.binary=([^\0]+)")


def silent(_: str) -> None:
    """Report nothing."""


@pytest.fixture(scope="module")
def site(hadoop_cluster):
    return SiteSettings.read({"HADOOP_CONF_DIR": str(hadoop_cluster.conf_dir)})


@pytest.fixture(scope="module")
def store(site):
    return Store(site.conf_dir)


@pytest.fixture
def runner(site, tmp_path):
    return HadoopRunner(site, scratch=tmp_path)


@pytest.fixture
def manifest(runner, store):
    """A manifest of small matrices in HDFS, one of each flaw among them, cut into four tasks."""
    matrices = balance((*plan_matrices(12, 32, 160), *plan_flawed(64)), 4)
    for matrix in matrices:
        if matrix.flaw != "missing":
            store.write_atomic(f"{runner.home('in')}/{matrix.key}.bin", [make_bytes(matrix)])
    return manifest_of(matrices, runner.home("in"), runner.home("out")) + GARBAGE_LINE + "\n"


def needles(credentials: list[Credential], master: bytes) -> dict[str, bytes]:
    """Every form in which a secret might be written down."""
    found = {}
    for name, secret in [("master", master), *((f"key {i}", c.key) for i, c in enumerate(credentials))]:
        found[f"{name} raw"] = secret
        found[f"{name} hex"] = secret.hex().encode()
        found[f"{name} base64"] = base64.b64encode(secret).rstrip(b"=")
        found[f"{name} urlsafe"] = base64.urlsafe_b64encode(secret).rstrip(b"=")
    for i, credential in enumerate(credentials):
        found[f"credential {i}"] = encode(credential)
        found[f"credential {i} base64"] = base64.b64encode(encode(credential)).rstrip(b"=")[:-2]
    return found


class ProcessWatch:
    """Reads environment and arguments of every process, again and again, while a job runs.

    Args:
        master: the site's secret.
        folder: files of credentials elsewhere belong to tests that run beside these.

    Attributes:
        issued: the credentials in the files that processes name; empty before the first is seen.
    """

    def __init__(self, master: bytes, folder: Path) -> None:
        self._master, self._folder = master, os.fsencode(folder)
        self.issued: dict[bytes, Credential] = {}
        self.leaks: set[str] = set()
        self.mappers: set[str] = set()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> ProcessWatch:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.15):
            words = needles([*self.issued.values()], self._master)
            for folder in Path("/proc").glob("[0-9]*"):
                try:
                    content = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
                except OSError:
                    continue
                for file in CREDENTIAL_FILE.findall(content):
                    if file.startswith(self._folder) and file not in self.issued:
                        found = load_credential({"HADOOP_TOKEN_FILE_LOCATION": os.fsdecode(file)}, 0)
                        self.issued[file] = found
                if ARCHIVE_NAME.encode() in content and b"mapreduce_task_attempt_id=" in content:
                    self.mappers.add(folder.name)
                self.leaks.update(name for name, word in words.items() if word in content)


def everything_in_hdfs(store: Store, uri: str) -> Iterator[tuple[str, bytes]]:
    """URI and content of every file below a folder, matrices aside.

    Daemons write, rename and delete meanwhile: what has gone is left out.
    """
    for child in _children(store, uri):
        try:
            store.size(child)
        except StorageError:
            yield from everything_in_hdfs(store, child)
            continue
        if not child.endswith((".bin", ".npz", ".seq")):
            content = _content(store, child)
            if content is not None:
                yield child, content


def _children(store: Store, uri: str) -> list[str]:
    try:
        return store.list(uri)
    except StorageError:
        if store.exists(uri):
            raise
        return []


def _content(store: Store, uri: str) -> bytes | None:
    """Of a file, also of one that is being written; None: it has gone."""
    until_s = time.monotonic() + 60
    while True:
        try:
            return store.read_bytes(uri, MAX_BYTES)
        except StorageError:
            if not store.exists(uri):
                return None
            if time.monotonic() > until_s:
                raise
        time.sleep(0.05)


def traces_of(job_id: str, cluster: Cluster, site: SiteSettings, store: Store) -> dict[str, bytes]:
    """Every file a job may have left a trace in; waits until the logs of its containers are aggregated."""
    patterns = {
        "history": (job_id, ".jhist"),
        "job.xml": (job_id, "conf.xml"),
        "container logs": ("/logs/", job_id.replace("job_", "application_")),
    }
    deadline_s = time.monotonic() + 180
    missing = list(patterns)
    traces: dict[str, bytes] = {}
    while missing and time.monotonic() < deadline_s:
        traces = dict(everything_in_hdfs(store, f"{site.properties['fs.defaultFS']}/"))
        missing = [
            kind
            for kind, parts in patterns.items()
            if not any(all(part in name for part in parts) and not name.endswith(".tmp") for name in traces)
        ]
        time.sleep(0.2)
    assert not missing, f"no {missing} of {job_id} among {sorted(traces)}"
    for path in (*cluster.log_files(), *cluster.conf_dir.iterdir(), *cluster.node_conf_dir.iterdir()):
        if path.is_file():
            traces[str(path)] = path.read_bytes()
    return traces


def test_factorize_uses_the_servers_on_every_node_and_leaks_no_secret(
    hadoop_cluster, site, runner, store, manifest, tmp_path_factory
):
    """The whole job, watched: results, counters, places, and every trace it leaves."""
    master = read_master_secret(hadoop_cluster.master_secret_file)
    before = {server.name: server.done for server in read_servers(hadoop_cluster.pipeline_config_files)}
    with ProcessWatch(master, tmp_path_factory.getbasetemp()) as watch:
        outcome = run_factorize(runner, store, manifest, FactorizeJob(n_tasks=4, residual="all"), silent)
    assert (outcome.n_in, len(outcome.results), len(outcome.rejects)) == (17, 12, 5)
    assert {reject.code for reject in outcome.rejects} == {
        *("manifest", "not-finite", "not-positive-definite", "storage", "wrong-length")
    }
    assert outcome.counters.get("cpu_fallback", 0) == 0
    after = {server.name: server.done for server in read_servers(hadoop_cluster.pipeline_config_files)}
    assert len(after) == 2
    assert all(after[name] > before[name] for name in after)
    nodes = {task.node for task in outcome.tasks if task.state == "SUCCEEDED"}
    assert len(nodes) >= 3, "mappers ask for slots, so they spread"
    done = {row.key for row in outcome.results}
    entries = [entry for entry in good_entries(manifest) if entry.key in done]
    checks = verify(lambda uri: store.read_bytes(uri, MAX_BYTES), factors_of(store, entries))
    assert all(check.residual < LIMIT for check in checks)

    words = needles([*watch.issued.values()], master)
    assert len(watch.issued) == 1
    assert watch.mappers, "the watch saw no mapper, so it proves nothing"
    assert not watch.leaks
    (job_id,) = outcome.job_ids
    traces = traces_of(job_id, hadoop_cluster, site, store)
    assert any(name.endswith("conf.xml") and b"factorize-map" in content for name, content in traces.items())
    leaks = [
        (name, word)
        for name, content in traces.items()
        for word, secret in words.items()
        if secret in content
    ]
    assert leaks == []


def test_images_are_clustered_with_a_credential_from_the_administrator(
    hadoop_cluster, site_of_a_user, store, tmp_path
):
    """A user of a real site cannot read its master secret: he is given a credential, which is enough."""
    master = read_master_secret(hadoop_cluster.master_secret_file)
    given = issue_token_file(tmp_path / "given", master, 600, "alice")
    runner = HadoopRunner(site_of_a_user, credential_file=given)
    files = [tmp_path / f"part-{number}.seq" for number in range(2)]
    write_files(
        PatchPlan(n_images=160, side_px=48, n_broken=2), 2, lambda number: files[number].open("wb"), silent
    )
    uris = tuple(f"{runner.home('images-input')}/{path.name}" for path in files)
    for path, uri in zip(files, uris, strict=True):
        store.write_atomic(uri, [path.read_bytes()])
    found = run_images(runner, store, uris, 162, ImagesJob(), silent)
    assert len(found.outcome.results) == 160
    assert [reject.code for reject in found.outcome.rejects] == ["broken-image"] * 2
    assert found.outcome.counters.get("cpu_fallback", 0) == 0
    assert purity(found.clustering.index).share > 0.8
    assert {task.kind for task in found.outcome.tasks} == {"map", "reduce"}


@pytest.mark.slow
def test_images_are_clustered_in_rounds_over_several_reducers(runner, store):
    uri = f"{runner.home('rounds-input')}/part-0.seq"
    content = io.BytesIO()
    write_files(PatchPlan(n_images=80, side_px=48), 1, lambda _: contextlib.nullcontext(content), silent)
    store.write_atomic(uri, [content.getvalue()])
    job = ImagesJob(k=8, n_rounds=1, n_reduces=2, sample_one_in=2)
    found = run_images(runner, store, (uri,), 80, job, silent)
    assert len(found.outcome.results) == 80
    assert found.clustering.summary["rounds"] == 1
    assert len(found.outcome.job_ids) == 4, "features, start, one round, index"
    assert found.outcome.counters.get("cpu_fallback", 0) == 0


@pytest.mark.slow
def test_images_are_clustered_by_the_embeddings_of_a_model_in_hdfs(runner, store):
    """Both lie in HDFS; the servers read the model once, and compute for all mappers of a streaming job."""
    content = io.BytesIO()
    plan = PatchPlan(n_images=120, side_px=48, n_broken=2)
    write_files(plan, 1, lambda _: contextlib.nullcontext(content), silent)
    uri = f"{runner.home('embed-input')}/part-0.seq"
    store.write_atomic(uri, [content.getvalue()])
    job = ImagesJob(model=put_model(store, runner.home("embed/model.onnx")), is_fallback_allowed=False)
    found = run_images(runner, store, (uri,), 122, job, silent, "embed")
    assert [reject.code for reject in found.outcome.rejects] == ["broken-image"] * 2
    counters = found.outcome.counters
    assert (counters["records_in"], counters["done"], counters["rejected"]) == (122, 120, 2)
    assert counters.get("cpu_fallback", 0) == 0
    share = purity(found.clustering.index).share
    print(f"\n{found.outcome.wall_s:.1f} s, purity {share:.3f}, jobs {found.outcome.job_ids}")
    assert share > 0.5


@pytest.fixture
def site_of_a_user(hadoop_cluster, tmp_path):
    """As a user has it who cannot read the site's secret."""
    conf_dir = conf_without(hadoop_cluster.conf_dir, tmp_path / "conf", "master_secret_file")
    return SiteSettings.read({"HADOOP_CONF_DIR": str(conf_dir)})


@pytest.mark.slow
def test_a_forged_credential_is_refused_in_one_line(site_of_a_user, store, manifest, tmp_path):
    line = next(line for line in manifest.splitlines() if line.startswith("m0"))
    forged = issue_token_file(tmp_path / "forged", bytes(32), 600, "alice")
    with pytest.raises(JobError, match="does not know the secret behind this credential"):
        run_factorize(
            HadoopRunner(site_of_a_user, credential_file=forged), store, line, FactorizeJob(n_tasks=1), silent
        )


@pytest.mark.slow
def test_strict_fails_the_job_and_names_the_first_bad_record(runner, store, manifest):
    lines = [line for line in manifest.splitlines() if line.startswith(("m0", "bad-nan"))]
    lines.insert(3, GARBAGE_LINE)
    with pytest.raises(JobError) as caught:
        run_factorize(runner, store, "\n".join(lines), FactorizeJob(n_tasks=1, is_strict=True), silent)
    assert f"accel-job: record {key_of(GARBAGE_LINE)} (manifest)" in str(caught.value)


@pytest.fixture
def scrubbed(hadoop_cluster, tmp_path):
    """Run ``python -m jobs`` with nothing in the environment but what a user of Hadoop has."""

    def run(*words, conf_dir=hadoop_cluster.conf_dir):
        environ = {"PATH": os.environ["PATH"], "HOME": str(Path.home()), "HADOOP_CONF_DIR": str(conf_dir)}
        if "XDG_CACHE_HOME" in os.environ:
            environ["XDG_CACHE_HOME"] = os.environ["XDG_CACHE_HOME"]
        return ran(
            [sys.executable, "-m", "jobs", *words, "--runner", "hadoop", "--out", str(tmp_path / "out")],
            cwd=ROOT,
            env=environ,
            timeout=300,
        )

    return run


@pytest.mark.slow
def test_a_job_runs_with_only_hadoop_conf_dir(hadoop_cluster, scrubbed, tmp_path):
    daemons = {(d.node, d.role): d.pid for d in hadoop_cluster.status().daemons}
    factorized = scrubbed(
        *("factorize", "--make", "6", "--tasks", "2", "--verify", "-1", "--no-fallback", "--by", "value"),
        *("--output", "sequence"),
    )
    assert factorized.returncode == 0, factorized.stderr
    rows = (tmp_path / "out" / "factorize" / "results.tsv").read_text().splitlines()
    assert len(rows) == 7
    assert {(d.node, d.role): d.pid for d in hadoop_cluster.status().daemons} == daemons, (
        "nothing was started"
    )


@pytest.mark.slow
def test_images_are_clustered_with_only_hadoop_conf_dir(scrubbed, tmp_path):
    clustered = scrubbed("images", "--make", "80", "--side", "48", "--no-fallback")
    assert clustered.returncode == 0, clustered.stderr
    assert len((tmp_path / "out" / "images" / "index.tsv").read_text().splitlines()) == 81


@pytest.fixture
def conf_without_servers(hadoop_cluster, tmp_path):
    """Somebody else's configuration: it names no binding."""
    keys = ("binding_file", "master_secret_file")
    return conf_without(hadoop_cluster.conf_dir, tmp_path / "conf", *keys)


@pytest.mark.slow
def test_a_site_without_servers_computes_on_its_mappers(conf_without_servers, scrubbed, tmp_path):
    """The mappers have numpy here, so they do the work."""
    words = ("factorize", "--make", "2", "--tasks", "1", "--n-max", "64", "--python", sys.executable)
    done = scrubbed(*words, conf_dir=conf_without_servers)
    assert done.returncode == 0, done.stderr
    rows = (tmp_path / "out" / "factorize" / "results.tsv").read_text().splitlines()[1:]
    assert {parse_row(row).device for row in rows} == {"cpu:fallback"}


@pytest.mark.slow
def test_a_site_without_servers_fails_where_no_fallback_is_wanted(conf_without_servers, scrubbed):
    words = ("factorize", "--make", "2", "--tasks", "1", "--n-max", "64")
    refused = scrubbed(*words, "--no-fallback", conf_dir=conf_without_servers)
    assert refused.returncode == 1
    assert "no pipeline server and no fallback: " in refused.stderr


def test_twin_attempts_of_a_task_do_no_harm(hadoop_cluster, runner, store, manifest, tmp_path):
    """Speculation on purpose: two attempts of one task, on two nodes, at the same time."""
    entries = [entry for entry in good_entries(manifest) if entry.key.startswith("m0")]
    lines = "".join(line + "\n" for line in manifest.splitlines() if line.startswith("m0"))
    task = f"task_{time.time_ns()}_0001"
    build_zipapp(tmp_path / ARCHIVE_NAME)
    (tmp_path / "binding.json").write_bytes(hadoop_cluster.binding_file.read_bytes())
    token = issue_token_file(tmp_path / "token", read_master_secret(hadoop_cluster.master_secret_file), 600)
    twins = [
        start_attempt(hadoop_cluster, node, task, number, tmp_path, token)
        for number, node in enumerate(("w2", "w4"))
    ]
    outputs = [twin.communicate(lines, timeout=240) for twin in twins]
    assert [twin.returncode for twin in twins] == [0, 0], outputs
    rows = [
        sorted((parse_row(line) for line in stdout.splitlines()), key=lambda row: row.key)
        for stdout, _ in outputs
    ]
    assert len(rows[0]) == len(rows[1]) == len(entries) == 12
    for first, second in zip(*rows, strict=True):
        assert replace(first, **PLACES) == replace(second, **PLACES)
    checks = verify(lambda uri: store.read_bytes(uri, MAX_BYTES), factors_of(store, entries))
    assert all(check.residual < LIMIT for check in checks)
    folder = runner.home("out")
    assert [uri for uri in store.list(folder) if not uri.endswith(".npz")] == []


PLACES = {"server": "", "node": "", "attempt": "", "seconds": ()}


def start_attempt(
    cluster, node: str, task: str, number: int, folder: Path, token: Path
) -> subprocess.Popen[str]:
    """Start one attempt of a task on a node, with the variables Hadoop Streaming would set."""
    environ = {
        "HADOOP_TOKEN_FILE_LOCATION": str(token),
        "NM_HOST": cluster.plan.node(node).host,
        "mapreduce_task_id": f"{task}_m_000000",
        "mapreduce_task_attempt_id": f"{task}_m_000000_{number}",
    }
    words = [
        *("env", "-C", str(folder)),
        *(f"{name}={value}" for name, value in environ.items()),
        "python3",
        ARCHIVE_NAME,
        "factorize-map",
    ]
    return subprocess.Popen(
        cluster.exec_argv(node, words),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


SPOILT = """
case "$mapreduce_task_attempt_id" in
*_m_000000_0) python3 "$@"; exit 1 ;;
*_m_000001_0)
    exec 3<&0
    python3 "$@" <&3 &
    until ls factors-*.seq > /dev/null 2>&1 || ! kill -0 $!; do sleep 0.05; done
    kill -9 $!
    exit 1 ;;
*) exec python3 "$@" ;;
esac
"""


class SpoiltRunner(HadoopRunner):
    """First attempts fail: of the first task after all its work, of the second while it works."""

    def __init__(self, site: SiteSettings, folder: Path) -> None:
        super().__init__(site, "sh spoilt.sh")
        self._script = folder / "spoilt.sh"
        self._script.write_text(SPOILT)

    def run(self, step: Step, report: Report) -> StepResult:
        return super().run(replace(step, files=(self._script, *step.files)), report)


@pytest.mark.slow
def test_sequences_have_each_record_once_although_attempts_are_repeated(site, store, tmp_path):
    runner = SpoiltRunner(site, tmp_path)
    matrices = balance(plan_matrices(24, 32, 160), 3)
    for matrix in matrices:
        store.write_atomic(f"{runner.home('in')}/{matrix.key}.bin", [make_bytes(matrix)])
    manifest = manifest_of(matrices, runner.home("in"), runner.home("out"))
    outcome = run_factorize(runner, store, manifest, FactorizeJob(n_tasks=3, output="sequence"), silent)
    states = {(task.attempt[-8:], task.state) for task in outcome.tasks}
    assert {("000000_0", "FAILED"), ("000001_0", "FAILED")} < states
    keys = []
    for uri in store.list(parts_uri(runner)):
        if uri.endswith(".seq"):
            with store.stream(uri) as stream:
                keys += [str(key) for key, _ in SequenceFileReader(stream)]
    assert sorted(keys) == sorted(matrix.key for matrix in matrices), "once each"
    checks = verify(
        lambda uri: store.read_bytes(uri, MAX_BYTES),
        factors_of(store, good_entries(manifest), parts_uri(runner)),
    )
    assert all(check.residual < LIMIT for check in checks)
    assert len(checks) == 24
