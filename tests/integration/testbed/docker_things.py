"""What a cluster has in the Docker engine, as the engine's own command tells."""

from __future__ import annotations

import subprocess

from yarn_accel.testbed.docker_specs import CLUSTER_LABEL
from yarn_accel.testbed.processes import mark_of
from yarn_accel.testbed.state import ClusterPaths

LISTS = {
    "container": ("ps", "--all", "--format", "{{.Names}}"),
    "network": ("network", "ls", "--format", "{{.Name}}"),
    "volume": ("volume", "ls", "--format", "{{.Name}}"),
}


def docker(*words: str) -> str:
    """What ``docker WORDS`` prints."""
    done = subprocess.run(["docker", *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def in_the_engine(name: str) -> set[str]:
    """Containers, networks and volumes with the label of the cluster `name`."""
    paths = ClusterPaths.of(name)
    label = f"label={CLUSTER_LABEL}={mark_of(name, paths.tag)}"
    found = {kind: docker(*words, "--filter", label).split() for kind, words in LISTS.items()}
    return {f"{kind} {each}" for kind, names in found.items() for each in names}
