"""Each rule by itself: what happens, and what is ordered for it."""

import json

import pytest

from tests.unit.core.application.virtual_cluster import ACCT, AGENT, ROLES
from yarn_accel.core.application import Application, Resource, Restart, Role, Roles, Settings, Where
from yarn_accel.core.application import commands as cmd
from yarn_accel.core.application import events as ev
from yarn_accel.core.binding import PaperBinding

SETTINGS = Settings()
EPOCH = 1 << 32


class Driver:
    """Applies events at a clock of its own, validates after each, and keeps what was ordered."""

    def __init__(self, settings=SETTINGS, roles=ROLES, attempt=1, previous=(), is_registered=True):
        self.app = Application(settings, roles, PaperBinding)
        self.now_s = 0.0
        self.n = 0
        if is_registered:
            self(ev.Tick)
            self(ev.Registered, previous, attempt)

    def __call__(self, kind, *args, **more):
        commands = self.app.apply(kind(*args, **more, now_s=self.now_s))
        self.app.validate()
        return commands

    def wait(self, seconds):
        self.now_s += seconds
        return self(ev.Tick)

    def nodes(self, *views, **more):
        return self(ev.NodesReported, views, **more)

    def hear(self, node, role="acct", container="", **more):
        return self(ev.Heard, node, role, container=container, endpoint=f"{node}:7070", **more)

    def run(self, ask):
        """What the RM and the NM do about a request."""
        self.n += 1
        container = ev.Container(f"c{self.n}", ask.node, ask.priority, ask.request_id)
        assert kinds(self(ev.Allocated, (container,))) >= {cmd.Launch}
        self(ev.Started, container.id)
        return container


def kinds(commands):
    return {type(command) for command in commands}


def only(commands, kind):
    return [command for command in commands if isinstance(command, kind)]


def accelerator(host="a1", rack="/r1", **more):
    return ev.NodeView(host, 8041, rack, is_accelerator=True, capability={"yarn.io/gpu": 2}, **more)


def plain(host="n1", rack="/r1", **more):
    return ev.NodeView(host, 8041, rack, **more)


def acct_only():
    return Roles([ACCT])


@pytest.fixture
def driver():
    """Only servers; one accelerator node whose server is asked for."""
    return Driver(roles=acct_only())


@pytest.fixture
def serving():
    """As `driver`, with the server of a1 serving, and n1 bound to it."""
    driver = Driver(roles=acct_only())
    (ask,) = only(driver.nodes(accelerator(), plain()), cmd.Ask)
    driver.container = driver.run(ask)
    driver.hear("a1", container=driver.container.id, gauges=ev.Gauges(8))
    assert driver.app.bound() == {"n1": "a1"}
    return driver


# Registering.


def test_the_first_event_registers_and_it_is_repeated_when_nobody_answers():
    driver = Driver(is_registered=False)
    assert driver(ev.Tick) == [cmd.Register(), cmd.WakeAt(10.0)]
    assert driver.wait(9.9) == []
    assert driver.wait(0.1) == [cmd.Register(), cmd.WakeAt(20.0)]
    assert driver.nodes(accelerator()) == []
    assert len(only(driver(ev.Registered, (), 1), cmd.Ask)) == 2


def test_a_restarted_rm_is_told_everything_again():
    driver = Driver(roles=acct_only())
    (ask,) = only(driver.nodes(accelerator()), cmd.Ask)
    assert driver(ev.Resynced) == [cmd.Register()]
    assert driver(ev.Resynced) == []
    assert only(driver(ev.Registered, (), 1), cmd.Ask) == [ask]
    assert only(driver(ev.Registered, (), 1), cmd.Ask) == []


def test_after_a_restart_of_the_rm_its_nm_is_asked_about_what_it_does_not_list(serving):
    serving(ev.Resynced)
    assert only(serving(ev.Registered, (), 1), cmd.Check) == [cmd.Check(serving.container)]
    assert serving.app.bound() == {"n1": "a1"}
    serving(ev.Resynced)
    assert only(serving(ev.Registered, (serving.container,), 1), cmd.Check) == []


def test_a_complete_report_soon_after_registering_may_lack_nodes_that_are_not_back_yet(serving):
    serving.now_s = 59.0
    serving.hear("a1", container="c1", gauges=ev.Gauges(8))
    assert serving.nodes(plain(), is_complete=True) == []
    serving.now_s = 61.0
    serving.nodes(plain(), is_complete=True)
    assert serving.app.bound() == {}
    assert "gone" in serving.app.explain("a1")


# One container in every place.


def test_one_server_per_accelerator_node_and_one_agent_per_node():
    driver = Driver()
    asks = only(driver.nodes(accelerator(), plain()), cmd.Ask)
    assert asks == [
        cmd.Ask("acct", "a1", "/r1", {"memory-mb": 1024, "vcores": 2, "yarn.io/gpu": 2}, 10, EPOCH + 1),
        cmd.Ask("agent", "a1", "/r1", {"memory-mb": 128, "vcores": 1}, 11, EPOCH + 2),
        cmd.Ask("agent", "n1", "/r1", {"memory-mb": 128, "vcores": 1}, 11, EPOCH + 3),
    ]
    assert only(driver.nodes(accelerator(), plain()), cmd.Ask) == []


def test_a_new_accelerator_gets_a_server_and_one_that_fails_loses_it(driver):
    assert only(driver.nodes(plain("x")), cmd.Ask) == []
    (ask,) = only(driver.nodes(accelerator("x")), cmd.Ask)
    unasks = only(driver.nodes(plain("x")), cmd.Unask)
    assert unasks == [cmd.Unask("acct", "x", "/r1", 10, ask.request_id)]


def test_an_unanswered_ask_is_repeated_under_its_id(driver):
    (ask,) = only(driver.nodes(accelerator()), cmd.Ask)
    assert only(driver.wait(59.9), cmd.Ask) == []
    assert only(driver.wait(0.1), cmd.Ask) == [ask]


def test_what_is_allocated_is_launched_once(driver):
    (ask,) = only(driver.nodes(accelerator()), cmd.Ask)
    container = ev.Container("c1", "a1", 10, ask.request_id)
    assert only(driver(ev.Allocated, (container,)), cmd.Launch) == [cmd.Launch(container, "acct")]
    assert driver(ev.Allocated, (container,)) == []
    assert driver(ev.Started, "c1") == []
    assert only(driver.wait(61.0), cmd.Ask) == []


def test_surplus_is_released(driver):
    (ask,) = only(driver.nodes(accelerator()), cmd.Ask)
    first, second = (ev.Container(f"c{i}", "a1", 10, ask.request_id) for i in (1, 2))
    commands = driver(ev.Allocated, (first, second))
    assert only(commands, cmd.Launch) == [cmd.Launch(first, "acct")]
    assert only(commands, cmd.Release) == [cmd.Release(second)]
    third = ev.Container("c3", "a1", 10, ask.request_id)
    assert only(driver(ev.Allocated, (third,)), cmd.Release) == [cmd.Release(third)]


def test_what_is_allocated_too_late_is_released(driver):
    (ask,) = only(driver.nodes(accelerator()), cmd.Ask)
    driver(ev.Drain, "a1")
    container = ev.Container("c1", "a1", 10, ask.request_id)
    assert only(driver(ev.Allocated, (container,)), cmd.Release) == [cmd.Release(container)]


def test_a_container_of_no_role_is_released(driver):
    stranger = ev.Container("c1", "a1", 99)
    assert driver(ev.Allocated, (stranger,)) == [cmd.Release(stranger)]


def test_a_container_on_another_host_ends_the_request_and_is_released(driver):
    (ask,) = only(driver.nodes(accelerator(), plain()), cmd.Ask)
    elsewhere = ev.Container("c1", "n1", 10, ask.request_id)
    commands = driver(ev.Allocated, (elsewhere,))
    assert only(commands, cmd.Release) == [cmd.Release(elsewhere)]
    assert [again.request_id for again in only(commands, cmd.Ask)] == [ask.request_id + 1]


def test_a_launch_that_fails_is_given_back_and_tried_again(driver):
    (ask,) = only(driver.nodes(accelerator()), cmd.Ask)
    container = ev.Container("c1", "a1", 10, ask.request_id)
    driver(ev.Allocated, (container,))
    commands = driver(ev.StartFailed, "c1", "connection refused")
    assert kinds(commands) >= {cmd.StopContainer, cmd.Release}
    assert only(driver(ev.Completed, "c1", -100, ""), cmd.Ask)
    assert "connection refused" in driver.app.explain("a1")
    assert driver(ev.StartFailed, "c1", "again") == []


def test_a_launch_without_an_answer_fails_after_its_limit(driver):
    (ask,) = only(driver.nodes(accelerator()), cmd.Ask)
    container = ev.Container("c1", "a1", 10, ask.request_id)
    driver(ev.Allocated, (container,))
    assert only(driver.wait(29.9), cmd.StopContainer) == []
    assert only(driver.wait(0.1), cmd.StopContainer) == [cmd.StopContainer(container)]


def test_a_container_that_speaks_was_started(driver):
    (ask,) = only(driver.nodes(accelerator()), cmd.Ask)
    driver(ev.Allocated, (ev.Container("c1", "a1", 10, ask.request_id),))
    driver.hear("a1", container="c1")
    assert driver(ev.StartFailed, "c1", "late") == []
    assert "serves" in driver.app.explain("a1")


def test_an_order_to_stop_is_repeated_with_a_release_and_then_forgotten(serving):
    serving.nodes(plain("a1"))
    assert only(serving.wait(60.0), cmd.StopContainer) == [cmd.StopContainer(serving.container)]
    assert serving.wait(4.9) == []
    again = serving.wait(0.1)
    assert again[:2] == [cmd.StopContainer(serving.container), cmd.Release(serving.container)]
    serving.wait(25.0)
    assert held(serving) == []
    assert "not confirmed" in serving.app.explain("a1")


def test_who_was_forgotten_and_speaks_is_stopped_once_more(serving):
    serving.nodes(plain("a1"))
    serving.wait(60.0)
    serving.wait(30.0)
    assert held(serving) == []
    stop, release = serving.hear("a1", container="c1")
    assert stop.container.id == release.container.id == "c1"
    assert serving.hear("a1", container="c1") == []
    serving.now_s += 5.0
    assert serving.hear("a1", container="c1")[:2] == [stop, release]
    serving(ev.Completed, "c1", -105, "")
    serving.now_s += 5.0
    assert kinds(serving.hear("a1", container="c1")) <= {cmd.SetSlots, cmd.WakeAt}


# Ends.


def retry_s(driver):
    """How long the server of a1 will not be asked for."""
    return driver.app.snapshot(driver.now_s)["nodes"]["a1"]["places"]["acct"]["retry_in_s"]


def held(driver):
    """The containers of the server of a1."""
    places = driver.app.snapshot(driver.now_s)["nodes"]["a1"]["places"]
    return [container["id"] for container in places["acct"]["containers"]]


def test_a_killed_server_is_asked_for_at_once_and_then_later_and_later(serving):
    assert only(serving(ev.Completed, "c1", 137, ""), cmd.Ask)
    waits = []
    for name in ("c2", "c3", "c4", "c5"):
        serving(ev.Allocated, (ev.Container(name, "a1", 10),))
        serving(ev.Started, name)
        assert only(serving(ev.Completed, name, 1, ""), cmd.Ask) == []
        waits.append(retry_s(serving))
    assert waits == [1.0, 2.0, 4.0, 8.0]
    assert only(serving.wait(7.9), cmd.Ask) == []
    assert len(only(serving.wait(0.1), cmd.Ask)) == 1


def test_a_healthy_time_clears_the_record(serving):
    for name in ("c2", "c3", "c4"):
        serving(ev.Completed, held(serving)[0], 1, "")
        serving(ev.Allocated, (ev.Container(name, "a1", 10),))
    for _ in range(32):
        serving.now_s += 1.0
        serving.hear("a1", container="c4", gauges=ev.Gauges(8))
    assert only(serving(ev.Completed, "c4", 137, ""), cmd.Ask)


@pytest.mark.parametrize("status", [-102, -100, -105])
def test_who_is_not_to_blame_is_asked_for_at_once_every_time(serving, status):
    container = serving.container.id
    for i in range(5):
        (ask,) = only(serving(ev.Completed, container, status, ""), cmd.Ask)
        container = f"x{i}"
        serving(ev.Allocated, (ev.Container(container, "a1", 10, ask.request_id),))
        serving(ev.Started, container)
    assert retry_s(serving) == 0.0


def test_an_end_that_is_told_twice_counts_once(serving):
    serving(ev.Completed, "c1", 1, "")
    assert serving(ev.Completed, "c1", 1, "") == []
    assert retry_s(serving) == 0.0


def test_a_role_may_be_done_when_it_ends_well():
    once = Role("once", Where.EVERY, Resource(128), 5, Restart.ON_FAILURE)
    driver = Driver(roles=Roles([once]))
    (ask,) = only(driver.nodes(plain()), cmd.Ask)
    driver.run(ask)
    (ask,) = only(driver(ev.Completed, "c1", 1, ""), cmd.Ask)
    driver.run(ask)
    assert only(driver(ev.Completed, "c2", 0, ""), cmd.Ask) == []
    assert only(driver.wait(1000.0), cmd.Ask) == []


# Nodes come and go.


def test_a_lost_node_is_given_up_and_begins_anew_when_it_is_back(serving):
    commands = serving.nodes(accelerator(is_usable=False))
    assert only(commands, cmd.StopContainer) == []
    assert serving.app.bound() == {}
    assert held(serving) == []
    assert serving(ev.Completed, "c1", -100, "") == []
    assert len(only(serving.nodes(accelerator()), cmd.Ask)) == 1
    assert only(serving.hear("a1", container="c1"), cmd.StopContainer) == []


def test_a_server_of_a_lost_node_that_is_back_with_it_is_stopped(serving):
    assert cmd.Release(serving.container) in serving.nodes(accelerator(is_usable=False))
    serving.nodes(accelerator())
    serving.now_s = 1.0
    assert only(serving.hear("a1", container="c1"), cmd.StopContainer) == []
    serving.now_s = 5.0
    assert len(only(serving.hear("a1", container="c1"), cmd.StopContainer)) == 1
    assert serving.app.bound() == {}


def test_a_repeated_request_that_is_answered_is_taken_back(driver):
    (ask,) = only(driver.nodes(accelerator()), cmd.Ask)
    driver.wait(60.0)
    commands = driver(ev.Allocated, (ev.Container("c1", "a1", 10, ask.request_id),))
    assert [unask.request_id for unask in only(commands, cmd.Unask)] == [ask.request_id]


def test_a_request_on_a_lost_node_is_taken_back(driver):
    (ask,) = only(driver.nodes(accelerator()), cmd.Ask)
    unasks = only(driver.nodes(accelerator(is_usable=False)), cmd.Unask)
    assert [unask.request_id for unask in unasks] == [ask.request_id]


def test_a_leaving_node_drains_its_server_and_keeps_its_agent_until_then():
    driver = Driver()
    server_ask, agent_ask = only(driver.nodes(accelerator()), cmd.Ask)
    server, agent = driver.run(server_ask), driver.run(agent_ask)
    driver.hear("a1", container=server.id, gauges=ev.Gauges(8, n_open=1))
    assert only(driver.nodes(accelerator(is_leaving=True)), cmd.StopContainer) == []
    driver.now_s += 4.0
    stop = driver.hear("a1", container=server.id, gauges=ev.Gauges(8, n_open=0))
    assert only(stop, cmd.StopContainer) == [cmd.StopContainer(server)]
    stop = driver(ev.Completed, server.id, -105, "")
    assert only(stop, cmd.StopContainer) == [cmd.StopContainer(agent)]
    assert only(driver(ev.Completed, agent.id, -105, ""), cmd.Ask) == []


# Serving and binding.


def test_a_server_is_published_when_it_speaks_and_withdrawn_when_it_is_silent(serving):
    assert serving.wait(2.9) == []
    commands = serving.wait(0.1)
    (publication,) = only(commands, cmd.Publish)
    assert publication.bound == (("n1", None),)
    assert publication.endpoints == (("a1", None),)
    (again,) = only(serving.hear("a1", container="c1", gauges=ev.Gauges(8)), cmd.Publish)
    assert again.version > publication.version
    assert again.bound == (("n1", "a1"),)
    assert again.endpoints == (("a1", "a1:7070"),)


def test_an_ill_server_is_withdrawn_at_once(serving):
    commands = serving.hear("a1", container="c1", is_healthy=False, detail="no device")
    assert only(commands, cmd.Publish)
    assert serving.app.bound() == {}
    assert "no device" in serving.app.explain("a1")


def test_a_server_that_ended_is_withdrawn_before_it_is_silent(serving):
    assert only(serving(ev.Completed, "c1", 137, ""), cmd.Publish)
    assert serving.app.answer("n1").servers == ()


def test_the_dead_are_not_heard(serving):
    serving(ev.Completed, "c1", 137, "")
    assert serving.hear("a1", container="c1") == []
    assert serving.hear("a1") == []
    assert serving.app.bound() == {}


def test_a_new_endpoint_is_published(serving):
    commands = serving(ev.Heard, "a1", "acct", container="c1", endpoint="elsewhere", gauges=ev.Gauges(8))
    (publication,) = only(commands, cmd.Publish)
    assert publication.endpoints == (("a1", "elsewhere"),)
    assert publication.bound == ()


def test_a_heartbeat_that_says_nothing_new_orders_nothing(serving):
    for _ in range(9):
        serving.now_s += 1.0
        assert kinds(serving.hear("a1", container="c1", gauges=ev.Gauges(8, n_open=3))) <= {cmd.WakeAt}


def test_an_agent_outside_yarn_is_listened_to_but_has_no_place(serving):
    assert serving.hear("n1", "agent", "systemd") == []
    assert serving.hear("nowhere", "agent") == []


def test_a_second_server_takes_its_part(serving):
    serving.nodes(plain("n2"))
    (ask,) = only(serving.nodes(accelerator("a2")), cmd.Ask)
    second = serving.run(ask)
    assert only(serving.hear("a2", container=second.id), cmd.Publish)
    assert sorted(serving.app.bound().values()) == ["a1", "a2"]
    assert [name for name, _ in serving.app.answer("a2").servers] == ["a2", "a1"]


def test_an_accelerator_node_without_a_server_is_a_guest_after_a_while():
    driver = Driver(Settings(has_slots=False, silence_s=100.0), acct_only())
    (ask, _) = only(driver.nodes(accelerator("a1"), accelerator("a2")), cmd.Ask)
    driver.hear("a1", container=driver.run(ask).id)
    driver.wait(9.9)
    assert driver.app.bound() == {}
    driver.wait(0.1)
    assert driver.app.bound() == {"a2": "a1"}


def test_a_node_that_moves_to_another_rack_is_unbound(serving):
    serving.nodes(plain("n1", "/r2"))
    assert serving.app.bound() == {}


def test_rebinding_publishes_the_difference(serving):
    assert only(serving(ev.Rebind), cmd.Publish) == []
    serving.nodes(plain("n2"), plain("n3"), accelerator("a2"))
    second = serving.run(serving_ask(serving))
    serving.hear("a2", container=second.id, gauges=ev.Gauges(8))
    serving.nodes(*(plain(name, is_usable=False) for name in members(serving, "a2")))
    assert len(members(serving, "a1")) == 2
    (publication,) = only(serving(ev.Rebind), cmd.Publish)
    assert len(publication.bound) == 1
    assert len(members(serving, "a1")) == len(members(serving, "a2")) == 1


def members(driver, server):
    return [node for node, other in driver.app.bound().items() if other == server]


def serving_ask(driver, host="a2"):
    """The request that waits for `host`, as a repetition of it shows."""
    driver(ev.Resynced)
    asks = only(driver(ev.Registered, (driver.container,), 1), cmd.Ask)
    return next(ask for ask in asks if ask.node == host)


# Watching.


def test_a_silent_container_is_checked_and_one_that_ended_unnoticed_is_replaced(serving):
    assert only(serving.wait(29.9), cmd.Check) == []
    assert only(serving.wait(0.1), cmd.Check) == [cmd.Check(serving.container)]
    assert only(serving.wait(29.9), cmd.Check) == []
    assert only(serving.wait(0.1), cmd.Check) == [cmd.Check(serving.container)]
    assert only(serving(ev.Completed, "c1", -100, "unknown"), cmd.Ask)


def test_a_server_that_hangs_is_replaced_while_its_agent_speaks(serving):
    stops = []
    for _ in range(5):
        serving.hear("a1", "agent")
        stops += only(serving.wait(30.0), cmd.StopContainer)
        serving(ev.Started, "c1")
    assert stops == [cmd.StopContainer(serving.container)]
    assert "not well for 120 s" in serving.app.explain("a1")


def test_a_server_whose_agent_is_silent_too_is_left_alone(serving):
    for _ in range(20):
        assert only(serving.wait(30.0), cmd.StopContainer) == []
        serving(ev.Started, "c1")
    serving.hear("a1", container="c1", gauges=ev.Gauges(8))
    assert serving.app.bound() == {"n1": "a1"}


def test_an_agent_that_hangs_is_replaced_if_its_nm_says_that_it_runs():
    driver = Driver(roles=Roles([AGENT]))
    (ask,) = only(driver.nodes(plain()), cmd.Ask)
    agent = driver.run(ask)
    for _ in range(10):
        assert only(driver.wait(30.0), cmd.StopContainer) == []
    assert only(driver(ev.Started, agent.id), cmd.StopContainer) == [cmd.StopContainer(agent)]


def test_a_server_that_stays_ill_is_replaced(serving):
    stops = []
    for _ in range(121):
        serving.now_s += 1.0
        stops += only(serving.hear("a1", container="c1", is_healthy=False), cmd.StopContainer)
        stops += only(serving(ev.Tick), cmd.StopContainer)
    assert stops == [cmd.StopContainer(serving.container)]


# Draining and stopping.


def test_a_drained_server_is_unbound_finishes_and_is_not_asked_for_again(serving):
    commands = serving(ev.Drain, "a1")
    assert only(commands, cmd.Publish)
    assert only(commands, cmd.StopContainer) == []
    for _ in range(5):
        serving.now_s += 1.0
        assert only(serving.hear("a1", container="c1", gauges=ev.Gauges(8, 2)), cmd.StopContainer) == []
    stops = only(serving.hear("a1", container="c1", gauges=ev.Gauges(8, 0)), cmd.StopContainer)
    assert stops == [cmd.StopContainer(serving.container)]
    assert only(serving(ev.Completed, "c1", -105, ""), cmd.Ask) == []
    assert only(serving.nodes(accelerator()), cmd.Ask) == []
    assert len(only(serving(ev.Undrain, "a1"), cmd.Ask)) == 1


def test_an_idle_server_has_the_time_to_tell_its_clients(serving):
    serving(ev.Drain, "a1")
    serving.now_s = 2.9
    assert only(serving.hear("a1", container="c1", gauges=ev.Gauges(8)), cmd.StopContainer) == []
    serving.now_s = 3.0
    assert only(serving.hear("a1", container="c1", gauges=ev.Gauges(8)), cmd.StopContainer)


def test_a_drain_has_an_end(serving):
    serving(ev.Drain, "a1")
    stops = []
    while not stops:
        serving.now_s += 1.0
        stops = only(serving.hear("a1", container="c1", gauges=ev.Gauges(8, 5)), cmd.StopContainer)
    assert serving.now_s == 60.0


def test_a_drain_taken_back_in_time_costs_nothing(serving):
    serving(ev.Drain, "a1")
    assert serving.app.bound() == {}
    serving(ev.Undrain, "a1")
    assert serving.app.bound() == {"n1": "a1"}
    assert held(serving) == ["c1"]


def test_a_drained_node_is_a_guest_of_another(serving):
    (ask,) = only(serving.nodes(accelerator("a2")), cmd.Ask)
    second = serving.run(ask)
    serving.hear("a2", container=second.id, gauges=ev.Gauges(8))
    serving(ev.Drain, "a1")
    assert serving.app.bound() == {"n1": "a2", "a1": "a2"}


def test_stop_ends_everything_restores_slots_and_unregisters(serving):
    commands = serving(ev.Stop)
    assert only(commands, cmd.SetSlots) == [cmd.SetSlots("a1", None), cmd.SetSlots("n1", None)]
    (publication,) = only(commands, cmd.Publish)
    assert publication.bound == (("n1", None),)
    assert only(commands, cmd.StopContainer) == [cmd.StopContainer(serving.container)]
    serving(ev.SlotsSet, "a1", None)
    serving(ev.SlotsSet, "n1", None)
    assert only(serving(ev.Completed, "c1", -105, ""), cmd.Unregister) == [cmd.Unregister("SUCCEEDED")]
    assert serving(ev.Stop) == []
    assert only(serving.wait(10.0), cmd.Unregister)
    serving(ev.Unregistered)
    assert serving.app.is_over
    assert serving(ev.Registered, (), 1) == []


def test_stop_does_not_wait_for_ever(serving):
    serving(ev.Stop)
    assert only(serving.wait(59.9), cmd.Unregister) == []
    assert only(serving.wait(0.1), cmd.Unregister)


def test_stop_lets_a_busy_server_finish_for_a_while(serving):
    serving.hear("a1", container="c1", gauges=ev.Gauges(8, n_open=3))
    assert only(serving(ev.Stop), cmd.StopContainer) == []
    assert only(serving.wait(10.0), cmd.StopContainer)


def test_stop_before_the_rm_has_answered():
    driver = Driver(is_registered=False)
    assert driver(ev.Stop)[0] == cmd.Register()
    assert only(driver(ev.Registered, (), 1), cmd.Unregister)


# Slots.


def slots(commands):
    return {command.node: command.n_slots for command in only(commands, cmd.SetSlots)}


def test_slots_follow_the_shares():
    driver = Driver(roles=acct_only())
    (ask,) = only(driver.nodes(accelerator(), plain(), plain("n9", "/r9")), cmd.Ask)
    container = driver.run(ask)
    assert slots(driver.hear("a1", container=container.id, gauges=ev.Gauges(8))) == {
        "a1": 4,
        "n1": 4,
        "n9": 0,
    }
    assert slots(driver.nodes(plain("n2"))) == {"a1": 3, "n1": 3, "n2": 2}
    assert slots(driver.hear("a1", container=container.id, gauges=ev.Gauges(9))) == {"n2": 3}
    assert slots(driver.nodes(plain("n1", is_usable=False))) == {"a1": 5, "n2": 4}


def test_slots_not_confirmed_are_set_again(serving):
    serving.now_s = 0.5
    serving(ev.SlotsSet, "a1", 4)
    serving(ev.SlotsSet, "n1", 3)
    for _ in range(18):
        serving.now_s += 0.5
        assert slots(serving.hear("a1", container="c1", gauges=ev.Gauges(8))) == {}
    serving.now_s = 10.0
    assert slots(serving(ev.Tick)) == {"n1": 4}


def test_slots_that_something_else_changed_are_set_again(serving):
    serving(ev.SlotsSet, "a1", 4)
    serving(ev.SlotsSet, "n1", 4)
    assert slots(serving.nodes(plain(slots=4))) == {}
    serving.now_s = 2.0
    assert slots(serving.nodes(plain(slots=9))) == {}
    found = []
    for _ in range(10):
        serving.now_s += 1.0
        found.append(slots(serving.hear("a1", container="c1", gauges=ev.Gauges(8))))
    assert [order for order in found if order] == [{"n1": 4}]
    serving(ev.SlotsSet, "n1", 4)
    serving.now_s += 10.0
    serving.hear("a1", container="c1", gauges=ev.Gauges(8))
    assert slots(serving.nodes(plain(slots=9))) == {"n1": 4}


def test_slots_of_a_node_that_was_away_are_set_again(serving):
    serving.nodes(plain(is_usable=False))
    assert slots(serving.nodes(plain())) == {"a1": 4, "n1": 4}


def test_when_the_last_server_is_lost_slots_are_kept_for_a_while_and_then_restored(serving):
    serving(ev.Completed, "c1", 137, "")
    assert slots(serving.wait(9.9)) == {}
    assert slots(serving.wait(0.1)) == {"a1": None, "n1": None}
    assert serving.app.answer("n1").slots is None


def test_a_server_that_is_back_in_time_changes_no_slots(serving):
    serving(ev.SlotsSet, "a1", 4)
    serving(ev.SlotsSet, "n1", 4)
    serving(ev.Completed, "c1", 137, "")
    serving.now_s = 2.0
    serving(ev.Allocated, (ev.Container("c2", "a1", 10),))
    assert slots(serving.hear("a1", container="c2", gauges=ev.Gauges(8))) == {}


def test_without_the_right_slots_are_left_alone_and_it_is_said(serving):
    serving(ev.SlotsRefused, "no admin right")
    assert slots(serving.nodes(plain("n2"))) == {}
    assert "no admin right" in serving.app.explain("n1")
    assert only(serving(ev.Stop), cmd.SetSlots) == []


def test_slots_can_be_switched_off():
    driver = Driver(Settings(has_slots=False), acct_only())
    (ask,) = only(driver.nodes(accelerator()), cmd.Ask)
    assert slots(driver.hear("a1", container=driver.run(ask).id)) == {}


def test_a_lying_server_cannot_have_absurd_shares(serving):
    commands = serving.hear("a1", container="c1", gauges=ev.Gauges(10**12, 0, float("nan")))
    assert slots(commands) == {"a1": 50_000, "n1": 50_000}
    assert slots(serving.hear("a1", container="c1", gauges=ev.Gauges(-7))) == {"a1": 1, "n1": 1}


# Attempts.


def test_a_later_attempt_adopts_what_runs_and_listens_before_it_publishes():
    running = (ev.Container("c1", "a1", 10, 7), ev.Container("c2", "a2", 10, 8), ev.Container("c3", "n1", 99))
    driver = Driver(roles=acct_only(), is_registered=False)
    driver(ev.Tick)
    commands = driver(ev.Registered, running, 2)
    assert only(commands, cmd.Release) == [cmd.Release(running[2])]
    commands = driver.nodes(accelerator("a1"), accelerator("a2"), plain("n1"), plain("n2"))
    assert not kinds(commands) & {cmd.Ask, cmd.Launch, cmd.StopContainer, cmd.Publish, cmd.SetSlots}
    driver.now_s = 0.5
    assert only(driver.hear("a1", container="c1", gauges=ev.Gauges(4)), cmd.Publish) == []
    driver.now_s = 1.5
    assert only(driver.hear("a2", container="c2", gauges=ev.Gauges(4)), cmd.Publish) == []
    (publication,) = only(driver.wait(0.5), cmd.Publish)
    assert publication.is_full
    assert publication.version > 2 << 32
    assert dict(publication.bound).keys() == {"n1", "n2"}
    assert dict(publication.endpoints) == {"a1": "a1:7070", "a2": "a2:7070"}


def test_what_is_found_twice_on_one_node_is_stopped_but_once():
    running = (ev.Container("c2", "a1", 10), ev.Container("c1", "a1", 10))
    driver = Driver(roles=acct_only(), attempt=2, previous=running)
    driver.hear("a1", container="c2")
    assert only(driver.nodes(accelerator()), cmd.StopContainer) == [cmd.StopContainer(running[1])]
    assert held(driver) == ["c2", "c1"]


def test_a_stranger_that_speaks_is_adopted(driver):
    (ask,) = only(driver.nodes(accelerator()), cmd.Ask)
    commands = driver.hear("a1", container="c7")
    assert [unask.request_id for unask in only(commands, cmd.Unask)] == [ask.request_id]
    assert only(commands, cmd.Publish)
    assert driver(ev.Recovered, (ev.Container("c7", "a1", 10),)) == []


def test_what_the_rm_finds_late_is_adopted(driver):
    driver(ev.Recovered, (ev.Container("c7", "a1", 10),))
    assert only(driver.nodes(accelerator()), cmd.Ask) == []


def test_versions_and_request_ids_grow_over_attempts():
    first, second = Driver(roles=acct_only()), Driver(roles=acct_only(), attempt=2)
    (early,) = only(first.nodes(accelerator()), cmd.Ask)
    (late,) = only(second.nodes(accelerator()), cmd.Ask)
    assert late.request_id > early.request_id
    assert second.app.answer("a1").version > first.app.answer("a1").version


def test_a_later_attempt_without_servers_restores_slots():
    driver = Driver(roles=acct_only(), attempt=3)
    driver.nodes(accelerator(), plain())
    assert slots(driver.wait(2.0)) == {}
    assert slots(driver.wait(10.0)) == {"a1": None, "n1": None}


# For people.


def test_explain_says_what_there_is_to_say(serving):
    text = serving.app.explain("n1")
    assert "without an accelerator" in text
    assert "bound to a1" in text
    assert "Slots: 4" in text
    assert "c1 running" in serving.app.explain("a1")
    assert "not known" in serving.app.explain("x")
    serving(ev.Drain, "a1")
    assert "drained" in serving.app.explain("a1")


def test_the_snapshot_is_json(serving):
    picture = json.loads(json.dumps(serving.app.snapshot(5.0), allow_nan=False))
    assert picture["nodes"]["n1"]["bound"] == "a1"
    assert picture["nodes"]["a1"]["members"] == ["n1"]
    assert picture["nodes"]["a1"]["load"]["capacity"] == 8
    assert picture["notes"][-1]["reason"]


def test_time_does_not_run_backwards(serving):
    serving.now_s = 2.0
    serving(ev.Tick)
    serving.now_s = -50.0
    assert serving(ev.Tick) == []
    assert serving.app.bound() == {"n1": "a1"}


def test_only_agents_need_no_servers():
    driver = Driver(roles=Roles([AGENT]))
    assert len(only(driver.nodes(accelerator(), plain()), cmd.Ask)) == 2
    assert driver.app.bound() == {}
