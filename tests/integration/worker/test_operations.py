"""Operation tasks in a real worker, with a real pipeline server on this machine."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from tests.integration.worker.conftest import WorkerSite
from yarn_accel.client import Binding, LocalServer, format_binding
from yarn_accel.client.token_file import write_secrets
from yarn_accel.core.tasks.applications import OPERATION_PROGRAM
from yarn_accel.core.tasks.values import Form
from yarn_accel.core.tasks.worker_messages import AttemptOutcome
from yarn_accel.wire.credential import SECRET_ALIAS, encode


def test_an_operation_asks_a_server_or_computes_by_itself(site: WorkerSite, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    np.save(folder / "a.npy", np.diag([2.0, 4.0]))
    (folder / "bad.npy").write_bytes(b"no array")
    text = f"file://{folder}/a.npy\nfile://{folder}/bad.npy\n"
    with LocalServer({}) as server:
        binding = tmp_path / "binding.json"
        binding.write_text(format_binding(Binding((replace(server.endpoint, node="localhost"),))))
        token = tmp_path / "token"
        token.write_bytes(write_secrets({SECRET_ALIAS: encode(server.credential)}))
        site.start("w-op", {**os.environ, "HADOOP_TOKEN_FILE_LOCATION": str(token)})
        order = site.task(
            OPERATION_PROGRAM, "cholesky", "{}", text=text, files=(("binding.json", f"file://{binding}"),)
        )
        asking = replace(order, form=Form.GPU)
        computing = site.task(OPERATION_PROGRAM, "cholesky", "{}", text=text)
        outputs = []
        for each in (asking, computing):
            site.master.list(each)
            end = site.master.end_of(each.attempt)
            assert end.outcome is AttemptOutcome.DONE, site.log(each, "w-op")
            assert end.measured is not None
            assert end.measured.read_bytes > (folder / "a.npy").stat().st_size
            counted = {name: value for _, name, value in end.counters}
            assert (counted["records_in"], counted["done"]) == (1, 1)
            outputs.append(site.outputs(each))
    assert outputs[0] == outputs[1]
    first, second = outputs[0]["part-m-00003"].splitlines()
    assert json.loads(first.split("\t")[2])["results"]["l"] == [[math.sqrt(2.0), 0.0], [0.0, 2.0]]
    assert second.split("\t")[1:3] == ["rejected", "bad-npy"]
    assert server.credential.key.hex() not in site.log(asking, "w-op")
