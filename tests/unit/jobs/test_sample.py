"""The sample of the factorize job does what the expected output beside it says."""

from __future__ import annotations

from pathlib import Path

import jobs.factorize
from jobs.factorize.job import FactorizeJob, run_factorize
from jobs.factorize.make_input import make_bytes, plan_matrices
from jobs.runners.inline import InlineRunner
from yarn_accel.storage import Store
from yarn_accel.uris import file_uri

FOLDER = Path(jobs.factorize.__file__).parent


def test_the_sample_gives_what_is_expected(tmp_path):
    for matrix in plan_matrices(12, 16, 48):
        path = tmp_path / "factorize" / "matrices" / f"{matrix.key}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(make_bytes(matrix))
    manifest = (FOLDER / "sample.txt").read_text().replace("file:///tmp/factorize-sample", file_uri(tmp_path))
    with InlineRunner() as runner:
        outcome = run_factorize(runner, Store(), manifest, FactorizeJob(n_tasks=2), lambda _: None)
    done = [
        (row.key, "done", row.operation, row.dtype, f"{row.shape[0]}x{row.shape[1]}")
        for row in outcome.results
    ]
    rejected = [(reject.key, "rejected", reject.code) for reject in outcome.rejects]
    found = sorted("\t".join(fields) for fields in (*done, *rejected))
    assert found == (FOLDER / "expected.txt").read_text().splitlines()
