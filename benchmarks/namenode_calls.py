"""What the factorize job asks of a NameNode for each record, by how it checks and by what it writes.

Each form of the job runs twice, on few and on many small matrices in as many tasks, so what a job costs by
itself falls out of the difference. The NameNode's own RPC metrics are read (JMX), without what DataNodes ask.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.result import Report, Row, observed
from jobs.factorize.job import FactorizeJob, run_factorize
from jobs.factorize.matrices import balance, make_bytes, manifest_of, plan_matrices
from jobs.runners.hadoop import HadoopRunner
from yarn_accel.adapters.rest import get_json
from yarn_accel.errors import JobError
from yarn_accel.hadoop.site import SiteSettings
from yarn_accel.storage import Store
from yarn_accel.testbed import Cluster, UpOptions, take_down

NAME = "bench-namenode"
N_TASKS = 2
#: For so long the NameNode may show figures that it read before.
CACHED_S = 11.0
FORMS: Mapping[str, Mapping[str, Any]] = {
    "npz, residual all": {"residual": "all"},
    "npz, residual sample": {"residual": "sample"},
    "npz, residual none": {"residual": "none"},
    "sequence, residual sample": {"residual": "sample", "output": "sequence"},
    "sequence, residual none": {"residual": "none", "output": "sequence"},
}
_OF_DATANODES = {
    *("SendHeartbeat", "BlockReport", "BlockReceivedAndDeleted", "RegisterDatanode", "VersionRequest"),
    *("SendLifeline", "CommitBlockSynchronization", "CacheReport", "ReportBadBlocks", "ErrorReport"),
}


def _calls(web: str) -> Counter[str]:
    """How often each method of the NameNode was called so far by clients."""
    time.sleep(CACHED_S)
    found: Counter[str] = Counter()
    for bean in get_json(f"{web}/jmx?qry=Hadoop:service=NameNode,name=RpcDetailedActivityForPort*")["beans"]:
        for name, value in bean.items():
            if name.endswith("NumOps") and not name.startswith(("Deferred", "Overall")):
                found[name.removesuffix("NumOps")] += int(value)
    return Counter({name: count for name, count in found.items() if name not in _OF_DATANODES})


class _Measuring:
    """Runs forms of the job on a cluster and counts."""

    def __init__(self, cluster: Cluster, report: Callable[[str], None]) -> None:
        site = SiteSettings.read({"HADOOP_CONF_DIR": str(cluster.conf_dir)})
        self._runner = HadoopRunner(site)
        self._store = Store(cluster.conf_dir)
        self._report = report
        self._web = f"http://{cluster.plan.master.address}:{cluster.plan.ports.namenode_http}"

    def per_record(self, form: str, few: int, many: int) -> dict[str, float]:
        """Calls for one record, by method."""
        before, after = (self._calls_of(form, n_records) for n_records in (few, many))
        after.subtract(before)
        return {name: count / (many - few) for name, count in after.items() if count}

    def _calls_of(self, form: str, n_records: int) -> Counter[str]:
        name = f"{form.replace(', ', '-').replace(' ', '-')}-{n_records}"
        input_uri, output_uri = (self._runner.home(f"{name}/{folder}") for folder in ("in", "out"))
        matrices = balance(plan_matrices(n_records, 48, 48), N_TASKS)
        for matrix in matrices:
            self._store.write_atomic(f"{input_uri}/{matrix.key}.bin", [make_bytes(matrix)])
        manifest = manifest_of(matrices, input_uri, output_uri)
        start = _calls(self._web)
        job = FactorizeJob(N_TASKS, **FORMS[form])
        outcome = run_factorize(self._runner, self._store, manifest, job, self._report, name)
        if len(outcome.results) != n_records or outcome.counters.get("cpu_fallback", 0):
            raise JobError(f"{form}: {outcome.counters}, {n_records} records expected by servers")
        end = _calls(self._web)
        end.subtract(start)
        return end


def _row(form: str, by_method: Mapping[str, float]) -> Row:
    largest = sorted(by_method.items(), key=lambda item: -abs(item[1]))
    note = ", ".join(f"{name} {count:.2f}" for name, count in largest if abs(count) >= 0.05)
    return observed(f"NameNode calls per record: {form}", sum(by_method.values()), "calls", note=note)


def run(quick: bool, report: Callable[[str], None], record: Report) -> None:
    """Measure every form; the cluster is taken down whatever happens."""
    few, many = (4, 44) if quick else (4, 204)
    try:
        cluster = Cluster.up(UpOptions(name=NAME, nodes=2, racks=1, accel_nodes=2), report)
        measuring = _Measuring(cluster, report)
        for form in FORMS:
            record.add([_row(form, measuring.per_record(form, few, many))])
    finally:
        take_down(NAME, report)
