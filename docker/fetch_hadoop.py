"""Put Hadoop's jars and the archive of their classes into the image's cache. Run while the image is built.

The archive is keyed by the jars' time stamps and a layer keeps whole seconds only, so they are cut to those.
"""

from __future__ import annotations

import os
import sys

from yarn_accel.hadoop.java import cache_dir
from yarn_accel.testbed.software import ensure_archive, ensure_hadoop


def main() -> None:
    """Fetch, cut the time stamps, make the archive.

    Raises:
        AccelError: Maven could not fetch.
    """

    def report(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    install = ensure_hadoop(report)
    for path in cache_dir().rglob("*"):
        seconds = int(path.stat().st_mtime)
        os.utime(path, (seconds, seconds))
    if ensure_archive(install, report) is None:
        sys.exit("no class data archive was made")


main()
