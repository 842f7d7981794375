"""Two sites, one with an emulated Torque and one with an emulated OpenPBS: a job of both starts together."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.torque.grid.conftest import needs_namespaces
from tests.integration.torque.grid.grid import MAPPED, Grid

pytestmark = [pytest.mark.root]


@pytest.fixture(scope="module", name="grid")
def _grid() -> Iterator[Grid]:
    """alpha has the Torque, beta the OpenPBS and our scheduler on it."""
    needs_namespaces()
    with tempfile.TemporaryDirectory(prefix="grid-") as folder:
        Path(folder).chmod(0o711)
        with Grid(Path(folder), names=("alpha", "beta"), openpbs=frozenset({"beta"}), tag="tsp") as made:
            yield made


def test_a_job_of_a_torque_and_an_openpbs_starts_at_both_together(grid: Grid) -> None:
    alpha, beta = grid.alpha, grid.beta
    job = alpha.submit(grid.script("both", grid.waits_for("both")), nodes=4)
    starts = grid.begun("both", 2)
    assert {start[1] for start in starts} == {"alpha", "beta"}
    assert {(start[3], start[4]) for start in starts} == {("2", starts[0][4])}
    (there,) = (start[6] for start in starts if start[1] == "beta")
    block = beta.job(there)
    assert block["job_state"] == "R"
    assert block["exec_vnode"] in {
        "(node1:ncpus=2)+(node2:ncpus=2)", "(node2:ncpus=2)+(node1:ncpus=2)",
    }  # fmt: skip
    assert block["Job_Owner"].partition("@")[0] == MAPPED
    grid.ends("both", alpha, job)
    grid.is_free()
    assert len(grid.starts("both")) == 2
    assert alpha.job(job)["comment"].count("exit 0") == 2
