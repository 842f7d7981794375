"""What an agent costs its node; the benchmark `yarn_master` measures the same on a real cluster."""

from tests.integration.node.master import Master

MAX_RESIDENT_MIB = 60
N_BEATS = 8


def test_an_agent_that_hands_on_the_loads_of_a_rack_is_small(agents):
    """The policy `container`, forty servers of five operations, four mappers that ask every second."""
    names = [f"w{number}" for number in range(40)]
    load = {"seq": 1, "queue_s": 1.5, "rates": {f"op{number}": 1.5 for number in range(5)}, "weight": 1.0}
    with Master() as master:
        master.answer = {
            "servers": [{"name": name, "host": "10.0.0.9", "port": 7070, "node": name} for name in names],
            "bound": ["w7"],
            "interval_s": 1.0,
            "policy": {"name": "container", "max_moves": 1},
            "loads": dict.fromkeys(names, load),
        }
        agent = agents(master_url=master.url, interval_s=1.0).start()
        for _ in range(N_BEATS):
            beat = master.wait_for(1)
            found = [agent.ask() for _ in range(4)]
        assert [view.rates for view in found[-1].routing_hints.views] == [load["rates"]] * len(names)
        assert beat["agent"]["rss_bytes"] <= MAX_RESIDENT_MIB << 20
