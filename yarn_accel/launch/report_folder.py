"""The folder of a report: JSON, a page that needs nothing else, and pictures if matplotlib is installed."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from yarn_accel.errors import StartupError
from yarn_accel.extras import install_command
from yarn_accel.local_filesystem import write_atomic


def write_report_folder(
    folder: Path, document: Mapping[str, Any], page: str, draw: Callable[[Path], None]
) -> list[str]:
    """Write ``outcome.json``, ``index.html`` and what `draw` draws; what could not be made is in the lines.

    Args:
        draw: writes pictures into the folder; called only where matplotlib is installed.

    Raises:
        StartupError: the folder cannot be written.
    """
    has_pictures = importlib.util.find_spec("matplotlib") is not None
    missing = (
        [] if has_pictures else [f"no pictures, for matplotlib is not here: {install_command('matplotlib')}"]
    )
    text = json.dumps(document, indent=1, allow_nan=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / "outcome.json", text + "\n")
        write_atomic(folder / "index.html", page)
        if has_pictures:
            draw(folder)
    except OSError as error:
        raise StartupError(f"{folder}: {error.strerror}", cure="name a folder that may be written") from None
    return missing
