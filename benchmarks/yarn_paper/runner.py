"""The top runner of `jobs`, with this benchmark's zipapp and properties: jobs are real streaming jobs."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from benchmarks.yarn_paper.shipped import emulation
from jobs.runners.hadoop import HadoopRunner
from jobs.runners.step import Report, Step, StepResult
from jobs.zipapp import build_zipapp
from tests.fixtures.hadoop_conf import conf_without
from yarn_accel.hadoop.site import SLOT_RESOURCE, SiteSettings
from yarn_accel.storage import Store

_EPOCH = (1980, 1, 1, 0, 0, 0)
_MAIN = (
    b"import sys\n\nfrom benchmarks.yarn_paper.shipped.entry import main\n\nsys.exit(main(sys.argv[1:]))\n"
)
_PACKAGE = "benchmarks/yarn_paper"


def build_archive(target: Path) -> Path:
    """The zipapp of `jobs` with our own modules in it and another beginning."""
    plain = build_zipapp(target.with_suffix(".jobs"))
    own = {f"{_PACKAGE}/shipped/{path.name}": path.read_bytes() for path in _own_modules()}
    # The packages around them import what stays at home.
    own |= {f"{name}/__init__.py": b'"""Shipped in part."""\n' for name in ("benchmarks", _PACKAGE)}
    own["__main__.py"] = _MAIN
    with zipfile.ZipFile(plain) as jobs, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        content = {name: jobs.read(name) for name in jobs.namelist()} | own
        for name in sorted(content):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content[name])
    plain.unlink()
    return target


def _own_modules() -> list[Path]:
    return sorted(Path(emulation.__file__).parent.glob("*.py"))


class PaperRunner(HadoopRunner):
    """Runs steps on a site; a `jobs.runners.step.Runner`.

    Args:
        conf_dir: the cluster's.
        python: the interpreter on the nodes.
        folder: for configuration, archive and credentials.

    Attributes:
        properties: of every job from now on, such as where its mappers' agents listen.
        store: where inputs and outputs lie.
    """

    name = "cluster"

    def __init__(self, conf_dir: Path, python: str, folder: Path) -> None:
        # The launcher's own binding file is of its own pipeline servers, which do not run here.
        own = conf_without(conf_dir, folder / "conf-of-jobs", "binding_file")
        super().__init__(SiteSettings.read({"HADOOP_CONF_DIR": str(own)}), python, scratch=folder)
        self.properties: Mapping[str, str] = {}
        self.store = Store(conf_dir)

    def run(self, step: Step, report: Report) -> StepResult:
        """As `HadoopRunner.run`; a mapper asks for an `acct/slot`, of which each node has one."""
        slot = {f"mapreduce.map.resource.{SLOT_RESOURCE}": "1"}
        return super().run(replace(step, properties={**slot, **self.properties, **step.properties}), report)

    def build_archive(self, target: Path) -> Path:
        """As `build_archive`."""
        return build_archive(target)
