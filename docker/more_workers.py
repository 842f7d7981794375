"""Print a compose file with more workers: ``docker/more_workers.py 8 >docker/compose.workers.yaml``.

Then ``NODES=8`` in docker/.env, and ``docker compose -f compose.yaml -f compose.workers.yaml up -d --wait``.
"""

from __future__ import annotations

import json
import sys

FEWEST, MOST = 5, 120
"""compose.yaml has four itself; addresses from 128 on are for containers without one of their own."""


def compose_file(n_workers: int) -> str:
    """The further workers, and their names for the services of compose.yaml."""
    more = range(FEWEST, n_workers + 1)
    hosts = [f"w{number}:10.231.${{SUBNET:-200}}.{number + 1}" for number in more]
    services: dict[str, object] = {
        name: {"extra_hosts": hosts} for name in ("master", "w1", "w2", "w3", "w4", "client")
    }
    for number in more:
        services[f"w{number}"] = {
            "extends": {"file": "compose.yaml", "service": "w4"},
            "hostname": f"w{number}",
            "command": ["yarn-accel", "cluster", "run-node", f"w{number}", "--directory=/cluster"],
            "extra_hosts": hosts,
            "networks": {"hadoop": {"ipv4_address": f"10.231.${{SUBNET:-200}}.{number + 1}"}},
        }
    # JSON is YAML, too.
    return json.dumps({"services": services}, indent=2)


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1].isdecimal() or not FEWEST <= int(sys.argv[1]) <= MOST:
        sys.exit(f"usage: docker/more_workers.py WORKERS, {FEWEST} to {MOST}")
    print(compose_file(int(sys.argv[1])))
