"""The emulated operations as an installed distribution, the way a site brings operations of its own.

`yarn-accel start` packs it because ``environment.packages`` names it, and the servers find its operations by
their entry point. It lies in a folder of this run, which the admin's commands have on their path.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.yarn_paper.shipped import emulation

NAME = "accel-emulation"
_MODULE = "accel_emulation"
_VERSION = "1.0"


def write_distribution(folder: Path) -> Path:
    """Write it, unless it is there, into a folder that belongs on the path of Python; returns the folder.

    A file written again would be packed and uploaded again.
    """
    metadata = folder / f"{_MODULE}-{_VERSION}.dist-info"
    if metadata.is_dir():
        return folder
    metadata.mkdir(parents=True)
    texts = {
        f"{_MODULE}.py": Path(emulation.__file__).read_text(encoding="utf-8"),
        f"{metadata.name}/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {_VERSION}\n",
        f"{metadata.name}/entry_points.txt": f"[yarn_accel.operations]\nall = {_MODULE}:DEVICE_OPERATIONS\n",
    }
    texts[f"{metadata.name}/RECORD"] = "".join(f"{name},,\n" for name in [*texts, f"{metadata.name}/RECORD"])
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder
