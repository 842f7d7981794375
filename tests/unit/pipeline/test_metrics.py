"""Every figure of the statistics has its metric, named by the rule; a missing part breaks nothing."""

import re

import prometheus_client
import pytest

from tests.unit.pipeline.statistics_of_a_server import statistics
from yarn_accel.pipeline.http import StatsCollector
from yarn_accel.pipeline.metrics import PREFIX, families

UNITS = (
    "_seconds",
    "_bytes",
    "_requests",
    "_answers",
    "_connections",
    "_servers",
    "_jobs",
    "_processes",
    "_celsius",
    "_ratio",
    "_server",
)


@pytest.fixture
def exposed():
    registry = prometheus_client.CollectorRegistry()
    registry.register(StatsCollector(statistics))
    return registry.get_sample_value, prometheus_client.generate_latest(registry).decode()


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("requests_total", {}, 20),
        ("answers_total", {"outcome": "done"}, 20),
        ("answers_total", {"outcome": "busy"}, 0),
        ("operation_requests_total", {"operation": "lu", "outcome": "done"}, 20),
        ("operation_compute_seconds_total", {"operation": "lu"}, 4.0),
        ("tenant_requests_total", {"tenant": "alice"}, 20),
        ("tenant_device_seconds_total", {"tenant": "alice"}, 4.0),
        ("tenant_received_bytes_total", {"tenant": "alice"}, 16000),
        ("tenant_queued_requests", {"tenant": "alice"}, 2),
        ("received_bytes_total", {}, 16000),
        ("healthy_servers", {}, 1),
        ("draining_servers", {}, 0),
        ("in_flight_requests", {}, 3),
        ("open_connections", {"carrier": "tcp", "checksum": "xxh3"}, 3),
        ("open_connections", {"carrier": "memfd", "checksum": "none"}, 1),
        ("queue_bytes", {"queue": "read"}, 1 << 20),
        ("queue_bound_bytes", {"queue": "write"}, 4 << 20),
        ("pool_bytes", {"state": "shared"}, 2 << 20),
        ("pool_bound_bytes", {}, 8 << 20),
        ("pool_waiting_requests", {}, 1),
        ("stage_busy_seconds_total", {"stage": "compute"}, 4.0),
        ("worker_busy_seconds_total", {"worker": "0", "device": "cpu:0"}, 4.0),
        ("worker_resident_bytes", {"worker": "0", "device": "cpu:0"}, 50 << 20),
        ("worker_processes", {"device": "cpu:0", "state": "busy"}, 1),
        ("worker_processes", {"device": "", "state": "standby"}, 2),
        ("device_temperature_celsius", {"device": "cuda:0"}, 41),
        ("device_other_memory_bytes", {"device": "cuda:0"}, 1 << 30),
        ("device_utilisation_ratio", {"device": "cuda:0"}, 0.5),
        ("request_seconds_bucket", {"operation": "lu", "le": "0.1"}, 0),
        ("request_seconds_bucket", {"operation": "lu", "le": "0.3"}, 20),
        ("request_seconds_bucket", {"operation": "lu", "le": "+Inf"}, 20),
        ("request_seconds_sum", {"operation": "lu"}, 5.0),
    ],
)
def test_a_figure_and_its_metric(exposed, name, labels, value):
    sample, _ = exposed
    assert sample(PREFIX + name, labels) == pytest.approx(value)


def test_no_sample_is_reported_twice():
    for family in families(statistics()):
        reported = [(sample.name, tuple(sorted(sample.labels.items()))) for sample in family.samples]
        assert len(reported) == len(set(reported))


def test_names_say_noun_and_unit():
    for family in families(statistics()):
        assert re.fullmatch(r"yarn_accel_pipeline_[a-z_]+", family.name)
        assert family.name.endswith(UNITS), family.name
        assert family.documentation


def test_the_text_carries_who_it_is(exposed):
    _, text = exposed
    assert 'yarn_accel_pipeline_server_info{protocol="2",server="w1"} 1.0' in text


def test_labels_never_name_a_request_or_a_process():
    allowed = {
        "tenant",
        "operation",
        "outcome",
        "stage",
        "queue",
        "carrier",
        "checksum",
        "fate",
        "worker",
        "device",
    }
    allowed |= {"state", "le", "server", "protocol"}
    found = {
        label for family in families(statistics()) for sample in family.samples for label in sample.labels
    }
    assert found <= allowed


def test_missing_parts_give_no_samples_and_no_error():
    samples = [sample for family in families({}) for sample in family.samples]
    assert [sample.name for sample in samples] == [PREFIX + "server_info"]
