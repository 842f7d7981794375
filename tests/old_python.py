"""Check that what runs inside a mapper needs no Python newer than 3.8: ``python -m tests.old_python``.

The files checked are those the zipapp ships, as its own builder lists them: a new one cannot be forgotten.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from jobs.zipapp import sources

OLDEST = "3.8"


def main() -> int:
    """Run vermin over every shipped file; its exit status is ours."""
    files = [str(path) for path in sources().values()]
    vermin = Path(sys.executable).with_name("vermin")
    argv = [
        str(vermin),
        f"-t={OLDEST}-",
        "--no-tips",
        "--violations",
        *files,
    ]
    completed = subprocess.run(argv, check=False, capture_output=True, text=True)
    if completed.returncode != 0:
        sys.stderr.write(completed.stdout + completed.stderr)
    else:
        sys.stdout.write(f"{len(files)} mapper files run on Python {OLDEST} and later\n")
    return completed.returncode


if __name__ == "__main__":
    sys.exit(main())
