"""One asker for all servers: who is asked for, how often, and what is believed of the answer."""

import asyncio
from types import SimpleNamespace

import pytest

from tests.fixtures.waiting import soon
from yarn_accel.adapters.hadoop_rpc import ApplicationGoneError
from yarn_accel.adapters.hadoop_rpc.records import ApplicationState
from yarn_accel.errors import UnavailableError
from yarn_accel.master.ended_applications import EndedApplications

ONE, TWO, THREE = (f"application_1_000{n}" for n in (1, 2, 3))


class Yarn:
    """Answers with these states, and counts."""

    def __init__(self, **states):
        self.states = {f"application_1_000{name[1:]}": state for name, state in states.items()}
        self.asked = []

    async def report(self, application):
        self.asked.append(str(application))
        state = self.states[str(application)]
        if isinstance(state, Exception):
            raise state
        return SimpleNamespace(state=state)


@pytest.mark.parametrize(
    ("state", "has_ended"),
    [
        (ApplicationState.ACCEPTED, False),
        (ApplicationState.RUNNING, False),
        (ApplicationState.FINISHED, True),
        (ApplicationState.FAILED, True),
        (ApplicationState.KILLED, True),
        (None, False),
        (UnavailableError("no ResourceManager answers"), False),
        (ApplicationGoneError("ApplicationNotFoundException", "forgotten"), True),
    ],
)
async def test_only_a_clear_answer_ends_an_application(state, has_ended):
    ended = EndedApplications(Yarn(_1=state).report)
    assert ended.noted("w1", [ONE]) == []
    await ended.look()
    assert ended.noted("w1", [ONE]) == ([ONE] if has_ended else [])


async def test_one_question_for_the_servers_of_all_nodes():
    yarn = Yarn(_1=ApplicationState.RUNNING, _2=ApplicationState.FINISHED, _3=ApplicationState.KILLED)
    ended = EndedApplications(yarn.report)
    for node in ("w1", "w2", "w3"):
        ended.noted(node, [ONE, TWO])
    ended.noted("w4", [THREE])
    await ended.look()
    assert sorted(yarn.asked) == [ONE, TWO, THREE]
    assert [ended.noted(node, [ONE, TWO]) for node in ("w1", "w2")] == [[TWO]] * 2
    assert ended.noted("w4", [THREE]) == [THREE]
    await ended.look()
    assert sorted(yarn.asked)[:2] == [ONE, ONE], "what has ended is not asked for again"
    assert len(yarn.asked) == 4


async def test_nobody_is_asked_while_no_server_has_sessions():
    yarn = Yarn(_1=ApplicationState.RUNNING)
    ended = EndedApplications(yarn.report, pause_s=0.0)
    running = asyncio.create_task(ended.run())
    try:
        for _ in range(10):
            await asyncio.sleep(0)
        assert yarn.asked == []
        ended.noted("w1", [ONE])
        await soon(lambda: len(yarn.asked) > 2)
        yarn.states[ONE] = ApplicationState.FINISHED
        await soon(lambda: ended.noted("w1", [ONE]))
        ended.noted("w1", [])
        await asyncio.sleep(0)
        n_asked = len(yarn.asked)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(yarn.asked) == n_asked
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
