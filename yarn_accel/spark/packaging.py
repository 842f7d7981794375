"""The one file that executors need: the client library and this package as a zip of plain Python.

``--py-files`` and ``SparkContext.addPyFile`` take it. Equal sources give equal bytes.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import yarn_accel

__all__ = ["PY_FILES_NAME", "write_py_files"]

PY_FILES_NAME = f"yarn-accel-{yarn_accel.__version__}.zip"
_FILES = ("__init__.py", "errors.py")
_PACKAGES = ("client", "core", "formats", "operations", "spark", "wire")
_EPOCH = (1980, 1, 1, 0, 0, 0)


def write_py_files(folder: str | os.PathLike[str] = ".") -> str:
    """Write ``yarn-accel-VERSION.zip`` into a folder; its path, for ``--py-files`` or ``addPyFile``.

    It holds standard library Python 3.8 alone (below 1 MB); arrays by value need numpy on the nodes.
    """
    target = Path(folder) / PY_FILES_NAME
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in _sources().items():
            entry = zipfile.ZipInfo("yarn_accel/" + name, _EPOCH)
            entry.create_system = 3
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())
    return str(target)


def _sources() -> dict[str, Path]:
    """Name within the package -> file, sorted by name."""
    root = Path(yarn_accel.__path__[0])
    found = {name: root / name for name in _FILES}
    for package in _PACKAGES:
        for path in (root / package).rglob("*.py"):
            found[path.relative_to(root).as_posix()] = path
    return dict(sorted(found.items()))
