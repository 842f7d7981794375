"""The blocks of PySpark in docs/spark.md, run on this machine without a cluster."""

from __future__ import annotations

import doctest
import os
from itertools import pairwise
from pathlib import Path

import pytest

from tests.fixtures.documents import ROOT, blocks
from tests.fixtures.programs import ran
from tests.integration.spark.conftest import PYTHON

pytestmark = [pytest.mark.spark]

PAGE = ROOT / "docs" / "spark.md"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
PROGRAMS = [
    (program, shown)
    for program, shown in pairwise(blocks(PAGE.read_text(encoding="utf-8")))
    if program.language == "py" and shown.language == "text"
]


@pytest.mark.parametrize(
    ("code", "output"), [(program.code, shown.code) for program, shown in PROGRAMS],
    ids=[f"line-{program.line}" for program, _ in PROGRAMS],
)  # fmt: skip
def test_a_program_prints_what_the_page_shows(code: str, output: str, tmp_path: Path) -> None:
    if not PYTHON:
        pytest.skip("PySpark on a cluster: run `make test-spark`, which installs PySpark (870 MB)")
    path = tmp_path / "program.py"
    path.write_text(code)
    environ = {
        **os.environ,
        "ACCEL_RUNNER": "inline",
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": PYTHON,
        "PYSPARK_SUBMIT_ARGS": "--master local[2] --conf spark.ui.enabled=false pyspark-shell",
    }
    done = ran([PYTHON, str(path)], env=environ, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    assert doctest.OutputChecker().check_output(output, done.stdout, FLAGS), done.stdout


def test_every_program_of_the_page_is_run() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(PROGRAMS) == text.count("```py\n") == 3
