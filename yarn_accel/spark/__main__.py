"""``python -m yarn_accel.spark [FOLDER]``: write what ``spark-submit --py-files`` takes, print its path."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from yarn_accel.spark import write_py_files


def main(argv: Sequence[str] | None = None) -> int:
    """Write the file; its path is the only line on standard output."""
    parser = argparse.ArgumentParser(
        prog="python -m yarn_accel.spark",
        description="Write the zip that executors need (spark-submit --py-files), and print its path.",
    )
    parser.add_argument("folder", nargs="?", default=".", help="where to write it (default: here)")
    sys.stdout.write(write_py_files(parser.parse_args(argv).folder) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
