"""What an agent costs its node; the benchmark `yarn_master` measures the same on a real cluster."""

import time

from tests.integration.node.conftest import cpu_s
from tests.integration.node.master import Master

MAX_RESIDENT_MIB = 60
N_BEATS = 8


def test_an_agent_that_hands_on_the_loads_of_a_rack_is_small_too(agents):
    """The policy `container`, forty servers of five operations, four mappers that ask every second."""
    names = [f"w{number}" for number in range(40)]
    load = {"seq": 1, "queue_s": 1.5, "rates": {f"op{number}": 1.5 for number in range(5)}, "weight": 1.0}
    answer = {
        "servers": [{"name": name, "host": "10.0.0.9", "port": 7070, "node": name} for name in names],
        "bound": ["w7"],
        "interval_s": 1.0,
        "policy": {"name": "container", "max_moves": 1},
        "loads": dict.fromkeys(names, load),
    }
    with Master() as master:
        master.answer = answer
        agent = agents(master_url=master.url, interval_s=1.0).start()
        master.wait_for(2)
        began_s, before_s = time.monotonic(), cpu_s(agent.process.pid)
        for _ in range(N_BEATS):
            beat = master.wait_for(1)
            found = [agent.ask() for _ in range(4)]
        share = (cpu_s(agent.process.pid) - before_s) / (time.monotonic() - began_s)
        print(f"\n{beat['agent']['rss_bytes'] / 2**20:.1f} MiB, {share:.2%} of a core")
        assert [view.rates for view in found[-1].routing_hints.views] == [load["rates"]] * len(names)
        assert beat["agent"]["rss_bytes"] <= MAX_RESIDENT_MIB << 20


def test_an_agent_is_small(agents):
    with Master() as master:
        master.answer = {**master.answer, "interval_s": 1.0}
        agent = agents(master_url=master.url, interval_s=1.0).start()
        master.wait_for(2)
        began_s, before_s = time.monotonic(), cpu_s(agent.process.pid)
        beats = [master.wait_for(1) for _ in range(N_BEATS)]
        share = (cpu_s(agent.process.pid) - before_s) / (time.monotonic() - began_s)
        print(f"\n{beats[-1]['agent']['rss_bytes'] / 2**20:.1f} MiB, {share:.2%} of a core")
        assert max(beat["agent"]["rss_bytes"] for beat in beats) <= MAX_RESIDENT_MIB << 20
