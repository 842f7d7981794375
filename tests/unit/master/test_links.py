"""The lines to the scheduler and to NodeManagers when answers are late, lost or strange."""

import asyncio

import pytest

from tests.fixtures.waiting import soon
from yarn_accel.adapters import hadoop_rpc
from yarn_accel.adapters.hadoop_rpc import methods, records
from yarn_accel.core.application import commands as cmd
from yarn_accel.core.application import events as ev
from yarn_accel.errors import UnavailableError
from yarn_accel.master.command_executor import NodeManagerCalls
from yarn_accel.master.inventory import Inventory
from yarn_accel.master.scheduler_link import SchedulerLink, open_pause_s

ID = hadoop_rpc.ContainerId(hadoop_rpc.AttemptId(hadoop_rpc.ApplicationId(1763700000000, 1), 1), 2)
W1, W2 = hadoop_rpc.NodeId("w1", 1), hadoop_rpc.NodeId("w2", 1)


def ask(number):
    return cmd.RequestContainer(
        "server", "w1", "/r", {"memory-mb": 512, "vcores": 1, "yarn.io/gpu": 2}, 10, number
    )


class Scheduler:
    """Notes what it gets; ``trouble`` is raised by the next calls, in order."""

    def __init__(self):
        self.heard = []
        self.asked = []
        self.trouble = []

    def _next(self):
        if self.trouble and (error := self.trouble.pop(0)) is not None:
            raise error

    async def register(self, *_):
        self.heard.append(("register",))
        return methods.RegisterResponse()

    async def allocate(self, asks, releases, *_):
        self._next()
        self.asked += asks
        reported = [f"{'+' if each.n_containers else '-'}{each.allocation_request_id}" for each in asks[::3]]
        self.heard.append(("allocate", *reported, *(f"release {each.number}" for each in releases)))
        return methods.AllocateResponse()

    async def finish(self, status, *_):
        self.heard.append(("finish", status.name))
        return self.heard.count(("finish", status.name)) > 1


class NoNodes:
    def learn(self, tokens):
        pass


def play(scheduler, story):
    reported = []

    async def before_end():
        scheduler.heard.append(("restored",))

    async def run():
        link = SchedulerLink(
            scheduler,
            NoNodes(),
            Inventory(),
            reported.append,
            asyncio.get_running_loop().time,
            1,
            lambda: ("w9", 1, ""),
            before_end,
            idle_s=0.02,
            busy_s=0.01,
        )
        link.register()
        working = asyncio.create_task(link.run())
        try:
            telling = asyncio.create_task(story(link, reported))
            await asyncio.wait({working, telling}, return_when=asyncio.FIRST_COMPLETED)
            if telling.done():
                telling.result()
            telling.cancel()
            link.finish(records.FinalStatus.SUCCEEDED)
            await asyncio.wait_for(working, 60)
        finally:
            working.cancel()

    asyncio.run(run())
    return reported


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr("yarn_accel.master.scheduler_link._AWAY_PAUSE_S", 0.01)


def test_asks_made_while_the_resource_manager_is_away_come_when_it_is_back():
    """The adapter keeps the first heartbeat that fails, and no other: what came later must wait here."""
    scheduler = Scheduler()

    async def story(link, reported):
        await soon(lambda: ("allocate",) in scheduler.heard)
        scheduler.trouble = [UnavailableError("gone")] * 3
        await soon(lambda: link.figures.is_away)
        link.ask(ask(1))
        link.release(ID)
        await soon(lambda: not link.figures.is_away)
        await soon(lambda: ("allocate", "+1", "release 2") in scheduler.heard)

    play(scheduler, story)
    assert sum("+1" in each for each in scheduler.heard) == 1
    places = [(each.place, each.relax_locality) for each in scheduler.asked]
    assert places == [("w1", True), ("/r", False), ("*", False)]
    assert scheduler.asked[0].capability.other == {"yarn.io/gpu": 2}


def test_an_answer_is_asked_for_most_often_just_after_the_request():
    pauses_s = [open_pause_s(open_s, 0.2) for open_s in (0.0, 0.9, 1.1, 9.0)]
    assert pauses_s == sorted(pauses_s)
    assert (pauses_s[0], pauses_s[-1]) == (0.05, 0.2)


def test_the_end_is_reported_after_everything_is_restored_and_until_it_is_stored():
    scheduler = Scheduler()

    async def story(link, reported):
        await soon(lambda: reported)

    reported = play(scheduler, story)
    assert scheduler.heard[-3:] == [("restored",), ("finish", "SUCCEEDED"), ("finish", "SUCCEEDED")]
    assert isinstance(reported[-1], ev.Unregistered)


def test_a_request_is_taken_back_as_it_was_made_and_only_once():
    scheduler = Scheduler()

    async def story(link, reported):
        link.ask(ask(1))
        await soon(lambda: any("+1" in each for each in scheduler.heard))
        for _ in range(2):
            link.unask(cmd.CancelRequest("server", "w1", "/r", 10, 1))
        link.unask(cmd.CancelRequest("server", "w1", "/r", 10, 77))
        await soon(lambda: any("-1" in each for each in scheduler.heard))

    play(scheduler, story)
    assert sum("-1" in each for each in scheduler.heard) == 1
    assert scheduler.asked[0].capability == scheduler.asked[-1].capability


def labelled(link):
    """Have the link know that w1 is in a partition."""
    link._inventory.complete([records.NodeReport(W1, rack="/r", labels=("gpu",))])


def test_a_request_names_the_partition_of_its_node_where_hadoop_takes_it():
    scheduler = Scheduler()

    async def story(link, reported):
        labelled(link)
        link.ask(ask(1))
        await soon(lambda: scheduler.asked)

    play(scheduler, story)
    assert [(each.place, each.label) for each in scheduler.asked] == [
        ("w1", None),
        ("/r", None),
        ("*", "gpu"),
    ]


def test_a_queue_without_access_to_a_partition_gets_what_others_leave_of_it():
    scheduler = Scheduler()
    refusal = "org.apache.hadoop.yarn.exceptions.InvalidLabelResourceRequestException"

    async def story(link, reported):
        labelled(link)
        await soon(lambda: ("allocate",) in scheduler.heard)
        scheduler.trouble = [hadoop_rpc.RemoteCallError(refusal, "no access")]
        link.ask(ask(1))
        link.release(ID)
        await soon(lambda: scheduler.asked)
        link.ask(ask(2))
        await soon(lambda: len(scheduler.asked) == 6)

    play(scheduler, story)
    assert ("allocate", "+1", f"release {ID.number}") in scheduler.heard
    assert {each.label for each in scheduler.asked} == {None}


def test_a_restarted_resource_manager_is_registered_with_when_the_core_says_so():
    scheduler = Scheduler()

    async def story(link, reported):
        await soon(lambda: ("allocate",) in scheduler.heard)
        scheduler.trouble = [hadoop_rpc.NotRegisteredError("", "who?")]
        await soon(lambda: any(isinstance(each, ev.Resynced) for each in reported))
        n_heard = len(scheduler.heard)
        await asyncio.sleep(0.05)
        assert len(scheduler.heard) == n_heard, "no heartbeat before"
        link.register()
        await soon(lambda: scheduler.heard.count(("register",)) == 2)

    play(scheduler, story)


def test_an_attempt_that_is_over_ends():
    scheduler = Scheduler()
    scheduler.trouble = [None, hadoop_rpc.AttemptGoneError("", "over")]

    async def never(link, reported):
        await asyncio.sleep(60)

    with pytest.raises(hadoop_rpc.AttemptGoneError):
        play(scheduler, never)


# ---- NodeManagers


class Nodes:
    """NodeManagers that do what ``on`` says."""

    def __init__(self, **on):
        self.on = on
        self.called = []

    async def _call(self, name, node, empty):
        self.called.append(f"{name} {node.host}")
        result = self.on.get(name, empty)
        if isinstance(result, asyncio.Event):
            await result.wait()
            return empty
        if isinstance(result, Exception):
            raise result
        return result

    async def start(self, node, launches):
        return await self._call("start", node, methods.StartContainersResponse(succeeded=(ID,)))

    async def stop(self, node, ids):
        return await self._call("stop", node, methods.GetContainerStatusesResponse())

    async def statuses(self, node, ids):
        return await self._call("statuses", node, methods.GetContainerStatusesResponse())


def outcome(nodes, action):
    reported = []

    async def run():
        containers = NodeManagerCalls(nodes, reported.append, lambda: 0.0)
        action(containers)
        await soon(lambda: not containers._tasks)
        await containers.close()

    asyncio.run(run())
    return reported


def start(containers):
    containers.start(records.YarnContainer(ID, W1), records.LaunchContext())


LOST = hadoop_rpc.ConnectionLostError("w1: silent", was_sent=True)
UNSENT = hadoop_rpc.ConnectionLostError("w1: no route", was_sent=False)
STATUS = {
    "running": methods.GetContainerStatusesResponse(
        (records.ContainerStatus(ID, records.ContainerState.RUNNING),)
    ),
    "over": methods.GetContainerStatusesResponse(
        (records.ContainerStatus(ID, records.ContainerState.COMPLETE, "boom", 7),)
    ),
    "unknown": methods.GetContainerStatusesResponse(failed=(methods.ContainerException(ID),)),
}


@pytest.mark.parametrize(
    ("on", "expected"),
    [
        ({}, ["ContainerStarted"]),
        ({"start": UnavailableError("no")}, ["ContainerStartFailed"]),
        (
            {"start": methods.StartContainersResponse(failed=(methods.ContainerException(ID),))},
            ["ContainerStartFailed"],
        ),
        (
            {"start": hadoop_rpc.ConnectionLostError("no", was_sent=False), "statuses": STATUS["running"]},
            ["ContainerStartFailed"],
        ),
        ({"start": LOST, "statuses": STATUS["running"]}, ["ContainerStarted"]),
        ({"start": LOST, "statuses": STATUS["unknown"]}, ["ContainerCompleted", "ContainerStartFailed"]),
        ({"start": LOST, "statuses": UnavailableError("no")}, ["ContainerStartFailed"]),
    ],
)
def test_what_comes_of_a_start(on, expected):
    assert [type(each).__name__ for each in outcome(Nodes(**on), start)] == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (STATUS["running"], [ev.ContainerStarted(str(ID), 0.0)]),
        (STATUS["over"], [ev.ContainerCompleted(str(ID), 7, "boom", 0.0)]),
        (STATUS["unknown"], [ev.ContainerCompleted(str(ID), -100, "unknown to its NodeManager", 0.0)]),
        (UnavailableError("no"), []),
    ],
)
def test_what_comes_of_a_check(answer, expected):
    assert outcome(Nodes(statuses=answer), lambda containers: containers.check(W1, ID)) == expected


async def test_a_node_that_hangs_holds_up_its_own_calls_only():
    hang = asyncio.Event()
    nodes = Nodes(stop=hang)
    reported = []
    containers = NodeManagerCalls(nodes, reported.append, lambda: 0.0)
    containers.stop(W1, ID)
    start(containers)
    containers.check(W2, ID)
    await soon(lambda: "statuses w2" in nodes.called)
    assert "start w1" not in nodes.called
    hang.set()
    await soon(lambda: "start w1" in nodes.called)
    await containers.close()
