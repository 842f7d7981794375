"""What a site may run itself: the agents, as systemd does, and the NodeManagers' attribute script."""

import contextlib
import subprocess
import sys
from dataclasses import replace

import pytest
import yaml

from tests.fixtures.yarn_site import ROOT
from yarn_accel.launch.bootstrap import node_facts
from yarn_accel.launch.node_checks import attribute_facts

_NM = "nm.yarn.io"

pytestmark = [pytest.mark.hadoop]


@pytest.fixture
def secret(idle_site, tmp_path):
    """The site's secret, and an application that knows it; none runs before and afterwards."""
    site, usual = idle_site, idle_site.options
    if site.applications():
        site.stop()
    path = tmp_path / "agents-secret"
    site.run("node", "make-secret", str(path))
    agent = {"enabled": False, "secret_file": str(path), "settings": {"run_dir": site.run_dir}}
    site.write_settings(replace(usual, sections={**usual.sections, "agent": agent}))
    site.run("start", "--config", str(site.settings))
    try:
        yield path
    finally:
        site.stop()
        site.write_settings(usual)


@contextlib.contextmanager
def agent(site, host, key):
    """What the unit starts on a node."""
    settings = {
        "node": host,
        "run_dir": site.run_dir.format(node=host),
        "key_file": str(key),
        "rm_urls": site.rm_client.site.resourcemanager_webs(),
    }
    path = key.with_suffix(".yaml")
    path.write_text(yaml.safe_dump(settings))
    words = [
        *("env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "yarn_accel.node", "agent"),
        *("--config", str(path)),
    ]
    with key.with_suffix(".log").open("wb") as log:
        argv = site.cluster.exec_argv(site.names[host], words)
        process = subprocess.Popen(argv, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(300)


@pytest.mark.slow
def test_the_master_hears_agents_that_the_site_runs(idle_site, secret, tmp_path):
    site = idle_site
    with contextlib.ExitStack() as stack:
        for host in (*site.servers, *site.others):
            key = tmp_path / f"{host}.key"
            site.run("node", "make-key", "--secret-file", str(secret), host, str(key))
            stack.enter_context(agent(site, host, key))
        site.until("every accelerator node serves and every other is bound", site.is_whole)
        assert not [command for command in site.processes().values() if "node agent" in command]


@pytest.fixture
def script(site, tmp_path):
    """The NodeManagers run the attribute script, each with the state file of its node's agent."""
    ours = tmp_path / "accel-attributes"
    ours.write_text(site.run("node", "print-attribute-script"))
    ours.chmod(0o755)
    states = {name: f"{site.run_dir.format(node=host)}/state.json" for host, name in site.names.items()}
    cases = "\n".join(f"{name}) exec {ours} {state} ;;" for name, state in states.items())
    theirs = site.cluster.conf_dir.parent / "node-attributes.sh"
    usual = theirs.read_text()
    theirs.write_text(f'#!/bin/sh\ncase "$YARN_ACCEL_NODE" in\n{cases}\nesac\n')
    yield
    theirs.write_text(usual)


@pytest.mark.usefixtures("script")
def test_node_managers_run_the_attribute_script(site):
    def reported():
        return {
            host: {each.key.name: each.value or "" for each in report.attributes if each.key.prefix == _NM}
            for host, report in site.nodes().items()
        }

    site.until(
        "every node tells", lambda: all(facts.get("accel-health") == "ok" for facts in reported().values())
    )
    for facts in reported().values():
        have = attribute_facts(facts)
        assert node_facts()["python"] in have["python"].split("_")
        assert have["glibc"] == node_facts()["glibc"]
        assert {name: facts[name] for name in ("accel-gpus", "accel-machine")} == {
            "accel-gpus": "0",
            "accel-machine": node_facts()["machine"],
        }
