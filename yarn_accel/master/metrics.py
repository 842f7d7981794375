"""The state document in Prometheus' words: ``yarn_accel_master_<noun>_<unit>[_total]``.

Labels are few-valued: rack, state, kind, role, phase, server.  A `server` is an accelerator node: there are
far fewer of them than nodes, and they keep their names.  So do nodes on which mappers have claimed places,
for the counters of an agent begin anew with it, which a sum over nodes would hide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import InfoMetricFamily, Metric

from yarn_accel.adapters.metric_families import Vocabulary, value_at
from yarn_accel.core.late_binding_reports import CLAIM_RESULTS, CLAIM_STATES

PREFIX = "yarn_accel_master_"
_State = Mapping[str, Any]
_words = Vocabulary(PREFIX)
gauge, counter = _words.gauge, _words.counter

#: name -> (help, the keys that lead to the value)
_GAUGES = {
    "attempt": ("number of the application attempt", ("attempt",)),
    "registered": ("1 while the resource manager knows us", ("is_registered",)),
    "stopping": ("1 while the application ends", ("is_stopping",)),
    "accelerator_nodes": ("usable nodes with an accelerator", ("totals", "accelerators")),
    "serving_servers": ("servers that take requests", ("totals", "serving")),
    "bound_nodes": ("nodes that are bound to a server", ("totals", "bound")),
    "unbound_nodes": ("usable nodes without accelerator and without a server", ("totals", "unbound")),
    "consecutive_failures": ("failures in a row, added up over all containers", ("totals", "failures")),
    "resource_manager_silence_seconds": ("since its last answer", ("service", "rm_age_s")),
    "resource_manager_heartbeat_seconds": ("how long the last heartbeat took", ("service", "rm_heartbeat_s")),
    "resident_bytes": ("resident memory of the ApplicationMaster", ("service", "rss_bytes")),
}
_COUNTERS = {
    "resource_manager_heartbeats": ("answered by the resource manager", ("service", "rm_heartbeats")),
    "resource_manager_failures": ("calls that it did not answer", ("service", "rm_failures")),
    "node_manager_calls": ("calls to node managers", ("service", "nm_calls")),
    "node_manager_failures": ("of those, failed", ("service", "nm_failures")),
    "events": ("events applied", ("service", "events")),
    "agent_heartbeats": ("heartbeats of agents", ("service", "heartbeats")),
    "stalled_seconds": ("in which this process stood still and heard nobody", ("service", "stalled_s")),
    "apply_seconds": ("spent on deciding", ("service", "apply_s")),
    "cpu_seconds": ("processor time of the ApplicationMaster", ("service", "cpu_s")),
}
_SERVER_GAUGES = {
    "server_in_flight_requests": ("requests in a server, as it last said", "in_flight"),
    "server_queued_requests": ("of those, waiting for a device", "queued"),
    "server_queue_bytes": ("bytes in a server's queues", "queue_bytes"),
    "server_queue_bound_bytes": ("what its queues never pass", "queue_bound_bytes"),
}


def families(state: _State) -> Iterator[Metric]:
    """Every metric family that this state has values for.

    Args:
        state: the state document; see `status_documents`.
    """
    about = {key: str(state["about"].get(key, "")) for key in ("application", "version")}
    yield InfoMetricFamily(PREFIX + "application", "who this is", {**about, "policy": str(state["policy"])})
    for name, (text, path) in _GAUGES.items():
        yield gauge(name, text, (), [((), value_at(state, path))])
    for name, (text, path) in _COUNTERS.items():
        yield counter(name, text, (), [((), value_at(state, path))])
    # The upper half of a version is the attempt, so that versions grow over attempts.
    changes = state["version"] & 0xFFFFFFFF
    yield counter("binding_changes", "publications of bindings in this attempt", (), [((), changes)])
    yield from _nodes(state["nodes"])
    yield from _containers(state["nodes"])
    yield from _servers(state)
    yield from _claims(state["nodes"])


def _nodes(nodes: _State) -> Iterator[Metric]:
    counted = Counter((node["rack"] or "", node["state"]) for node in nodes.values())
    yield gauge("nodes", "nodes by rack and state", ("rack", "state"), sorted(counted.items()))
    ages = [node["heard"]["age_s"] for node in nodes.values() if node["heard"] is not None]
    yield gauge(
        "oldest_heartbeat_seconds", "of the agent that is silent longest", (), [((), max(ages, default=None))]
    )


def _containers(nodes: _State) -> Iterator[Metric]:
    places = [(role, place) for node in nodes.values() for role, place in node["places"].items()]
    phases = Counter((role, held["phase"]) for role, place in places for held in place["containers"])
    yield gauge("containers", "containers by role and phase", ("role", "phase"), sorted(phases.items()))
    asked = Counter((role,) for role, place in places if place["asked_for_s"] is not None)
    yield gauge("requested_containers", "asked for and not there yet", ("role",), sorted(asked.items()))


def _claims(nodes: _State) -> Iterator[Metric]:
    """Late binding; nodes whose agents report nothing of it have no samples."""
    found = [
        ((host, node["rack"] or ""), counts)
        for host, node in nodes.items()
        if (counts := value_at(node, ("heard", "late_binding"))) is not None
    ]
    labels = ("node", "rack")
    held = [((*each, state), counts.get(state)) for each, counts in found for state in CLAIM_STATES]
    text = "mappers that wait for a place on a node or hold one"
    yield gauge("node_claims", text, (*labels, "state"), held)
    results = [((*each, result), counts.get(result)) for each, counts in found for result in CLAIM_RESULTS]
    text = "claims that got a place, were refused or were lost since the node's agent started"
    yield counter("node_claim_results", text, (*labels, "result"), results)
    ages_s = [(each, counts.get("counts_age_s")) for each, counts in found]
    text = "age of the cluster's counts that the node's agent decides by"
    yield gauge("node_counts_age_seconds", text, labels, ages_s)


def _servers(state: _State) -> Iterator[Metric]:
    labels = ("server", "rack")
    servers = [
        ((host, node["rack"] or ""), node) for host, node in state["nodes"].items() if node["is_accelerator"]
    ]
    serving = [(each, node["is_serving"]) for each, node in servers]
    yield gauge("server_serving", "1 while the server takes requests", labels, serving)
    members = [(each, len(node["members"])) for each, node in servers]
    yield gauge("server_bound_nodes", "nodes bound to the server", labels, members)
    loads = [(each, state["loads"].get(each[0])) for each, _ in servers]
    yield gauge("server_load", "nodes bound to the server per weight", labels, loads)
    for name, (text, key) in _SERVER_GAUGES.items():
        values = [(each, value_at(node, ("heard", "server", key))) for each, node in servers]
        yield gauge(name, text, labels, values)
    answered = [(each, value_at(node, ("heard", "server", "done"))) for each, node in servers]
    yield counter("server_answers", "requests the server has answered", labels, answered)
    stages = [
        ((*each, stage), value_at(node, ("heard", "server", f"{stage}_busy_s")))
        for each, node in servers
        for stage in ("read", "compute", "write")
    ]
    yield counter("server_stage_busy_seconds", "over the threads of the stage", (*labels, "stage"), stages)
