"""The client as one file that travels with a job: plain Python in a zip, the same bytes every time.

Python imports from it where ``PYTHONPATH`` or ``sys.path`` names it. With fixed times and sorted names equal
sources give equal bytes (and an equal checksum in HDFS).
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import yarn_accel

CLIENT_ARCHIVE = "yarn-accel-client.zip"

# What travels: whole folders, or single files of a package whose other modules stay at home.
_CONTENT = (
    ("yarn_accel", ("__init__.py", "errors.py", "local_filesystem.py", "uris.py", "users.py")),
    ("yarn_accel.core", ("__init__.py", "ended_applications.py", "server_choice.py", "units.py")),
    ("yarn_accel.wire", ("*.py",)),
    ("yarn_accel.client", ("*.py",)),
    ("yarn_accel.formats", ("*.py",)),
    ("yarn_accel.operations", ("*.py",)),
    ("yarn_accel.spark", ("*.py",)),
)
_EPOCH = (1980, 1, 1, 0, 0, 0)


def client_sources() -> dict[str, Path]:
    """Name inside the archive -> file on this machine, sorted by name."""
    return find_sources(Path(str(yarn_accel.__file__)).parent.parent, _CONTENT)


def find_sources(root: Path, content: Iterable[tuple[str, tuple[str, ...]]]) -> dict[str, Path]:
    """Files of packages below `root`, by their names inside an archive, sorted."""
    found: dict[str, Path] = {}
    for package, patterns in content:
        folder = root.joinpath(*package.split("."))
        for pattern in patterns:
            for path in folder.glob(pattern):
                found[f"{package.replace('.', '/')}/{path.name}"] = path
    return dict(sorted(found.items()))


def write_client_archive(target: Path, *, is_compressed: bool = False) -> Path:
    """Write the client to `target` and return it."""
    content = {name: path.read_bytes() for name, path in client_sources().items()}
    return write_archive(target, content, is_compressed=is_compressed)


def write_archive(target: Path, content: Mapping[str, bytes], *, is_compressed: bool = False) -> Path:
    """Write files to the archive `target` and return it; its bytes depend on the content alone."""
    compression = zipfile.ZIP_DEFLATED if is_compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(target, "w") as archive:
        for name in sorted(content):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.create_system = 3
            entry.external_attr = 0o644 << 16
            entry.compress_type = compression
            archive.writestr(entry, content[name])
    return target
