"""The shell stood still: nobody's silence, nobody's delay; and nothing else is changed by it."""

import pytest

from tests.unit.core.application.driver import Driver, accelerator, kinds, only, plain, servers_only
from yarn_accel.core.application import commands as cmd
from yarn_accel.core.application import events as ev


def stall(driver, seconds):
    driver.now_s += seconds
    return driver(ev.Stalled, seconds)


@pytest.mark.parametrize("seconds", [3.0, 6.0, 3600.0])
def test_a_stall_unbinds_nobody(serving, seconds):
    serving.wait(2.5)
    assert kinds(stall(serving, seconds)) == {cmd.SetTimer}
    assert serving(ev.TimerFired) == []
    assert serving.app.bound() == {"n1": "a1"}


def test_agents_have_the_time_to_come_back_after_a_long_stall(serving):
    """They ask the RM where the master is, and no more often than every 5 s."""
    serving.wait(2.5)
    stall(serving, 6.0)
    assert only(serving.wait(7.9), cmd.PublishBindings) == []
    (publication,) = only(serving.wait(0.1), cmd.PublishBindings)
    assert publication.bound == (("n1", None),)
    assert "silent for 10.5 s" in serving.app.explain("a1")


def test_who_waited_in_a_socket_may_be_late_the_next_time_too(serving):
    stall(serving, 6.0)
    serving.hear("a1", container="c1", gauges=ev.ServerGauges(8))
    assert only(serving.wait(7.9), cmd.PublishBindings) == []
    assert only(serving.wait(0.1), cmd.PublishBindings)


def test_a_short_stall_gives_its_time_back_and_no_more(serving):
    serving.wait(2.9)
    stall(serving, 2.0)
    assert only(serving.wait(0.05), cmd.PublishBindings) == []
    assert only(serving.wait(0.1), cmd.PublishBindings)


def test_a_stall_that_is_reported_twice_counts_once(serving):
    serving.wait(0.5)
    stall(serving, 2.0)
    serving(ev.Stalled, 2.0)
    assert only(serving.wait(2.4), cmd.PublishBindings) == []
    assert only(serving.wait(0.2), cmd.PublishBindings)


def test_no_more_is_given_back_than_the_clock_has_counted(serving):
    """A suspended machine: the monotonic clock stood still as well, so no time has to be left out."""
    serving.wait(2.5)
    serving(ev.Stalled, 3600.0)
    assert only(serving.wait(7.9), cmd.PublishBindings) == []
    assert only(serving.wait(0.2), cmd.PublishBindings)


def test_who_was_silent_before_is_not_bound_again(serving):
    assert only(serving.wait(3.0), cmd.PublishBindings)
    assert only(stall(serving, 60.0), cmd.PublishBindings) == []
    assert serving.app.bound() == {}


def test_an_answer_that_came_in_the_stall_is_not_late():
    driver = Driver(roles=servers_only())
    (ask,) = only(driver.nodes(accelerator(), plain()), cmd.RequestContainer)
    container = ev.ContainerRef("c1", "a1", ask.priority, ask.request_id)
    driver(ev.ContainersAllocated, (container,))
    assert kinds(stall(driver, 60.0)) <= {cmd.SetTimer}
    assert not kinds(driver(ev.ContainerStarted, "c1")) & {
        cmd.StopContainer,
        cmd.ReleaseContainer,
        cmd.RequestContainer,
    }
    driver.hear("a1", container="c1", gauges=ev.ServerGauges(8))
    assert driver.app.bound() == {"n1": "a1"}


@pytest.mark.parametrize("begin_s", [0.1, 12345.678901, 987654.321])
@pytest.mark.parametrize("seconds", [0.1 + 0.2, 2.7, 1e5 / 3])
def test_it_is_woken_when_it_is_due_and_once(begin_s, seconds):
    driver = Driver(roles=servers_only(), is_registered=False)
    driver.now_s = begin_s
    driver(ev.Registered, (), 1)
    (ask,) = only(driver.nodes(accelerator(), plain()), cmd.RequestContainer)
    driver.hear("a1", container=driver.run(ask).id, gauges=ev.ServerGauges(8))
    driver.now_s += 0.7
    (alarm,) = only(stall(driver, seconds), cmd.SetTimer)
    for _ in range(20):
        assert alarm.at_s > driver.now_s, "it would be asked for without end"
        driver.now_s = alarm.at_s
        commands = driver(ev.TimerFired)
        if only(commands, cmd.PublishBindings):
            break
        alarm = only(commands, cmd.SetTimer)[-1]
    assert driver.app.bound() == {}


def test_a_later_attempt_waits_longer_for_what_was_published():
    nodes = [accelerator("a1"), accelerator("a2")]
    nodes += [plain(f"n{i}", bound=f"a{1 + i % 2}") for i in range(4)]
    previous = [ev.ContainerRef(f"c{i}", f"a{i}", 10) for i in (1, 2)]
    driver = Driver(roles=servers_only(), attempt=2, previous=tuple(previous))
    driver.nodes(*nodes, is_complete=True)
    driver.wait(4.0)
    stall(driver, 6.0)
    driver.hear("a1", container="c1", gauges=ev.ServerGauges(8))
    driver.now_s += 4.9
    assert not only(driver.hear("a1", container="c1", gauges=ev.ServerGauges(8)), cmd.PublishBindings)
    (publication,) = only(driver.hear("a2", container="c2", gauges=ev.ServerGauges(8)), cmd.PublishBindings)
    assert dict(publication.bound) == {"n0": "a1", "n1": "a2", "n2": "a1", "n3": "a2"}


def test_people_see_it(serving):
    serving.wait(1.0)
    stall(serving, 6.0)
    notes = serving.app.snapshot(serving.now_s)["notes"]
    (note,) = [each for each in notes if each["what"] == "stood still"]
    assert (note["age_s"], note["reason"]) == (0.0, "for 6.0 s, in which nobody could be heard")
