"""Time one WebHDFS read: ``python -m benchmarks.webhdfs_read HOST:PORT URI MAX_BYTES`` prints seconds.

A program of its own because a read is redirected to a DataNode by name, and only nodes know the nodes' names.
"""

import sys
import time

from yarn_accel.client.webhdfs import WebHdfs


def main(address: str, uri: str, max_bytes: str) -> None:
    """Read once, time it, print the seconds."""
    web = WebHdfs(address)
    started_s = time.monotonic()
    web.open(uri, int(max_bytes))
    sys.stdout.write(f"{time.monotonic() - started_s}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
