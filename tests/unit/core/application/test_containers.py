"""One container in every place that wants one: each rule by itself, what happens and what is ordered."""

import pytest

from tests.unit.core.application.driver import (
    Driver,
    accelerator,
    held,
    kinds,
    only,
    plain,
    retry_s,
    servers_only,
)
from tests.unit.core.application.virtual_cluster import AGENT, WORKER
from yarn_accel.core.application import ContainerRole, NodeSelector, RestartPolicy, RoleResource, RoleTable
from yarn_accel.core.application import commands as cmd
from yarn_accel.core.application import events as ev

EPOCH = 1 << 32


# Registering.


def test_the_first_event_registers_and_it_is_repeated_when_nobody_answers():
    driver = Driver(is_registered=False)
    assert driver(ev.TimerFired) == [cmd.Register(), cmd.SetTimer(10.0)]
    assert driver.wait(9.9) == []
    assert driver.wait(0.1) == [cmd.Register(), cmd.SetTimer(20.0)]
    assert driver.nodes(accelerator()) == []
    assert len(only(driver(ev.Registered, (), 1), cmd.RequestContainer)) == 2


def test_a_restarted_rm_gets_everything_again():
    driver = Driver(roles=servers_only())
    (ask,) = only(driver.nodes(accelerator()), cmd.RequestContainer)
    assert driver(ev.Resynced) == [cmd.Register()]
    assert driver(ev.Resynced) == []
    assert only(driver(ev.Registered, (), 1), cmd.RequestContainer) == [ask]
    assert only(driver(ev.Registered, (), 1), cmd.RequestContainer) == []


def test_after_a_restart_of_the_rm_its_nm_is_asked_about_what_it_does_not_list(serving):
    serving(ev.Resynced)
    assert only(serving(ev.Registered, (), 1), cmd.QueryContainer) == [cmd.QueryContainer(serving.container)]
    assert serving.app.bound() == {"n1": "a1"}
    serving(ev.Resynced)
    assert only(serving(ev.Registered, (serving.container,), 1), cmd.QueryContainer) == []


def test_a_complete_report_soon_after_registering_may_lack_nodes_that_are_not_back_yet(serving):
    serving.nodes(plain(), is_complete=True)
    serving.now_s = 59.0
    serving.hear("a1", container="c1", gauges=ev.ServerGauges(8))
    assert serving.nodes(plain(), is_complete=True) == []
    serving.now_s = 61.0
    serving.nodes(plain(), is_complete=True)
    assert serving.app.bound() == {}
    assert "gone" in serving.app.explain("a1")


def test_a_restarted_rm_that_lists_no_nodes_before_it_orders_to_register_again_costs_nothing(serving):
    serving.now_s = 100.0
    serving.hear("a1", container="c1", gauges=ev.ServerGauges(8))
    assert serving.nodes(is_complete=True) == []
    serving(ev.Resynced)
    serving.now_s = 101.0
    serving.nodes(plain(), is_complete=True)
    serving.hear("a1", container="c1", gauges=ev.ServerGauges(8))
    commands = serving(ev.Registered, (serving.container,), 1)
    commands += serving.nodes(accelerator(), plain(), is_complete=True)
    assert not kinds(commands) & {cmd.ReleaseContainer, cmd.StopContainer, cmd.RequestContainer}
    assert serving.app.bound() == {"n1": "a1"}


def test_a_node_that_was_missing_once_is_gone_only_after_it_was_missing_as_long_again(serving):
    serving.now_s = 100.0
    serving.nodes(plain(), is_complete=True)
    serving.nodes(accelerator(), plain(), is_complete=True)
    for now_s, is_there in ((150.0, True), (209.0, True), (210.0, False)):
        serving.now_s = now_s
        serving.hear("a1", container="c1", gauges=ev.ServerGauges(8))
        serving.nodes(plain(), is_complete=True)
        assert ("gone" not in serving.app.explain("a1")) is is_there


def test_a_node_that_was_missing_before_gets_the_whole_time_after_a_new_registration(serving):
    serving.now_s = 100.0
    serving.nodes(plain(), is_complete=True)
    serving(ev.Resynced)
    serving.now_s = 150.0
    serving(ev.Registered, (serving.container,), 1)
    for now_s, is_there in ((209.0, True), (210.0, False)):
        serving.now_s = now_s
        serving.nodes(plain(), is_complete=True)
        assert ("gone" not in serving.app.explain("a1")) is is_there


# One container in every place.


def test_one_server_per_accelerator_node_and_one_agent_per_node():
    driver = Driver()
    asks = only(driver.nodes(accelerator(), plain()), cmd.RequestContainer)
    assert asks == [
        cmd.RequestContainer(
            "server", "a1", "/r1", {"memory-mb": 1024, "vcores": 2, "yarn.io/gpu": 2}, 10, EPOCH + 1
        ),
        cmd.RequestContainer("agent", "a1", "/r1", {"memory-mb": 128, "vcores": 1}, 11, EPOCH + 2),
        cmd.RequestContainer("agent", "n1", "/r1", {"memory-mb": 128, "vcores": 1}, 11, EPOCH + 3),
    ]
    assert only(driver.nodes(accelerator(), plain()), cmd.RequestContainer) == []


def test_a_new_accelerator_gets_a_server_and_one_that_fails_loses_it(driver):
    assert only(driver.nodes(plain("x")), cmd.RequestContainer) == []
    (ask,) = only(driver.nodes(accelerator("x")), cmd.RequestContainer)
    unasks = only(driver.nodes(plain("x")), cmd.CancelRequest)
    assert unasks == [cmd.CancelRequest("server", "x", "/r1", 10, ask.request_id)]


def test_an_unanswered_ask_is_repeated_under_its_id(driver):
    (ask,) = only(driver.nodes(accelerator()), cmd.RequestContainer)
    assert only(driver.wait(59.9), cmd.RequestContainer) == []
    assert only(driver.wait(0.1), cmd.RequestContainer) == [ask]


def test_what_is_allocated_is_launched_once(driver):
    (ask,) = only(driver.nodes(accelerator()), cmd.RequestContainer)
    container = ev.ContainerRef("c1", "a1", 10, ask.request_id)
    assert only(driver(ev.ContainersAllocated, (container,)), cmd.LaunchContainer) == [
        cmd.LaunchContainer(container, "server")
    ]
    assert driver(ev.ContainersAllocated, (container,)) == []
    assert driver(ev.ContainerStarted, "c1") == []
    assert only(driver.wait(61.0), cmd.RequestContainer) == []


def test_surplus_is_released(driver):
    (ask,) = only(driver.nodes(accelerator()), cmd.RequestContainer)
    first, second = (ev.ContainerRef(f"c{i}", "a1", 10, ask.request_id) for i in (1, 2))
    commands = driver(ev.ContainersAllocated, (first, second))
    assert only(commands, cmd.LaunchContainer) == [cmd.LaunchContainer(first, "server")]
    assert only(commands, cmd.ReleaseContainer) == [cmd.ReleaseContainer(second)]
    third = ev.ContainerRef("c3", "a1", 10, ask.request_id)
    assert only(driver(ev.ContainersAllocated, (third,)), cmd.ReleaseContainer) == [
        cmd.ReleaseContainer(third)
    ]


def test_what_is_allocated_too_late_is_released(driver):
    (ask,) = only(driver.nodes(accelerator()), cmd.RequestContainer)
    driver(ev.DrainRequested, "a1")
    container = ev.ContainerRef("c1", "a1", 10, ask.request_id)
    assert only(driver(ev.ContainersAllocated, (container,)), cmd.ReleaseContainer) == [
        cmd.ReleaseContainer(container)
    ]


def test_a_container_of_no_role_is_released(driver):
    stranger = ev.ContainerRef("c1", "a1", 99)
    assert driver(ev.ContainersAllocated, (stranger,)) == [cmd.ReleaseContainer(stranger)]


def test_a_container_on_another_host_ends_the_request_and_is_released(driver):
    (ask,) = only(driver.nodes(accelerator(), plain()), cmd.RequestContainer)
    elsewhere = ev.ContainerRef("c1", "n1", 10, ask.request_id)
    commands = driver(ev.ContainersAllocated, (elsewhere,))
    assert only(commands, cmd.ReleaseContainer) == [cmd.ReleaseContainer(elsewhere)]
    assert [again.request_id for again in only(commands, cmd.RequestContainer)] == [ask.request_id + 1]


def test_a_launch_that_fails_is_given_back_and_tried_again(driver):
    (ask,) = only(driver.nodes(accelerator()), cmd.RequestContainer)
    container = ev.ContainerRef("c1", "a1", 10, ask.request_id)
    driver(ev.ContainersAllocated, (container,))
    commands = driver(ev.ContainerStartFailed, "c1", "connection refused")
    assert kinds(commands) >= {cmd.StopContainer, cmd.ReleaseContainer}
    assert only(driver(ev.ContainerCompleted, "c1", -100, ""), cmd.RequestContainer)
    assert "connection refused" in driver.app.explain("a1")
    assert driver(ev.ContainerStartFailed, "c1", "again") == []


def test_a_launch_without_an_answer_fails_after_its_limit(driver):
    (ask,) = only(driver.nodes(accelerator()), cmd.RequestContainer)
    container = ev.ContainerRef("c1", "a1", 10, ask.request_id)
    driver(ev.ContainersAllocated, (container,))
    assert only(driver.wait(29.9), cmd.StopContainer) == []
    assert only(driver.wait(0.1), cmd.StopContainer) == [cmd.StopContainer(container)]


def test_a_container_that_reports_was_started(driver):
    (ask,) = only(driver.nodes(accelerator()), cmd.RequestContainer)
    driver(ev.ContainersAllocated, (ev.ContainerRef("c1", "a1", 10, ask.request_id),))
    driver.hear("a1", container="c1")
    assert driver(ev.ContainerStartFailed, "c1", "late") == []
    assert "serves" in driver.app.explain("a1")


def test_an_order_to_stop_is_repeated_with_a_release_and_then_forgotten(serving):
    serving.nodes(plain("a1"))
    assert only(serving.wait(60.0), cmd.StopContainer) == [cmd.StopContainer(serving.container)]
    assert serving.wait(4.9) == []
    again = serving.wait(0.1)
    assert again[:2] == [cmd.StopContainer(serving.container), cmd.ReleaseContainer(serving.container)]
    serving.wait(25.0)
    assert held(serving) == []
    assert "not confirmed" in serving.app.explain("a1")


def test_who_was_forgotten_and_reports_is_stopped_once_more(serving):
    serving.nodes(plain("a1"))
    serving.wait(60.0)
    serving.wait(30.0)
    assert held(serving) == []
    stop, release = serving.hear("a1", container="c1")
    assert stop.container.id == release.container.id == "c1"
    assert serving.hear("a1", container="c1") == []
    serving.now_s += 5.0
    assert serving.hear("a1", container="c1")[:2] == [stop, release]
    serving(ev.ContainerCompleted, "c1", -105, "")
    serving.now_s += 5.0
    assert kinds(serving.hear("a1", container="c1")) <= {cmd.SetSlots, cmd.SetTimer}


# Servers that hang.


def hang(driver, container="c1"):
    return driver.hear("a1", container=container, is_healthy=False, detail="it hangs", is_hung=True)


def test_a_server_that_hangs_is_stopped_at_once_and_replaced_when_it_has_ended(serving):
    commands = hang(serving)
    assert only(commands, cmd.StopContainer) == [cmd.StopContainer(serving.container)]
    assert serving.app.bound() == {}
    (ask,) = only(serving(ev.ContainerCompleted, "c1", 137, ""), cmd.RequestContainer)
    second = serving.run(ask)
    serving.hear("a1", container=second.id)
    assert serving.app.bound() == {"n1": "a1"}


def test_a_hung_server_that_runs_again_before_it_ended_does_not_serve(serving):
    hang(serving)
    commands = serving.hear("a1", container="c1")
    assert only(commands, cmd.RequestContainer) == []
    assert serving.app.bound() == {}
    assert [name for name, _ in serving.app.assignment("n1").servers] == []


def test_a_hung_server_is_stopped_again_until_its_end_is_confirmed(serving):
    hang(serving)
    for _ in range(3):
        serving.now_s += 5.0
        commands = hang(serving)
        assert kinds(commands) >= {cmd.StopContainer, cmd.ReleaseContainer}
        assert held(serving) == ["c1"]


def test_a_second_report_of_the_hang_of_the_one_before_leaves_its_replacement_alone(serving):
    hang(serving)
    (ask,) = only(serving(ev.ContainerCompleted, "c1", 137, ""), cmd.RequestContainer)
    second = serving.run(ask)
    serving.hear("a1", container=second.id)
    for container in ("c1", ""):
        assert only(hang(serving, container), cmd.StopContainer) == []
    assert held(serving) == [second.id]


# Ends.


def test_a_killed_server_is_asked_for_at_once_and_then_later_and_later(serving):
    assert only(serving(ev.ContainerCompleted, "c1", 137, ""), cmd.RequestContainer)
    waits = []
    for name in ("c2", "c3", "c4", "c5"):
        serving(ev.ContainersAllocated, (ev.ContainerRef(name, "a1", 10),))
        serving(ev.ContainerStarted, name)
        assert only(serving(ev.ContainerCompleted, name, 1, ""), cmd.RequestContainer) == []
        waits.append(retry_s(serving))
    assert waits == [1.0, 2.0, 4.0, 8.0]
    assert only(serving.wait(7.9), cmd.RequestContainer) == []
    assert len(only(serving.wait(0.1), cmd.RequestContainer)) == 1


def test_a_healthy_time_clears_the_record(serving):
    for name in ("c2", "c3", "c4"):
        serving(ev.ContainerCompleted, held(serving)[0], 1, "")
        serving(ev.ContainersAllocated, (ev.ContainerRef(name, "a1", 10),))
    for _ in range(32):
        serving.now_s += 1.0
        serving.hear("a1", container="c4", gauges=ev.ServerGauges(8))
    assert only(serving(ev.ContainerCompleted, "c4", 137, ""), cmd.RequestContainer)


def test_it_clears_the_record_too_if_the_agent_says_first_that_the_server_is_dead(serving):
    for name in ("c2", "c3", "c4", "c5"):
        serving.hear("a1", container=held(serving)[0], gauges=ev.ServerGauges(8))
        serving.now_s += 30.0
        serving.hear("a1", container=held(serving)[0], gauges=ev.ServerGauges(8))
        serving.hear("a1", container=held(serving)[0], is_healthy=False, is_gone=True)
        assert only(serving(ev.ContainerCompleted, held(serving)[0], 137, ""), cmd.RequestContainer)
        serving(ev.ContainersAllocated, (ev.ContainerRef(name, "a1", 10),))
        serving(ev.ContainerStarted, name)


def test_a_failure_that_does_not_go_away_is_tried_again_late_and_it_is_said(serving):
    assert (
        only(serving(ev.ContainerCompleted, "c1", 112, "the node's glibc is older"), cmd.RequestContainer)
        == []
    )
    assert retry_s(serving) == 300.0
    text = serving.app.explain("a1")
    assert "the node's glibc is older" in text
    assert "does not go away by itself" in text
    assert "every 5 min 00 s only: mend the node, then `yarn-accel undrain a1`" in text
    assert only(serving.wait(299.0), cmd.RequestContainer) == []
    assert len(only(serving.wait(1.0), cmd.RequestContainer)) == 1
    assert "does not go away" not in serving.app.explain("a1")


def test_an_admin_who_mended_the_node_need_not_wait(serving):
    serving(ev.ContainerCompleted, "c1", 111, "")
    assert len(only(serving(ev.UndrainRequested, "a1"), cmd.RequestContainer)) == 1
    assert "failures" not in serving.app.explain("a1")


@pytest.mark.parametrize("status", [-102, -100, -105])
def test_who_is_not_to_blame_is_asked_for_at_once_every_time(serving, status):
    container = serving.container.id
    for i in range(5):
        (ask,) = only(serving(ev.ContainerCompleted, container, status, ""), cmd.RequestContainer)
        container = f"x{i}"
        serving(ev.ContainersAllocated, (ev.ContainerRef(container, "a1", 10, ask.request_id),))
        serving(ev.ContainerStarted, container)
    assert retry_s(serving) == 0.0


def test_an_end_that_is_reported_twice_counts_once(serving):
    serving(ev.ContainerCompleted, "c1", 1, "")
    assert serving(ev.ContainerCompleted, "c1", 1, "") == []
    assert retry_s(serving) == 0.0


def test_a_role_may_be_done_when_it_ends_well():
    once = ContainerRole("once", NodeSelector.EVERY, RoleResource(128), 5, RestartPolicy.ON_FAILURE)
    driver = Driver(roles=RoleTable([once]))
    (ask,) = only(driver.nodes(plain()), cmd.RequestContainer)
    driver.run(ask)
    (ask,) = only(driver(ev.ContainerCompleted, "c1", 1, ""), cmd.RequestContainer)
    driver.run(ask)
    assert only(driver(ev.ContainerCompleted, "c2", 0, ""), cmd.RequestContainer) == []
    assert only(driver.wait(1000.0), cmd.RequestContainer) == []


# Nodes come and go.


def test_a_lost_node_is_given_up_and_begins_anew_when_it_is_back(serving):
    commands = serving.nodes(accelerator(is_usable=False))
    assert only(commands, cmd.StopContainer) == []
    assert serving.app.bound() == {}
    assert held(serving) == []
    assert serving(ev.ContainerCompleted, "c1", -100, "") == []
    assert len(only(serving.nodes(accelerator()), cmd.RequestContainer)) == 1
    assert only(serving.hear("a1", container="c1"), cmd.StopContainer) == []


def test_a_server_of_a_lost_node_that_is_back_with_it_is_stopped(serving):
    assert cmd.ReleaseContainer(serving.container) in serving.nodes(accelerator(is_usable=False))
    serving.nodes(accelerator())
    serving.now_s = 1.0
    assert only(serving.hear("a1", container="c1"), cmd.StopContainer) == []
    serving.now_s = 5.0
    assert len(only(serving.hear("a1", container="c1"), cmd.StopContainer)) == 1
    assert serving.app.bound() == {}


def test_a_server_to_be_stopped_again_is_released_when_its_node_is_lost(serving):
    serving.nodes(plain("a1"))
    assert only(serving.wait(60.0), cmd.StopContainer) == [cmd.StopContainer(serving.container)]
    serving.now_s += 5.0
    commands = serving.nodes(plain("a1", is_usable=False))
    assert only(commands, cmd.ReleaseContainer) == [cmd.ReleaseContainer(serving.container)]


def test_a_repeated_request_that_is_answered_is_taken_back(driver):
    (ask,) = only(driver.nodes(accelerator()), cmd.RequestContainer)
    driver.wait(60.0)
    commands = driver(ev.ContainersAllocated, (ev.ContainerRef("c1", "a1", 10, ask.request_id),))
    assert [unask.request_id for unask in only(commands, cmd.CancelRequest)] == [ask.request_id]


def test_a_request_on_a_lost_node_is_taken_back(driver):
    (ask,) = only(driver.nodes(accelerator()), cmd.RequestContainer)
    unasks = only(driver.nodes(accelerator(is_usable=False)), cmd.CancelRequest)
    assert [unask.request_id for unask in unasks] == [ask.request_id]


def test_a_leaving_node_drains_its_server_and_keeps_its_agent_until_then():
    driver = Driver()
    server_ask, agent_ask = only(driver.nodes(accelerator()), cmd.RequestContainer)
    server, agent = driver.run(server_ask), driver.run(agent_ask)
    driver.hear("a1", container=server.id, gauges=ev.ServerGauges(8, n_open=1))
    assert only(driver.nodes(accelerator(is_leaving=True)), cmd.StopContainer) == []
    driver.now_s += 6.0
    stop = driver.hear("a1", container=server.id, gauges=ev.ServerGauges(8, n_open=0))
    assert only(stop, cmd.StopContainer) == [cmd.StopContainer(server)]
    stop = driver(ev.ContainerCompleted, server.id, -105, "")
    assert only(stop, cmd.StopContainer) == [cmd.StopContainer(agent)]
    assert only(driver(ev.ContainerCompleted, agent.id, -105, ""), cmd.RequestContainer) == []


# Watching.


def test_a_silent_container_is_checked_and_one_that_ended_unnoticed_is_replaced(serving):
    assert only(serving.wait(29.9), cmd.QueryContainer) == []
    assert only(serving.wait(0.1), cmd.QueryContainer) == [cmd.QueryContainer(serving.container)]
    assert only(serving.wait(29.9), cmd.QueryContainer) == []
    assert only(serving.wait(0.1), cmd.QueryContainer) == [cmd.QueryContainer(serving.container)]
    assert only(serving(ev.ContainerCompleted, "c1", -100, "unknown"), cmd.RequestContainer)


def test_the_nm_of_a_dead_server_is_asked_at_once_and_until_it_knows(serving):
    """Its next heartbeat, by which the RM hears of the end, is not waited for."""
    check, asked_s = [cmd.QueryContainer(serving.container)], []
    began_s = serving.now_s
    assert (
        only(serving.hear("a1", container="c1", is_healthy=False, is_gone=True), cmd.QueryContainer) == check
    )
    while serving.now_s < began_s + 2.0:
        if only(serving.wait(0.01), cmd.QueryContainer) == check:
            asked_s.append(serving.now_s - began_s)
    assert asked_s == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6], rel=0.15)
    assert serving.app.bound() == {}
    assert only(serving(ev.ContainerCompleted, "c1", 137, ""), cmd.RequestContainer)
    assert only(serving.wait(5.0), cmd.QueryContainer) == []


def test_a_server_that_its_nm_has_started_again_is_not_asked_about_any_more(serving):
    serving.hear("a1", container="c1", is_healthy=False, is_gone=True)
    serving.hear("a1", container="c1", gauges=ev.ServerGauges(8))
    assert only(serving.wait(29.0), cmd.QueryContainer) == []


def test_a_server_that_hangs_is_replaced_while_its_agent_reports(serving):
    stops = []
    for _ in range(5):
        serving.hear("a1", "agent")
        stops += only(serving.wait(30.0), cmd.StopContainer)
        serving(ev.ContainerStarted, "c1")
    assert stops == [cmd.StopContainer(serving.container)]
    assert "not well for 120 s" in serving.app.explain("a1")


def test_a_server_whose_agent_is_silent_too_is_left_alone(serving):
    for _ in range(20):
        assert only(serving.wait(30.0), cmd.StopContainer) == []
        serving(ev.ContainerStarted, "c1")
    serving.hear("a1", container="c1", gauges=ev.ServerGauges(8))
    assert serving.app.bound() == {"n1": "a1"}


def test_an_agent_that_hangs_is_replaced_if_its_nm_says_that_it_runs():
    driver = Driver(roles=RoleTable([AGENT]))
    (ask,) = only(driver.nodes(plain()), cmd.RequestContainer)
    agent = driver.run(ask)
    for _ in range(10):
        assert only(driver.wait(30.0), cmd.StopContainer) == []
    assert only(driver(ev.ContainerStarted, agent.id), cmd.StopContainer) == [cmd.StopContainer(agent)]


def test_a_server_that_stays_ill_is_replaced(serving):
    stops = []
    for _ in range(121):
        serving.now_s += 1.0
        stops += only(serving.hear("a1", container="c1", is_healthy=False), cmd.StopContainer)
        stops += only(serving(ev.TimerFired), cmd.StopContainer)
    assert stops == [cmd.StopContainer(serving.container)]


WORKERS = RoleTable([WORKER])


def choose(driver, *hosts):
    return driver(ev.NodesChosen, "worker", frozenset(hosts))


def test_only_chosen_nodes_get_a_container_of_such_a_role():
    driver = Driver(roles=WORKERS)
    assert not only(driver.nodes(plain("n1"), plain("n2")), cmd.RequestContainer)
    (ask,) = only(choose(driver, "n2", "unknown"), cmd.RequestContainer)
    assert ask.node == "n2"
    container = driver.run(ask)
    assert choose(driver, "n2") == []
    commands = choose(driver, "n1")
    assert [command.container for command in only(commands, cmd.StopContainer)] == [container]
    assert [command.node for command in only(commands, cmd.RequestContainer)] == ["n1"]


def test_a_node_that_is_chosen_before_it_is_known_gets_one_when_it_joins():
    driver = Driver(roles=WORKERS)
    choose(driver, "n1")
    assert [ask.node for ask in only(driver.nodes(plain("n1")), cmd.RequestContainer)] == ["n1"]


def test_the_next_attempt_keeps_these_containers_until_nodes_are_chosen():
    running = ev.ContainerRef("c1", "n1", WORKER.priority)
    driver = Driver(roles=WORKERS, attempt=2, previous=(running,))
    assert not kinds(driver.nodes(plain("n1"))) & {cmd.StopContainer, cmd.ReleaseContainer}
    assert not kinds(driver.wait(60.0)) & {cmd.StopContainer, cmd.ReleaseContainer}
    assert [each.container for each in only(choose(driver), cmd.StopContainer)] == [running]


def test_a_leaving_node_keeps_what_was_chosen_until_it_is_not():
    driver = Driver(roles=WORKERS)
    driver.nodes(plain("n1"), plain("n2"))
    (ask,) = only(choose(driver, "n1"), cmd.RequestContainer)
    container = driver.run(ask)
    assert not only(driver.nodes(plain("n1", is_leaving=True)), cmd.StopContainer)
    assert [each.container for each in only(choose(driver), cmd.StopContainer)] == [container]


def test_a_stop_ends_chosen_containers():
    driver = Driver(roles=WORKERS)
    driver.nodes(plain("n1"))
    (ask,) = only(choose(driver, "n1"), cmd.RequestContainer)
    container = driver.run(ask)
    assert [each.container for each in only(driver(ev.StopRequested), cmd.StopContainer)] == [container]
