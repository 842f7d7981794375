"""The one file that executors need: the client library and this package as a zip of plain Python.

``--py-files`` and ``SparkContext.addPyFile`` take it. Equal sources give equal bytes.
"""

from __future__ import annotations

import os
from pathlib import Path

import yarn_accel
from yarn_accel.client.archive import write_client_archive

PY_FILES_NAME = f"yarn-accel-{yarn_accel.__version__}.zip"


def write_py_files(folder: str | os.PathLike[str] = ".") -> str:
    """Write ``yarn-accel-VERSION.zip`` into a folder; its path, for ``--py-files`` or ``addPyFile``.

    It holds standard library Python 3.8 alone (below 1 MB); arrays by value need numpy on the nodes.
    """
    target = Path(folder) / PY_FILES_NAME
    target.parent.mkdir(parents=True, exist_ok=True)
    return str(write_client_archive(target, is_compressed=True))
