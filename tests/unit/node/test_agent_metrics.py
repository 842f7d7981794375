"""Metrics that Prometheus reads, from whatever an agent knows."""

import aiohttp
import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

from yarn_accel.errors import StartupError
from yarn_accel.node.agent_metrics import PREFIX, AgentMetricsServer, families

SNAPSHOT = {
    "node": "w1",
    "slots": 4,
    "answer_age_s": 0.5,
    "is_master_silent": False,
    "agent": {"pid": 1, "rss_bytes": 40_000_000, "cpu_share": 0.003},
    "nic": {"rx_bytes_per_s": 10.0, "tx_bytes_per_s": 20.0, "errors_per_s": 0.0},
    "disk": {},
    "pressure": {"io_some_avg10": 12.5},
    "heartbeats": {"ok": 7, "failed": 1},
    "questions": {"answered": 3},
    "late_binding": {
        "claims": {"waiting": 2, "gpu": 1},
        "outcomes": {"expired": 4},
        "connections": {"flooding": 5},
        "counts_age_s": 1.5,
    },
    "devices": [{"device": "cuda:0", "health": "ok", "temperature_c": 40, "utilisation": None}],
    "server": {"health": "ok", "in_flight": 2.0},
    "problems": [],
}


def samples(snapshot):
    registry = prometheus_client.CollectorRegistry()
    registry.register(AgentMetricsServer(lambda: snapshot, "127.0.0.1", 0))
    text = prometheus_client.generate_latest(registry).decode()
    return {
        (sample.name.removeprefix(PREFIX), *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_every_figure():
    found = samples(SNAPSHOT)
    assert (found["agent_info", "w1"], found["slots",]) == (1, 4)
    assert found["network_transmit_bytes_per_second",] == 20
    assert ("disk_busy_ratio",) not in found
    assert (found["pressure_ratio", "avg10", "io", "some"], found["heartbeats_total", "ok"]) == (0.125, 7)
    assert found["questions_total", "answered"] == 3
    assert (found["claims", "waiting"], found["claims", "gpu"]) == (2, 1)
    assert (found["claim_outcomes_total", "expired"], found["counts_age_seconds",]) == (4, 1.5)
    assert found["claim_connections_total", "flooding"] == 5
    assert found["device_temperature_celsius", "cuda:0"] == 40
    assert ("device_utilisation_ratio", "cuda:0") not in found
    assert (found["device_health", "cuda:0", "ok"], found["device_health", "cuda:0", "lost"]) == (1, 0)
    assert (found["server_health", "ok"], found["server_health", "gone"]) == (1, 0)
    assert found["server_in_flight_requests",] == 2


@pytest.mark.parametrize("snapshot", [{}, {"server": None, "devices": [], "pressure": None, "agent": None}])
def test_an_agent_that_knows_nothing_yet(snapshot):
    found = samples(snapshot)
    assert found["server_health", "none"] == 1
    assert list(families(snapshot))


async def test_over_http():
    silent = {
        **SNAPSHOT,
        "is_master_silent": True,
        "master": {"silence": "the master is away: no answer"},
    }
    known = [SNAPSHOT]
    observer = AgentMetricsServer(lambda: known[0], "127.0.0.1", 0)
    await observer.open()
    url = f"http://127.0.0.1:{observer.port}"
    found = []
    try:
        async with aiohttp.ClientSession() as session:
            for known[0] in (SNAPSHOT, silent):
                async with session.get(url + "/healthz") as answer:
                    found.append((answer.status, (await answer.json())["problems"]))
            async with session.get(url + "/metrics") as answer:
                found.append((answer.status, answer.content_type, PREFIX in await answer.text()))
            async with session.post(url + "/metrics") as answer:
                found.append(answer.status)
        second = AgentMetricsServer(lambda: SNAPSHOT, "127.0.0.1", observer.port)
        with pytest.raises(StartupError, match="cannot listen on"):
            await second.open()
    finally:
        await observer.close()
    assert found == [(200, []), (503, ["the master is away: no answer"]), (200, "text/plain", True), 405]
