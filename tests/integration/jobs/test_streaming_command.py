"""The mapper of docs/mapper.md as a job of a real Hadoop, submitted by `yarn-accel streaming`."""

import io
import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from jobs.runners.hadoop import HadoopRunner
from tests.fixtures.programs import ran
from yarn_accel.hadoop.java import ADD_OPENS
from yarn_accel.hadoop.site import HadoopSite, SiteSettings
from yarn_accel.hadoop.streaming import LOG_SETTINGS
from yarn_accel.storage import Store

pytestmark = [pytest.mark.hadoop]

ROOT = Path(__file__).resolve().parents[3]
MAX_BYTES = 1 << 24


@pytest.fixture
def mapper(tmp_path):
    """The first mapper of the page, as a file in an empty folder."""
    page = (ROOT / "docs" / "mapper.md").read_text(encoding="utf-8")
    found = re.search(r"cat > my_mapper.py <<'END'\n(.*?)^END$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "my_mapper.py").write_text(found[1], encoding="utf-8")
    return tmp_path


@pytest.fixture
def mapred(hadoop_cluster, tmp_path):
    """`mapred streaming` as a distribution's shell script runs it; Maven has the jars, but not the script."""
    install = HadoopSite.load({**os.environ, "HADOOP_CONF_DIR": str(hadoop_cluster.conf_dir)}).install
    options = " ".join([*ADD_OPENS, f"-Dlog4j.configuration=file:{LOG_SETTINGS}"])
    program = tmp_path / "bin" / "mapred"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\n"
        '[ "$1" = streaming ] || exit 9\n'
        f"shift; echo > {tmp_path}/was-run\n"
        f'exec {install.java} {options} $HADOOP_CLIENT_OPTS -cp {install.class_path_jar}:"$HADOOP_CONF_DIR" '
        'org.apache.hadoop.streaming.HadoopStreaming "$@"\n'
    )
    program.chmod(0o755)
    return program


@pytest.mark.slow
def test_the_first_mapper_of_the_page_runs_on_the_servers_by_the_sites_mapred(hadoop_cluster, mapper, mapred):
    """Without a `mapred` the command runs Java by itself; all jobs of `test_jobs_on_hadoop` do."""
    environ = {
        "PATH": f"{mapred.parent}:{os.environ['PATH']}",
        "HADOOP_CONF_DIR": str(hadoop_cluster.conf_dir),
        "PYTHONPATH": str(ROOT),
    }
    site = SiteSettings.read(environ)
    store, home = Store(site.conf_dir), HadoopRunner(site).home("streaming")
    matrices = {f"m{n}.npy": np.random.default_rng(n).standard_normal((64, 64)) for n in range(3)}
    for name, matrix in {**matrices, "bad.npy": np.full((4, 4), np.nan)}.items():
        packed = io.BytesIO()
        np.save(packed, matrix)
        store.write_atomic(f"{home}/in/{name}", [packed.getvalue()])
    uris = [f"{home}/in/{name}" for name in (*matrices, "bad.npy", "missing.npy")]
    store.write_atomic(f"{home}/uris", ["".join(uri + "\n" for uri in uris).encode()])
    job = ["-D", "mapreduce.job.reduces=0", "-input", f"{home}/uris", "-output", f"{home}/out"]
    done = ran(
        [
            *(sys.executable, "-m", "yarn_accel", "streaming", "--result", "result.json"),
            *(*job, "-mapper", "my_mapper.py"),
        ],
        env={**environ, "HOME": os.environ.get("HOME", "/")},
        cwd=mapper,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    parts = [uri for uri in store.list(f"{home}/out") if "/part-" in uri]
    text = b"".join(store.read_bytes(uri, MAX_BYTES) for uri in parts).decode()
    rows = {line.split("\t")[0]: line.split("\t")[1:] for line in text.splitlines()}
    assert {uri: row[0] for uri, row in rows.items()} == {
        **dict.fromkeys(uris[:3], "done"),
        **dict.fromkeys(uris[3:], "rejected"),
    }
    assert {rows[uri][1] for uri in uris[:3]} == {"cpu"}, "a server computed, not the mapper"
    assert [rows[uri][1] for uri in uris[3:]] == ["not-finite", "storage"]
    for uri in uris[:3]:
        with np.load(io.BytesIO(store.read_bytes(f"{uri}.lu.npz", MAX_BYTES))) as factors:
            assert factors["lu"].shape == (64, 64)
    assert (mapper / "was-run").exists()
    result = json.loads((mapper / "result.json").read_text())
    own = result["counters"]["yarn-accel"]
    assert (own["records_in"], own["done"], own["rejected"]) == (5, 3, 2)
    assert result["state"] == "SUCCEEDED"
    assert f"job: {result['job_id']} submitted" in done.stderr.splitlines()
