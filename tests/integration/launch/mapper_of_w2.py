"""A mapper on a node without accelerator, which finds its server by itself, and uses it.

``python mapper_of_w2.py PYTHONPATH TOKEN_FILE`` prints one JSON line.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])

import numpy as np

from yarn_accel.client.calls import Call, Tensor
from yarn_accel.client.client import Client
from yarn_accel.client.discovery import discover_servers
from yarn_accel.client.token_file import read_secrets
from yarn_accel.errors import RejectedError
from yarn_accel.wire.credential import SECRET_ALIAS, decode


def main() -> None:
    found = discover_servers(os.environ)
    reported = {"source": found.source, "where": found.where, "reason": found.reason, "servers": []}
    reported["servers"] = [endpoint.node for endpoint in found.endpoints()]
    if found.endpoints():
        credential = decode(read_secrets(Path(sys.argv[2]).read_bytes())[SECRET_ALIAS])
        matrix = np.random.default_rng(3).standard_normal((64, 64))
        with Client(found.endpoints()[0], credential) as client:
            reply = client.call(Call("from-w2", "lu", {}, (Tensor.of(matrix),)))
            with contextlib.suppress(RejectedError):
                client.call(Call("refused-of-w2", "cholesky", {}, (Tensor.of(-np.eye(2)),)))
        reported["server"] = reply.server
        factors = {name: tensor.array() for name, tensor in reply.tensors.items()}
        for row, swapped in enumerate(factors["piv"]):
            matrix[[row, swapped]] = matrix[[swapped, row]]
        lower = np.tril(factors["lu"], -1) + np.eye(len(matrix))
        reported["error"] = float(np.abs(lower @ np.triu(factors["lu"]) - matrix).max())
    print(json.dumps(reported))


if __name__ == "__main__":
    main()
