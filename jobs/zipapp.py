"""Build the one file that mappers and reducers run: a zipapp of plain Python, the same bytes every time.

``python3 accel-job.pyz factorize-map ...`` needs nothing but a Python >= 3.8 on the node. The archive is
stored, not compressed, with fixed times and sorted names, so equal sources give equal bytes (and an equal
checksum in HDFS).
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import jobs

__all__ = ["ARCHIVE_NAME", "build_zipapp", "sources"]

ARCHIVE_NAME = "accel-job.pyz"

# What travels: whole folders, or single files of a package whose other modules stay at home.
_CONTENT = (
    ("yarn_accel", ("__init__.py", "errors.py")),
    ("yarn_accel.core", ("__init__.py", "server_choice.py", "units.py")),
    ("yarn_accel.wire", ("*.py",)),
    ("yarn_accel.client", ("*.py",)),
    ("yarn_accel.formats", ("*.py",)),
    ("yarn_accel.operations", ("*.py",)),
    ("yarn_accel.spark", ("*.py",)),
    ("jobs", ("__init__.py", "entry.py", "verbs.py")),
    ("jobs.factorize", ("__init__.py", "manifest.py", "mapper.py", "rows.py")),
    ("jobs.images", ("__init__.py", "mapper.py", "reducer.py", "rounds.py", "rows.py")),
)

# Any Python can parse this file, so that an old one says what is wrong instead of a syntax error.
_MAIN = b"""\
import os
import sys

if sys.version_info < (3, 8):
    sys.stderr.write(
        "accel-job: Python %d.%d on this node is too old, 3.8 or newer is needed: "
        "name another interpreter with --python\\n" % tuple(sys.version_info[:2])
    )
    sys.stderr.flush()
    os._exit(3)

from jobs.entry import main

sys.exit(main(sys.argv[1:]))
"""

_EPOCH = (1980, 1, 1, 0, 0, 0)


def sources() -> dict[str, Path]:
    """Name inside the archive -> file on this machine, sorted by name."""
    root = Path(jobs.__file__).parent.parent
    found: dict[str, Path] = {}
    for package, patterns in _CONTENT:
        folder = root.joinpath(*package.split("."))
        for pattern in patterns:
            for path in folder.glob(pattern):
                found[f"{package.replace('.', '/')}/{path.name}"] = path
    return dict(sorted(found.items()))


def build_zipapp(target: Path) -> Path:
    """Write the archive to `target` and return it; the bytes depend on the sources alone."""
    content = {name: path.read_bytes() for name, path in sources().items()}
    content["__main__.py"] = _MAIN
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(content):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.create_system = 3
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content[name])
    return target
