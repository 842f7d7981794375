"""A cluster with the application on it, and PySpark beside it; only for ``make test-spark``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.yarn_site import Site, SiteOptions, site_up
from yarn_accel.errors import StartupError
from yarn_accel.spark import write_py_files
from yarn_accel.storage import Store

PYTHON = os.environ.get("SPARK_TEST_PYTHON", "")
"""An interpreter with PySpark, pandas and pyarrow."""

RUN_DIR = f"/tmp/yarn-accel-{os.geteuid()}/{{node}}"
"""Where executors look for the agent of their node when nobody says where it is."""

PROGRAM = Path(__file__).with_name("program.py")
LIMIT_S = 540.0
_PART_BYTES = 1 << 22


def spark_home(python: str) -> Path:
    """Where the PySpark of an interpreter lies."""
    program = "import os, pyspark; print(os.path.dirname(pyspark.__file__))"
    found = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True)
    return Path(found.stdout.strip())


@dataclass
class Submitter:
    """Submits programs as a user of the site would, in client mode.

    Attributes:
        site: with the application.
        folder: for files of the driver.
        home: of Spark.
        environ: of ``spark-submit``.
    """

    site: Site
    folder: Path
    home: Path
    environ: Mapping[str, str]

    def begin(self, *words: str, confs: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start ``spark-submit`` of the tests' program with these arguments."""
        more = [f"--conf={key}={value}" for key, value in (confs or {}).items()]
        argv = [str(self.home / "bin" / "spark-submit"), "--master=yarn", "--deploy-mode=client", *more]
        argv += ["--py-files", write_py_files(self.folder), str(PROGRAM), *words]
        log = self.folder / "spark-submit.log"
        with log.open("w") as out:
            return subprocess.Popen(argv, env=dict(self.environ), stdout=out, stderr=out, text=True)

    def log(self) -> str:
        """The output of ``spark-submit``."""
        return (self.folder / "spark-submit.log").read_text(errors="replace")

    def result(self, process: subprocess.Popen[str], out: Path) -> dict[str, Any]:
        """The result of a program that was begun."""
        try:
            process.wait(LIMIT_S)
        finally:
            process.kill()
            process.wait()
        assert process.returncode == 0, f"{self.log()[-6000:]}\n{self.site.logs(600)}"
        found: dict[str, Any] = json.loads(out.read_text())
        return found


@pytest.fixture(scope="package")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Four nodes, two of which play accelerators; servers and agents are the application's."""
    if not PYTHON:
        pytest.skip("PySpark on a cluster: run `make test-spark`, which installs PySpark (870 MB)")
    try:
        options = SiteOptions("spark", agent={"run_dir": RUN_DIR})
        with site_up(options, tmp_path_factory.mktemp("admin")) as found:
            print(f"\nstart took {found.start():.1f} s")
            yield found
    except StartupError as error:
        pytest.skip(f"no Hadoop here: {error}")
    finally:
        for name in ("w1", "w2", "w3", "w4"):
            shutil.rmtree(RUN_DIR.format(node=name), ignore_errors=True)


@pytest.fixture(scope="package")
def jars(site: Site) -> str:
    """The URI of Spark's jars in HDFS, so that a submission does not upload them."""
    archive = site.folder / "spark-jars.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as target:
        for jar in sorted((spark_home(PYTHON) / "jars").glob("*.jar")):
            target.write(jar, jar.name)
    uri = f"{file_system(site)}/spark/jars.zip"

    def parts() -> Iterator[bytes]:
        with archive.open("rb") as source:
            while part := source.read(_PART_BYTES):
                yield part

    Store(site.cluster.conf_dir).write_atomic(uri, parts)
    archive.unlink()
    return uri


def file_system(site: Site) -> str:
    """The cluster's HDFS."""
    from yarn_accel.hadoop.site import HadoopSite

    return HadoopSite.load(site.environ).properties["fs.defaultFS"].rstrip("/")


@pytest.fixture(scope="package")
def environ(site: Site, jars: str) -> dict[str, str]:
    """Of ``spark-submit``: where the cluster is, the credential, and what this site sets for all of Spark."""
    conf = site.folder / "spark-conf"
    conf.mkdir()
    defaults = {
        "spark.driver.host": site.cluster.plan.gateway,
        "spark.driver.bindAddress": "0.0.0.0",
        "spark.yarn.archive": jars,
        "spark.executor.instances": "2",
        "spark.executor.cores": "2",
        "spark.executor.memory": "512m",
        "spark.yarn.am.memory": "384m",
        "spark.ui.enabled": "false",
        # An application master that is given up while it gets its files would be tried again, unseen.
        "spark.yarn.maxAppAttempts": "1",
    }
    (conf / "spark-defaults.conf").write_text("".join(f"{key} {value}\n" for key, value in defaults.items()))
    return {
        **site.environ,
        "YARN_CONF_DIR": str(site.cluster.conf_dir),
        "SPARK_HOME": str(spark_home(PYTHON)),
        "SPARK_CONF_DIR": str(conf),
        "PYSPARK_PYTHON": PYTHON,
        "PYSPARK_DRIVER_PYTHON": PYTHON,
        "HADOOP_TOKEN_FILE_LOCATION": str(site.token_file()),
        "JAVA_TOOL_OPTIONS": f"-Djdk.net.hosts.file={site.cluster.hosts_file}",
    }


@pytest.fixture
def submitter(site: Site, environ: dict[str, str], tmp_path: Path) -> Submitter:
    return Submitter(site, tmp_path, spark_home(PYTHON), environ)


@pytest.fixture
def run(submitter: Submitter, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Run the program to its end: its result."""

    def submit(kind: str, n_records: int, *words: str, confs: Mapping[str, str] | None = None):
        out = tmp_path / f"{kind}.json"
        process = submitter.begin(kind, "--records", str(n_records), "--out", str(out), *words, confs=confs)
        return submitter.result(process, out)

    return submit
