"""Serving, binding, draining, stopping, slots, attempts: each rule by itself."""

import json

import pytest

from tests.unit.core.application.driver import (
    Driver,
    accelerator,
    held,
    kinds,
    members,
    only,
    plain,
    servers_only,
    slots,
)
from tests.unit.core.application.virtual_cluster import AGENT
from yarn_accel.core.application import RoleTable, Settings
from yarn_accel.core.application import commands as cmd
from yarn_accel.core.application import events as ev
from yarn_accel.core.application.reconciler import server_binding
from yarn_accel.core.binding import make

# Serving and binding.


def test_a_server_is_published_when_it_reports_and_withdrawn_when_it_is_silent(serving):
    assert serving.wait(2.9) == []
    commands = serving.wait(0.1)
    (publication,) = only(commands, cmd.PublishBindings)
    assert publication.bound == (("n1", None),)
    assert publication.endpoints == (("a1", None),)
    (again,) = only(serving.hear("a1", container="c1", gauges=ev.ServerGauges(8)), cmd.PublishBindings)
    assert again.version > publication.version
    assert again.bound == (("n1", "a1"),)
    assert again.endpoints == (("a1", "a1:7070"),)


def test_an_ill_server_is_withdrawn_at_once(serving):
    commands = serving.hear("a1", container="c1", is_healthy=False, detail="no device")
    assert only(commands, cmd.PublishBindings)
    assert serving.app.bound() == {}
    assert "no device" in serving.app.explain("a1")


def test_a_server_that_ended_is_withdrawn_before_it_is_silent(serving):
    assert only(serving(ev.ContainerCompleted, "c1", 137, ""), cmd.PublishBindings)
    assert serving.app.assignment("n1").servers == ()


def test_the_dead_are_not_heard(serving):
    serving(ev.ContainerCompleted, "c1", 137, "")
    assert serving.hear("a1", container="c1") == []
    assert serving.hear("a1") == []
    assert serving.app.bound() == {}


def test_a_new_endpoint_is_published(serving):
    commands = serving(
        ev.StatusReported, "a1", "server", container="c1", endpoint="elsewhere", gauges=ev.ServerGauges(8)
    )
    (publication,) = only(commands, cmd.PublishBindings)
    assert publication.endpoints == (("a1", "elsewhere"),)
    assert publication.bound == ()


def test_a_heartbeat_that_says_nothing_new_orders_nothing(serving):
    for _ in range(9):
        serving.now_s += 1.0
        assert kinds(serving.hear("a1", container="c1", gauges=ev.ServerGauges(8, n_open=3))) <= {
            cmd.SetTimer
        }


@pytest.mark.parametrize(
    ("reported", "counted"), [(1200.0, 1200.0), (5e9, 1e9), (1e-9, 0.001), (0.0, 1.0), (float("nan"), 1.0)]
)
def test_a_strong_server_counts_as_strong(serving, reported, counted):
    serving.hear("a1", container="c1", gauges=ev.ServerGauges(8, weight=reported))
    node = serving.app._cluster.nodes["a1"]
    assert server_binding(node.view, node.instances["server"].report).weight == counted


def test_an_agent_outside_yarn_is_listened_to_but_has_no_place(serving):
    assert serving.hear("n1", "agent", "systemd") == []
    assert serving.hear("nowhere", "agent") == []


def test_a_second_server_takes_its_part(serving):
    serving.nodes(plain("n2"))
    (ask,) = only(serving.nodes(accelerator("a2")), cmd.RequestContainer)
    second = serving.run(ask)
    assert only(serving.hear("a2", container=second.id), cmd.PublishBindings)
    assert sorted(serving.app.bound().values()) == ["a1", "a2"]
    assert [name for name, _ in serving.app.assignment("a2").servers] == ["a2", "a1"]


def test_an_accelerator_node_without_a_server_is_a_guest_after_a_while():
    driver = Driver(Settings(has_slots=False, silence_s=100.0), servers_only())
    (ask, _) = only(driver.nodes(accelerator("a1"), accelerator("a2")), cmd.RequestContainer)
    driver.hear("a1", container=driver.run(ask).id)
    driver.wait(9.9)
    assert driver.app.bound() == {}
    driver.wait(0.1)
    assert driver.app.bound() == {"a2": "a1"}


def test_a_node_that_moves_to_another_rack_is_unbound(serving):
    serving.nodes(plain("n1", "/r2"))
    assert serving.app.bound() == {}


def test_rebinding_publishes_the_difference(serving):
    assert only(serving(ev.RebindRequested), cmd.PublishBindings) == []
    serving.nodes(plain("n2"), plain("n3"), accelerator("a2"))
    second = serving.run(serving_ask(serving))
    serving.hear("a2", container=second.id, gauges=ev.ServerGauges(8))
    serving.nodes(*(plain(name, is_usable=False) for name in members(serving, "a2")))
    assert len(members(serving, "a1")) == 2
    (publication,) = only(serving(ev.RebindRequested), cmd.PublishBindings)
    assert len(publication.bound) == 1
    assert len(members(serving, "a1")) == len(members(serving, "a2")) == 1


def serving_ask(driver, host="a2"):
    """The request that waits for `host`, as a repetition of it shows."""
    driver(ev.Resynced)
    asks = only(driver(ev.Registered, (driver.container,), 1), cmd.RequestContainer)
    return next(ask for ask in asks if ask.node == host)


# Draining and stopping.


def test_a_drained_server_is_unbound_finishes_and_is_not_asked_for_again(serving):
    commands = serving(ev.DrainRequested, "a1")
    assert only(commands, cmd.PublishBindings)
    assert only(commands, cmd.StopContainer) == []
    for _ in range(5):
        serving.now_s += 1.0
        assert only(serving.hear("a1", container="c1", gauges=ev.ServerGauges(8, 2)), cmd.StopContainer) == []
    stops = only(serving.hear("a1", container="c1", gauges=ev.ServerGauges(8, 0)), cmd.StopContainer)
    assert stops == [cmd.StopContainer(serving.container)]
    assert only(serving(ev.ContainerCompleted, "c1", -105, ""), cmd.RequestContainer) == []
    assert only(serving.nodes(accelerator()), cmd.RequestContainer) == []
    assert len(only(serving(ev.UndrainRequested, "a1"), cmd.RequestContainer)) == 1


def test_an_ill_server_that_has_nothing_open_is_not_waited_for(serving):
    serving.hear("a1", container="c1", is_healthy=False, gauges=ev.ServerGauges(8, n_open=1))
    serving(ev.DrainRequested, "a1")
    serving.now_s = 5.0
    commands = serving.hear("a1", container="c1", is_healthy=False, gauges=ev.ServerGauges(8))
    assert only(commands, cmd.StopContainer) == [cmd.StopContainer(serving.container)]


def asks_in_turns(driver, commands):
    """How many nodes are asked for in each event while the application wants to be woken at once."""
    n_asks = [len(only(commands, cmd.RequestContainer))]
    while any(wake.at_s <= driver.now_s for wake in only(commands, cmd.SetTimer)):
        commands = driver(ev.TimerFired)
        n_asks.append(len(only(commands, cmd.RequestContainer)))
    return n_asks


def test_a_thousand_nodes_are_looked_at_in_turns():
    driver = Driver(roles=RoleTable([AGENT]))
    n_asks = asks_in_turns(driver, driver.nodes(*(plain(f"n{i}") for i in range(1000))))
    assert (sum(n_asks), max(n_asks)) == (1000, 32)


def test_a_thousand_alarms_ring_in_turns():
    driver = Driver(roles=RoleTable([AGENT]))
    asks_in_turns(driver, driver.nodes(*(plain(f"n{i}") for i in range(1000))))
    n_asks = asks_in_turns(driver, driver.wait(60.0))
    assert (sum(n_asks), max(n_asks)) == (1000, 8)


def test_what_is_put_off_is_done_all_the_same_when_everything_is_to_end():
    driver = Driver(settings=Settings(has_slots=False))
    commands = driver.nodes(accelerator(), *(plain(f"n{i}") for i in range(99)))
    asks_in_turns(driver, commands)
    commands = driver(ev.StopRequested)
    n_unasked = len(only(commands, cmd.CancelRequest))
    while any(wake.at_s <= driver.now_s for wake in only(commands, cmd.SetTimer)):
        commands = driver(ev.TimerFired)
        n_unasked += len(only(commands, cmd.CancelRequest))
    assert n_unasked == 101
    assert only(commands, cmd.Unregister)


def test_an_idle_server_has_the_time_to_tell_its_clients(serving):
    serving(ev.DrainRequested, "a1")
    serving.now_s = 4.9
    assert only(serving.hear("a1", container="c1", gauges=ev.ServerGauges(8)), cmd.StopContainer) == []
    serving.now_s = 5.0
    assert only(serving.hear("a1", container="c1", gauges=ev.ServerGauges(8)), cmd.StopContainer)


def test_a_drain_has_an_end(serving):
    serving(ev.DrainRequested, "a1")
    stops = []
    while not stops:
        serving.now_s += 1.0
        stops = only(serving.hear("a1", container="c1", gauges=ev.ServerGauges(8, 5)), cmd.StopContainer)
    assert serving.now_s == 60.0


def test_a_drain_taken_back_in_time_costs_nothing(serving):
    serving(ev.DrainRequested, "a1")
    assert serving.app.bound() == {}
    serving(ev.UndrainRequested, "a1")
    assert serving.app.bound() == {"n1": "a1"}
    assert held(serving) == ["c1"]


def test_a_drained_node_is_a_guest_of_another(serving):
    (ask,) = only(serving.nodes(accelerator("a2")), cmd.RequestContainer)
    second = serving.run(ask)
    serving.hear("a2", container=second.id, gauges=ev.ServerGauges(8))
    serving(ev.DrainRequested, "a1")
    assert serving.app.bound() == {"n1": "a2", "a1": "a2"}


def test_stop_ends_everything_restores_slots_and_unregisters(serving):
    commands = serving(ev.StopRequested)
    assert only(commands, cmd.SetSlots) == [cmd.SetSlots("a1", None), cmd.SetSlots("n1", None)]
    (publication,) = only(commands, cmd.PublishBindings)
    assert publication.bound == (("n1", None),)
    assert only(commands, cmd.StopContainer) == [cmd.StopContainer(serving.container)]
    serving(ev.SlotsSet, "a1", None)
    serving(ev.SlotsSet, "n1", None)
    assert only(serving(ev.ContainerCompleted, "c1", -105, ""), cmd.Unregister) == [
        cmd.Unregister("SUCCEEDED")
    ]
    assert serving(ev.StopRequested) == []
    assert only(serving.wait(10.0), cmd.Unregister)
    serving(ev.Unregistered)
    assert serving.app.is_over
    assert serving(ev.Registered, (), 1) == []


def test_stop_withdraws_what_the_attempt_before_has_published():
    driver = Driver(roles=servers_only(), attempt=2)
    (publication,) = only(driver(ev.StopRequested), cmd.PublishBindings)
    assert (publication.is_full, publication.bound) == (True, ())


def test_stop_does_not_wait_for_ever(serving):
    serving(ev.StopRequested)
    assert only(serving.wait(59.9), cmd.Unregister) == []
    assert only(serving.wait(0.1), cmd.Unregister)


def test_stop_lets_a_busy_server_finish_for_a_while(serving):
    serving.hear("a1", container="c1", gauges=ev.ServerGauges(8, n_open=3))
    assert only(serving(ev.StopRequested), cmd.StopContainer) == []
    assert only(serving.wait(10.0), cmd.StopContainer)


def test_stop_before_the_rm_has_answered():
    driver = Driver(is_registered=False)
    assert driver(ev.StopRequested)[0] == cmd.Register()
    assert only(driver(ev.Registered, (), 1), cmd.Unregister)


# Slots.


def test_slots_follow_the_shares():
    driver = Driver(roles=servers_only())
    (ask,) = only(driver.nodes(accelerator(), plain(), plain("n9", "/r9")), cmd.RequestContainer)
    container = driver.run(ask)
    assert slots(driver.hear("a1", container=container.id, gauges=ev.ServerGauges(8))) == {
        "a1": 4,
        "n1": 4,
        "n9": 0,
    }
    assert slots(driver.nodes(plain("n2"))) == {"a1": 3, "n1": 3, "n2": 2}
    assert slots(driver.hear("a1", container=container.id, gauges=ev.ServerGauges(9))) == {"n2": 3}
    assert slots(driver.nodes(plain("n1", is_usable=False))) == {"a1": 5, "n2": 4}


def test_slots_not_confirmed_are_set_again(serving):
    serving.now_s = 0.5
    serving(ev.SlotsSet, "a1", 4)
    serving(ev.SlotsSet, "n1", 3)
    for _ in range(18):
        serving.now_s += 0.5
        assert slots(serving.hear("a1", container="c1", gauges=ev.ServerGauges(8))) == {}
    serving.now_s = 10.0
    assert slots(serving(ev.TimerFired)) == {"n1": 4}


def test_slots_that_something_else_changed_are_set_again(serving):
    serving(ev.SlotsSet, "a1", 4)
    serving(ev.SlotsSet, "n1", 4)
    assert slots(serving.nodes(plain(slots=4))) == {}
    serving.now_s = 2.0
    assert slots(serving.nodes(plain(slots=9))) == {}
    found = []
    for _ in range(10):
        serving.now_s += 1.0
        found.append(slots(serving.hear("a1", container="c1", gauges=ev.ServerGauges(8))))
    assert [order for order in found if order] == [{"n1": 4}]
    serving(ev.SlotsSet, "n1", 4)
    serving.now_s += 10.0
    serving.hear("a1", container="c1", gauges=ev.ServerGauges(8))
    assert slots(serving.nodes(plain(slots=9))) == {"n1": 4}


def test_slots_of_a_node_that_was_away_are_set_again(serving):
    serving.nodes(plain(is_usable=False))
    assert slots(serving.nodes(plain())) == {"a1": 4, "n1": 4}


def test_when_the_last_server_is_lost_slots_are_kept_for_a_while_and_then_restored(serving):
    serving(ev.ContainerCompleted, "c1", 137, "")
    assert slots(serving.wait(9.9)) == {}
    assert slots(serving.wait(0.1)) == {"a1": None, "n1": None}
    assert serving.app.assignment("n1").slots is None


def test_a_server_that_is_back_in_time_changes_no_slots(serving):
    serving(ev.SlotsSet, "a1", 4)
    serving(ev.SlotsSet, "n1", 4)
    serving(ev.ContainerCompleted, "c1", 137, "")
    serving.now_s = 2.0
    serving(ev.ContainersAllocated, (ev.ContainerRef("c2", "a1", 10),))
    assert slots(serving.hear("a1", container="c2", gauges=ev.ServerGauges(8))) == {}


def test_without_the_right_slots_are_left_alone_and_it_is_said(serving):
    serving(ev.SlotsRefused, "no admin right")
    assert slots(serving.nodes(plain("n2"))) == {}
    assert "no admin right" in serving.app.explain("n1")
    nodes = serving.app.snapshot(serving.now_s)["nodes"]
    assert {node["slots"]["wanted"] for node in nodes.values()} == {None}, "there is nothing to wait for"
    assert only(serving(ev.StopRequested), cmd.SetSlots) == []


def test_slots_can_be_switched_off():
    driver = Driver(Settings(has_slots=False), servers_only())
    (ask,) = only(driver.nodes(accelerator()), cmd.RequestContainer)
    assert slots(driver.hear("a1", container=driver.run(ask).id)) == {}


def test_a_lying_server_cannot_have_absurd_shares(serving):
    commands = serving.hear("a1", container="c1", gauges=ev.ServerGauges(10**12, 0, float("nan")))
    assert slots(commands) == {"a1": 50_000, "n1": 50_000}
    assert slots(serving.hear("a1", container="c1", gauges=ev.ServerGauges(-7))) == {"a1": 1, "n1": 1}


# Attempts.


def test_a_later_attempt_adopts_what_runs_and_listens_before_it_publishes():
    running = (
        ev.ContainerRef("c1", "a1", 10, 7),
        ev.ContainerRef("c2", "a2", 10, 8),
        ev.ContainerRef("c3", "n1", 99),
    )
    driver = Driver(roles=servers_only(), is_registered=False)
    driver(ev.TimerFired)
    commands = driver(ev.Registered, running, 2)
    assert only(commands, cmd.ReleaseContainer) == [cmd.ReleaseContainer(running[2])]
    nodes = accelerator("a1"), accelerator("a2"), plain("n1"), plain("n2")
    commands = driver.nodes(*nodes, is_complete=True)
    assert not kinds(commands) & {
        *(cmd.RequestContainer, cmd.LaunchContainer, cmd.StopContainer, cmd.PublishBindings, cmd.SetSlots),
    }
    driver.now_s = 0.5
    assert only(driver.hear("a1", container="c1", gauges=ev.ServerGauges(4)), cmd.PublishBindings) == []
    driver.now_s = 1.5
    assert only(driver.hear("a2", container="c2", gauges=ev.ServerGauges(4)), cmd.PublishBindings) == []
    (publication,) = only(driver.wait(0.5), cmd.PublishBindings)
    assert publication.is_full
    assert publication.version > 2 << 32
    assert dict(publication.bound).keys() == {"n1", "n2"}
    assert dict(publication.endpoints) == {"a1": "a1:7070", "a2": "a2:7070"}


def test_what_is_found_twice_on_one_node_is_stopped_but_once():
    running = (ev.ContainerRef("c2", "a1", 10), ev.ContainerRef("c1", "a1", 10))
    driver = Driver(roles=servers_only(), attempt=2, previous=running)
    driver.hear("a1", container="c2")
    assert only(driver.nodes(accelerator()), cmd.StopContainer) == [cmd.StopContainer(running[1])]
    assert held(driver) == ["c2", "c1"]


def test_a_stranger_that_reports_is_adopted(driver):
    (ask,) = only(driver.nodes(accelerator()), cmd.RequestContainer)
    commands = driver.hear("a1", container="c7")
    assert [unask.request_id for unask in only(commands, cmd.CancelRequest)] == [ask.request_id]
    assert only(commands, cmd.PublishBindings)
    assert driver(ev.ContainersRecovered, (ev.ContainerRef("c7", "a1", 10),)) == []


def test_what_the_rm_finds_late_is_adopted(driver):
    driver(ev.ContainersRecovered, (ev.ContainerRef("c7", "a1", 10),))
    assert only(driver.nodes(accelerator()), cmd.RequestContainer) == []


def test_versions_and_request_ids_grow_over_attempts():
    first, second = Driver(roles=servers_only()), Driver(roles=servers_only(), attempt=2)
    (early,) = only(first.nodes(accelerator()), cmd.RequestContainer)
    (late,) = only(second.nodes(accelerator()), cmd.RequestContainer)
    assert late.request_id > early.request_id
    assert second.app.assignment("a1").version > first.app.assignment("a1").version


def test_a_later_attempt_without_servers_restores_slots():
    driver = Driver(roles=servers_only(), attempt=3)
    driver.nodes(accelerator(), plain(), is_complete=True)
    assert slots(driver.wait(2.0)) == {}
    assert slots(driver.wait(10.0)) == {"a1": None, "n1": None}


def later_attempt(*views, heard=("a1", "a2"), attempt=2, **settings):
    """A second attempt: two servers run; what its nodes are published as bound to is reported with them."""
    running = ev.ContainerRef("c1", "a1", 10), ev.ContainerRef("c2", "a2", 10)
    driver = Driver(settings=Settings(**settings), roles=servers_only(), attempt=attempt, previous=running)
    driver.nodes(accelerator("a1"), accelerator("a2"), *views, is_complete=True)
    driver.now_s = 1.0
    for host in heard:
        driver.hear(host, gauges=ev.ServerGauges(4))
    return driver


PUBLISHED = tuple(plain(f"n{i}", bound="a2" if i < 2 else "a1") for i in range(4))


def test_a_later_attempt_binds_again_what_is_published():
    driver = later_attempt(*PUBLISHED)
    (publication,) = only(driver.wait(1.0), cmd.PublishBindings)
    assert dict(publication.bound) == {"n0": "a2", "n1": "a2", "n2": "a1", "n3": "a1"}
    assert "it was bound there before" in driver.app.explain("n0")
    assert "4 bindings kept" in str(driver.app.snapshot(2.0)["notes"])


def test_the_first_attempt_asks_nobody_what_was_before():
    driver = later_attempt(*PUBLISHED, heard=(), attempt=1, settle_s=0.0, recall_s=0.0)
    for host in ("a1", "a2"):
        driver.hear(host, gauges=ev.ServerGauges(4))
    assert len(members(driver, "a1")) == len(members(driver, "a2")) == 2
    assert "kept" not in str(driver.app.snapshot(1.0)["notes"])


def test_it_waits_for_a_server_that_runs_and_that_somebody_is_bound_to():
    driver = later_attempt(*PUBLISHED, heard=("a1",))
    assert only(driver.wait(1.0), cmd.PublishBindings) == []
    (publication,) = only(driver.hear("a2", gauges=ev.ServerGauges(4)), cmd.PublishBindings)
    assert dict(publication.bound) == {"n0": "a2", "n1": "a2", "n2": "a1", "n3": "a1"}


def test_it_does_not_wait_for_ever():
    driver = later_attempt(*PUBLISHED, heard=("a1",), recall_s=5.0)
    driver.now_s = 6.9
    assert only(driver.hear("a1", gauges=ev.ServerGauges(4)), cmd.PublishBindings) == []
    (publication,) = only(driver.wait(0.1), cmd.PublishBindings)
    assert {server for _, server in publication.bound} == {"a1"}


def test_it_waits_again_for_those_who_reported_long_ago():
    """The list came late, and agents could not get through: nobody is lost, or moved, for that."""
    driver = later_attempt(heard=("a1", "a2"))
    driver.now_s = 2.6
    everything = (accelerator("a1"), accelerator("a2"), *PUBLISHED)
    assert only(driver.nodes(*everything, is_complete=True), cmd.PublishBindings) == []
    assert only(driver.wait(1.8), cmd.PublishBindings) == [], "both are silent now"
    assert only(driver.hear("a2", gauges=ev.ServerGauges(4)), cmd.PublishBindings) == []
    driver.now_s += 0.1
    (publication,) = only(driver.hear("a1", gauges=ev.ServerGauges(4)), cmd.PublishBindings)
    assert dict(publication.bound) == {"n0": "a2", "n1": "a2", "n2": "a1", "n3": "a1"}
    assert dict(publication.endpoints) == {"a1": "a1:7070", "a2": "a2:7070"}


def test_it_does_not_wait_for_a_server_that_has_ended():
    driver = later_attempt(*PUBLISHED, heard=("a1",))
    driver(ev.ContainerCompleted, "c2", 137, "")
    assert len(only(driver.wait(1.0), cmd.PublishBindings)) == 1


def test_it_waits_until_all_nodes_are_reported():
    running = (ev.ContainerRef("c1", "a1", 10),)
    driver = Driver(roles=servers_only(), attempt=2, previous=running)
    driver.nodes(accelerator("a1"))
    driver.now_s = 1.9
    driver.hear("a1", gauges=ev.ServerGauges(4))
    assert only(driver.wait(1.0), cmd.PublishBindings) == []
    (publication,) = only(driver.nodes(accelerator("a1"), plain(), is_complete=True), cmd.PublishBindings)
    assert dict(publication.bound) == {"n1": "a1"}


def test_what_is_published_later_is_not_looked_at(serving):
    assert serving.nodes(plain("n1", bound="a9")) == []
    assert serving.app.bound() == {"n1": "a1"}


# For people.


def test_who_is_drained_is_not_called_lost(serving):
    serving(ev.DrainRequested, "a1")
    serving(ev.ContainerCompleted, serving.container.id, -105, "")
    assert "server: none, the node is drained." in serving.app.explain("a1")
    reasons = [note["reason"] for note in serving.app.snapshot(serving.now_s)["notes"]]
    assert "a1 left: no accelerator node is left for n1" in reasons


def test_a_node_that_becomes_a_server_is_not_to_be_bound_any_more(serving):
    serving.nodes(accelerator("n1"))
    notes = serving.app.snapshot(serving.now_s)["notes"]
    assert ("n1", "bound to nobody", "it is not to be bound any more") in [
        (note["node"], note["what"], note["reason"]) for note in notes
    ]


def test_explain_says_what_is_there_and_does_not_serve(driver):
    commands = driver.nodes(accelerator(), plain())
    assert "no accelerator node of /r1 serves now: a1 (not heard yet); its tasks" in driver.app.explain("n1")
    driver(
        ev.ContainersAllocated,
        (ev.ContainerRef("c1", "a1", 10, only(commands, cmd.RequestContainer)[0].request_id),),
    )
    assert "a1 (its server is launching)" in driver.app.explain("n1")
    assert "a1 has its own accelerator, whose server does not serve now" in driver.app.explain("a1")
    driver(ev.DrainRequested, "a1")
    assert "a1 (drained)" in driver.app.explain("n1")


def test_explain_says_what_there_is_to_say(serving):
    text = serving.app.explain("n1")
    assert "without an accelerator" in text
    assert "bound to a1" in text
    assert "Slots: 4" in text
    assert "c1 running" in serving.app.explain("a1")
    assert "not known" in serving.app.explain("x")
    serving(ev.DrainRequested, "a1")
    assert "drained" in serving.app.explain("a1")


def test_the_snapshot_is_json(serving):
    picture = json.loads(json.dumps(serving.app.snapshot(5.0), allow_nan=False))
    assert (picture["nodes"]["n1"]["bound"], picture["nodes"]["a1"]["members"]) == ("a1", ["n1"])
    assert picture["nodes"]["a1"]["load"]["capacity"] == 8
    assert picture["notes"][-1]["reason"]


def test_time_does_not_run_backwards(serving):
    serving.now_s = 2.0
    serving(ev.TimerFired)
    serving.now_s = -50.0
    assert serving(ev.TimerFired) == []
    assert serving.app.bound() == {"n1": "a1"}


def test_only_agents_need_no_servers():
    driver = Driver(roles=RoleTable([AGENT]))
    assert len(only(driver.nodes(accelerator(), plain()), cmd.RequestContainer)) == 2
    assert driver.app.bound() == {}


def test_slots_stay_at_a_node_that_waits_for_its_next_server(serving):
    """YARN gives out nothing on a node that has fewer slots than its mappers hold."""
    (ask,) = only(serving.nodes(accelerator("a2")), cmd.RequestContainer)
    serving.hear("a2", container=serving.run(ask).id, gauges=ev.ServerGauges(8))
    gone = {"container": "c1", "is_healthy": False, "is_gone": True}
    assert "a1" not in slots(serving.hear("a1", **gone))
    commands = serving(ev.ContainerCompleted, "c1", 137, "")
    (again,) = only(commands, cmd.RequestContainer)
    assert "a1" not in slots(commands)
    assert serving.app.assignment("a1").slots != 0
    late = slots(
        serving(ev.ContainersAllocated, (ev.ContainerRef("c9", "a1", again.priority, again.request_id),))
    )
    assert "a1" in late


def test_a_server_that_does_not_come_keeps_the_slots_for_a_bounded_time(serving):
    (ask,) = only(serving.nodes(accelerator("a2")), cmd.RequestContainer)
    serving.hear("a2", container=serving.run(ask).id, gauges=ev.ServerGauges(8))
    serving(ev.ContainerCompleted, "c1", 137, "")
    found = {}
    for _ in range(60):
        serving.now_s += 0.1
        found.update(slots(serving.hear("a2", container="c2", gauges=ev.ServerGauges(8))))
    assert "a1" in found


# Racks without a server.


@pytest.fixture
def two_racks():
    """Two racks with one serving accelerator node and one other node each."""
    driver = Driver(roles=servers_only(), make_policy=lambda: make("weighted"))
    asks = only(
        driver.nodes(accelerator(), plain(), accelerator("a2", "/r2"), plain("n2", "/r2")),
        cmd.RequestContainer,
    )
    for ask in asks:
        driver.hear(ask.node, container=driver.run(ask).id)
    assert driver.app.bound() == {"n1": "a1", "n2": "a2"}
    return driver


def test_a_rack_whose_only_server_hangs_uses_another_rack_until_it_has_one_again(two_racks):
    two_racks.hear("a1", container="c1", is_healthy=False, is_hung=True)
    assert two_racks.app.bound() == {"n1": "a2", "n2": "a2"}
    for host in ("n1", "a1"):
        assert [name for name, _ in two_racks.app.assignment(host).servers] == ["a2"]
    assert "its tasks use the server of a2" in two_racks.app.explain("a1")
    (ask,) = only(two_racks(ev.ContainerCompleted, "c1", 137, ""), cmd.RequestContainer)
    two_racks.hear("a1", container=two_racks.run(ask).id)
    assert two_racks.app.bound() == {"n1": "a1", "n2": "a2"}
    assert [name for name, _ in two_racks.app.assignment("n1").servers] == ["a1"]


# Servers that nobody needs.


@pytest.fixture
def idle():
    """The server of a1 serves n1, and goes after 60 s without work."""
    driver = Driver(Settings(idle_release_s=60.0, silence_s=1e6), servers_only())
    (ask,) = only(driver.nodes(accelerator(), plain()), cmd.RequestContainer)
    driver.container = driver.run(ask)
    driver.hear("a1", container=driver.container.id, gauges=ev.ServerGauges(8))
    return driver


def test_a_server_without_work_gives_its_container_back(idle):
    assert only(idle.wait(59.9), cmd.StopContainer) == []
    idle.wait(0.1)
    assert idle.app.bound() == {}, "its clients learn of it first"
    idle.wait(5.0)
    (stop,) = only(idle.hear("a1", container="c1", gauges=ev.ServerGauges(8)), cmd.StopContainer)
    assert stop.container.id == idle.container.id
    assert only(idle(ev.ContainerCompleted, "c1", 143, ""), cmd.RequestContainer) == []
    explained = idle.app.explain("a1")
    assert "none, nobody needed it for 1 min 00 s; it returns when a task asks for a server" in explained
    assert "server released (nobody needed it for 1 min 00 s)" in explained
    assert "a1 (released, nobody needed it)" in idle.app.explain("n1")
    assert idle.app.snapshot(idle.now_s)["nodes"]["a1"]["is_released"]
    assert not idle.app.summarize().troubled


def test_a_server_that_takes_long_to_start_is_not_given_back_before_it_has_served():
    driver = Driver(Settings(idle_release_s=60.0, silence_s=1e6), servers_only())
    (ask,) = only(driver.nodes(accelerator(), plain()), cmd.RequestContainer)
    container = driver.run(ask)
    assert only(driver.wait(100.0), cmd.StopContainer) == []
    driver.hear("a1", container=container.id, gauges=ev.ServerGauges(8))
    assert driver.app.bound() == {"n1": "a1"}
    driver.wait(59.0)
    assert driver.app.bound() == {"n1": "a1"}
    driver.wait(1.0)
    assert driver.app.bound() == {}


def test_a_server_returns_when_a_task_asks(idle):
    idle.wait(60.0)
    idle.wait(60.0)
    idle(ev.ContainerCompleted, "c1", 143, "")
    (ask,) = only(idle(ev.ServersWanted, 0.5), cmd.RequestContainer)
    assert ask.node == "a1"
    idle.hear("a1", container=idle.run(ask).id, gauges=ev.ServerGauges(8))
    assert idle.app.bound() == {"n1": "a1"}
    assert "server wanted again (somebody asks for servers)" in idle.app.explain("a1")


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda idle: idle(ev.ServersWanted, 0.0), id="asked for"),
        pytest.param(lambda idle: load(idle, n_open=1), id="a request is open"),
        pytest.param(lambda idle: load(idle, n_taken=7), id="a request came and went between two reports"),
    ],
)
def test_a_server_that_is_used_stays(idle, use):
    idle.wait(59.0)
    use(idle)
    idle.wait(59.0)
    assert idle.app.bound() == {"n1": "a1"}
    idle.wait(1.0)
    assert idle.app.bound() == {}


def load(driver, **gauges):
    driver.hear("a1", container="c1", gauges=ev.ServerGauges(8, **gauges))


def test_a_question_while_a_server_is_about_to_go_keeps_it(idle):
    idle.wait(60.0)
    idle.wait(2.0)
    idle(ev.ServersWanted, 0.0)
    assert only(idle.wait(10.0), cmd.StopContainer) == []
    assert idle.app.bound() == {"n1": "a1"}


def test_an_old_question_brings_no_server_back(idle):
    idle.wait(60.0)
    idle.wait(60.0)
    idle(ev.ContainerCompleted, "c1", 143, "")
    assert only(idle(ev.ServersWanted, 90.0), cmd.RequestContainer) == []


def test_an_admin_who_undrains_a_node_sees_its_server(idle):
    idle(ev.DrainRequested, "a1")
    idle.wait(200.0)
    idle(ev.ContainerCompleted, "c1", 143, "")
    assert only(idle(ev.UndrainRequested, "a1"), cmd.RequestContainer)


def test_servers_stay_where_no_time_is_set(serving):
    for _ in range(3):
        serving.hear("a1", container="c1", gauges=ev.ServerGauges(8))
        serving.now_s += 1e6
        serving.hear("a1", container="c1", gauges=ev.ServerGauges(8))
    assert serving.app.bound() == {"n1": "a1"}
