"""What a site shall be: its workers, which of them serve, what `yarn-accel start` is given."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from yarn_accel.testbed import UpOptions

__all__ = ["SMALL_PIPELINE", "SiteOptions", "merged"]

SMALL_PIPELINE: Mapping[str, Any] = {
    "workers": 1,
    "standby_workers": 0,
    "devices": ["cpu"],
    "calibrate": False,
    "pool_bytes": 64 << 20,
    "queue_bytes": 32 << 20,
    "max_request_bytes": 16 << 20,
    "max_lent_bytes": 16 << 20,
    "tenants": {"*": {"read_prefixes": ["hdfs://"], "write_prefixes": ["hdfs://"]}},
}
"""A server of one worker on the CPU: starts quickly, fits in a small container, may use all of HDFS."""


@dataclass(frozen=True)
class SiteOptions:
    """A cluster and the application on it.

    Attributes:
        name: of the cluster; clusters of other names may be up at the same time.
        workers: nodes that run containers, ``w1`` to ``wN``.
        racks: they are spread over so many.
        accelerators: how many of them play accelerators (the first of each rack first), or their names.
        late: so many further accelerator nodes join later, see `Site.join`.
        slots: ``acct/slot`` that each offers before the application limits it; a number that no share has
            makes a share visible.
        link, delay: of every node's link, such as ``1gbit`` and ``2ms``; netns mode only.
        mode: ``netns``, ``loopback``, or empty: netns as root.
        policy: of the binding.
        policy_settings: of that policy.
        master: settings of the master that differ from their defaults (and from `heartbeat_s`).
        pipeline: settings of the pipeline servers that differ from `SMALL_PIPELINE`.
        agent: settings of the agents that differ from their defaults.
        sections: anything else of ``launch.yaml``, by section: ``{"acct": {"vcores": 2}}``.
        heartbeat_s: pause between the master's heartbeats to the ResourceManager.
    """

    name: str
    workers: int = 4
    racks: int = 1
    accelerators: int | Sequence[str] = 2
    late: int = 0
    slots: int = 9
    link: str = ""
    delay: str = ""
    mode: str = ""
    policy: str = "paper"
    policy_settings: Mapping[str, Any] = field(default_factory=dict)
    master: Mapping[str, Any] = field(default_factory=dict)
    pipeline: Mapping[str, Any] = field(default_factory=dict)
    agent: Mapping[str, Any] = field(default_factory=dict)
    sections: Mapping[str, Any] = field(default_factory=dict)
    heartbeat_s: float = 0.2

    def cluster(self) -> UpOptions:
        """What the launcher is asked for; the servers are the application's, so it starts none itself."""
        counted = self.accelerators if isinstance(self.accelerators, int) else len(self.accelerators)
        return UpOptions(
            self.name,
            nodes=self.workers + self.late,
            racks=self.racks,
            accel_nodes=counted,
            link=self.link,
            delay=self.delay,
            mode=self.mode or ("netns" if os.geteuid() == 0 else "loopback"),
            pipeline=False,
            slots=self.slots,
            late=self.late,
        )

    def launch(self, servers: Sequence[str], run_dir: str) -> dict[str, Any]:
        """The contents of ``launch.yaml``.

        Args:
            servers: hosts that play accelerators; on a machine without GPUs nothing else tells them apart.
            run_dir: of the agents, with ``{node}``: apart from other clusters on this machine, whose nodes
                have the same names.
        """
        master = {
            "accelerator_nodes": list(servers),
            "heartbeat_interval_s": self.heartbeat_s,
            "policy": self.policy,
            "policy_settings": dict(self.policy_settings),
            **self.master,
        }
        settings = {
            "environment": {"python": _node_python()},
            "master": {"settings": master},
            "acct": {"devices": "none", "vcores": 1},
            "agent": {"settings": {"run_dir": run_dir, **self.agent}},
            "pipeline": {**SMALL_PIPELINE, **self.pipeline},
        }
        return merged(settings, self.sections)


@cache
def _node_python() -> str:
    """The interpreter itself: the shim of a version manager would add its time to each container's start."""
    stock = Path(f"/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}")
    return str(stock if stock.exists() else Path(sys.executable).resolve())


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both, mappings key by key; what is above wins.

    >>> merged({"a": {"b": 1, "c": 2}}, {"a": {"c": 3}})
    {'a': {'b': 1, 'c': 3}}
    """
    both = dict(below)
    for key, value in above.items():
        old = both.get(key)
        both[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return both
