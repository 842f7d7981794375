"""A mapper that never ends: asks for its server, has it factor a small matrix, again and again.

``python caller_program.py PYTHONPATH TOKEN_FILE`` prints one JSON line per answer: when (Unix seconds),
whose, and how many calls failed before it; until its standard input is closed.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from pathlib import Path

sys.path.insert(0, sys.argv[1])

import numpy as np

from yarn_accel.client.client import Call, Client, Tensor
from yarn_accel.client.discovery import ServerWatch
from yarn_accel.client.token_file import read_secrets
from yarn_accel.errors import AccelError
from yarn_accel.wire.credential import SECRET_ALIAS, decode

PAUSE_S = 0.02


def main() -> None:
    """Call until standard input is closed."""
    credential = decode(read_secrets(Path(sys.argv[2]).read_bytes())[SECRET_ALIAS])
    watch = ServerWatch(os.environ, every_s=0.5)
    matrix = Tensor.of(np.random.default_rng(3).standard_normal((32, 32)))
    client, number, n_failed, at = None, 0, 0, 0
    while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
        found = watch.now(is_urgent=n_failed > 0)
        endpoints = found.endpoints()
        if not endpoints:
            sys.stderr.write(f"{time.time():.3f} no server: {found.reason}\n")
            n_failed += 1
            continue
        wanted = endpoints[at % len(endpoints)]
        try:
            if client is None or client.endpoint != wanted:
                if client is not None:
                    client.close()
                client = Client(wanted, credential, timeout_s=5.0, connect_timeout_s=1.0, carriers=("tcp",))
            number += 1
            client.call(Call(f"{os.getpid()}-{number}", "lu", {}, (matrix,)))
        except AccelError as error:
            sys.stderr.write(f"{time.time():.3f} {wanted.node}: {error}\n")
            client, n_failed, at = None, n_failed + 1, at + 1
            continue
        print(
            json.dumps({"at": time.time(), "node": wanted.node, "port": wanted.port, "failed": n_failed}),
            flush=True,
        )
        n_failed = at = 0


if __name__ == "__main__":
    main()
