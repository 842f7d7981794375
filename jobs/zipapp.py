"""Build the one file that mappers and reducers run: a zipapp of plain Python, the same bytes every time.

``python3 accel-job.pyz factorize-map ...`` needs nothing but a Python >= 3.8 on the node. The archive is
stored, not compressed, with fixed times and sorted names, so equal sources give equal bytes (and an equal
checksum in HDFS).
"""

from __future__ import annotations

from pathlib import Path

import jobs
from yarn_accel.streaming import client_sources, find_sources, write_archive

ARCHIVE_NAME = "accel-job.pyz"

_CONTENT = (
    ("jobs", ("__init__.py", "entry.py")),
    ("jobs.factorize", ("__init__.py", "manifest.py", "mapper.py")),
    ("jobs.images", ("__init__.py", "clustering.py", "mapper.py", "rows.py")),
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


def sources() -> dict[str, Path]:
    """Name inside the archive -> file on this machine, sorted by name."""
    own = find_sources(Path(jobs.__file__).parent.parent, _CONTENT)
    return dict(sorted({**client_sources(), **own}.items()))


def build_zipapp(target: Path) -> Path:
    """Write the archive to `target` and return it; the bytes depend on the sources alone."""
    content = {name: path.read_bytes() for name, path in sources().items()}
    return write_archive(target, {**content, "__main__.py": _MAIN})
