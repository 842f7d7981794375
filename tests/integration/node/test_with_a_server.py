"""A real agent beside a real pipeline server: what the master and the mappers learn, and how fast."""

import signal

from tests.integration.node.master import Master


def health(agent):
    server = agent.state().get("server")
    return server and server["health"]


def test_born_well_killed_replaced_and_drained(agents, serve):
    with Master() as master:
        master.answer = {"servers": [], "bound": [], "interval_s": 30.0}
        agent = agents(master_url=master.url).start()
        # From here on only news makes it beat.
        server = serve(agent)
        agent.until(lambda: health(agent) in ("starting", "ok"), "it is found")
        found = next(beat for _, beat in master.heard if beat["server"])["server"]
        assert found["pid"] == server.pid
        assert found["endpoint"]["unix_path"].endswith("server.sock")
        assert found["endpoint"]["port"] > 0
        server.kill()
        server.wait()
        agent.until(lambda: health(agent) == "gone", "its death is reported at once")
        assert master.heard[-1][1]["server"]["health"] == "gone"
        second = serve(agent)
        agent.until(lambda: health(agent) in ("starting", "ok"), "the next one is found")
        assert agent.state()["server"]["pid"] == second.pid
        second.send_signal(signal.SIGTERM)
        agent.until(lambda: agent.state()["server"] is None, "one that ends in peace is no server")


def test_figures_go_to_the_master_and_silence_makes_the_own_server_known(agents, serve):
    with Master() as master:
        master.answer = {"servers": [], "bound": [], "interval_s": 0.1}
        agent = agents(master_url=master.url).start()
        serve(agent)
        agent.until(lambda: health(agent) == "ok", "it is well")
        agent.until(lambda: "in_flight" in agent.state()["server"], "it is asked")
        server = agent.state()["server"]
        assert (server["in_flight"], server["requests"], server["workers"]) == (0, 0, 1)
        assert not server["is_local_only"]
        assert agent.ask().endpoints() == ()
    agent.kill()
    (agent.run_dir / "state.json").unlink()
    agent.start()
    found = agent.ask()
    assert [endpoint.name for endpoint in found.endpoints()] == ["w1"]
    assert "Cannot connect" in found.reason
