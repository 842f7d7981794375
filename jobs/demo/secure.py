"""The demo's main job on a cluster with Kerberos, by the ticket of the user ``accel``.

Maven's jars lack Hadoop's native library. With Kerberos reducers fetch map output, and NodeManagers collect
logs, by that library alone. So the job without reducers runs, and the other one is left out.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.demo.cluster import cluster_up
from jobs.demo.record import DemoCheck, ServerFacts, below_limit
from jobs.demo.run import DemoOptions, DemoSteps, Phases, plan_input
from jobs.factorize.manifest import Done
from jobs.factorize.matrices import Check
from jobs.runners.step import Outcome, Report
from yarn_accel.errors import StartupError

USER = "accel"
"""The servers of the test bed read and write HDFS as this user, so the job is his."""
LEFT_OUT = (
    "left out: the clustering of images (reducers), collected logs and the report; with Kerberos they take "
    "Hadoop's native library, which Maven's jars lack"
)


@dataclass(frozen=True, slots=True)
class SecureRecord:
    """The outcome of the job, and the counters of the servers.

    Attributes:
        spoilt: keys of the records that must be rejected.
        verified: checks of factors that were read back from HDFS.
    """

    factorize: Outcome[Done]
    spoilt: tuple[str, ...]
    verified: tuple[Check, ...]
    servers: tuple[ServerFacts, ...]

    def checks(self) -> Iterator[DemoCheck]:
        """Each check of the demo that holds for one job."""
        done, found = self.factorize, self.servers
        on_cpu = done.counters.get("cpu_fallback", 0)
        yield DemoCheck("no record was computed on a mapper's own CPU", not on_cpu, str(on_cpu))
        counted = ", ".join(f"{server.name}: {server.done} done" for server in found) or "no server"
        worked = bool(found) and all(server.done for server in found)
        yield DemoCheck("every pipeline server's own counter is above 0", worked, counted)
        residuals = [check.residual for check in self.verified]
        yield DemoCheck(
            "factors read back pass an independent check here",
            below_limit(residuals),
            f"{len(residuals)} matrices, worst ratio {max(residuals, default=0.0):.3g}",
        )
        wrong = {reject.key for reject in done.rejects}.symmetric_difference(self.spoilt)
        is_whole = done.n_in == len(done.results) + len(done.rejects) and not wrong
        counts = f"{done.n_in} = {len(done.results)} + {len(done.rejects)}"
        yield DemoCheck("exactly the records spoilt on purpose were rejected", is_whole, counts)


def run_secure_demo(options: DemoOptions, phases: Phases, report: Report) -> SecureRecord:
    """Run the job inside `demo_cluster`; variables of Kerberos are set in this process.

    Raises:
        StartupError: the machine lacks something.
        AccelError: a part of it failed.
    """
    data = plan_input(options.size, options.n_tasks)
    with phases.phase("start the cluster with Kerberos"):
        cluster = cluster_up(options.up, report)
        _log_in(cluster)
    steps = DemoSteps(options, Path(cluster["conf_dir"]), data, phases, report)
    steps.load({})
    factorized = steps.factorize()
    checks, servers = steps.look(factorized, cluster["pipeline_config_files"])
    matrices = tuple(key for key in data.spoilt() if not key.startswith("broken/"))
    return SecureRecord(factorized, matrices, checks, servers)


def _log_in(cluster: dict[str, Any]) -> None:
    os.environ.update(cluster["client_environ"])
    keytab = Path(os.environ["KRB5_CONFIG"]).with_name(f"{USER}.keytab")
    done = subprocess.run(["kinit", "-kt", keytab, USER], capture_output=True, text=True, check=False)
    if done.returncode:
        raise StartupError(f"kinit as {USER} failed: {done.stderr.strip()}")
