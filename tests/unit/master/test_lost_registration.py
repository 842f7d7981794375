"""A registration that was carried out, and whose answer was lost: YARN refuses a second one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.unit.adapters.hadoop_rpc.fake_hadoop import CLOSE
from tests.unit.master.fake_yarn import RACKS_OF_TWO, FakeYarn, rig
from yarn_accel.adapters.hadoop_rpc import AlreadyRegisteredError

REGISTER = "registerApplicationMaster"


def lose_one_answer(yarn: FakeYarn) -> None:
    """The next registration is carried out, and the connection breaks before its answer is there."""
    register = yarn.rm.handlers[REGISTER]

    def lost(request: Any) -> Any:
        yarn.rm.handlers[REGISTER] = register
        register(request)
        return CLOSE

    yarn.rm.handlers[REGISTER] = lost


def test_the_first_attempt_goes_on(tmp_path: Path) -> None:
    async def run() -> None:
        async with FakeYarn(RACKS_OF_TWO) as yarn:
            lose_one_answer(yarn)
            async with rig(yarn, tmp_path) as all_:
                await all_.until("at work", lambda: all_.bound() == {"w1": "a1"})
                assert yarn.rm.methods().count(REGISTER) > 1, "the answer was not lost"

    asyncio.run(run())


def test_a_later_one_says_what_happened_and_the_next_takes_over(tmp_path: Path) -> None:
    async def run() -> None:
        async with FakeYarn(RACKS_OF_TWO) as yarn:
            async with rig(yarn, tmp_path) as all_:
                await all_.until("at work", lambda: all_.bound() == {"w1": "a1"})
            running = {number for number, run in yarn.runs.items() if not run.is_over}
            yarn.next_attempt()
            lose_one_answer(yarn)
            async with rig(yarn, tmp_path) as all_:
                await asyncio.wait([all_.work], timeout=300)
                with pytest.raises(
                    AlreadyRegisteredError, match=r"the answer to that was lost.* next attempt"
                ):
                    all_.work.result()
            yarn.next_attempt()
            async with rig(yarn, tmp_path) as all_:
                await all_.until("heard", lambda: all_.agents.answers.get("w1", {}).get("attempt") == 3)
                assert all_.agents.answers["w1"]["bound"] == ["a1"]
                assert {number for number, run in yarn.runs.items() if not run.is_over} == running

    asyncio.run(run())


def test_an_attempt_that_worked_ends_when_its_new_registration_is_lost(tmp_path: Path) -> None:
    """After a restart of the ResourceManager, the answer tells what runs, in the first attempt too."""

    async def run() -> None:
        async with FakeYarn(RACKS_OF_TWO) as yarn, rig(yarn, tmp_path) as all_:
            await all_.until("at work", lambda: all_.bound() == {"w1": "a1"})
            lose_one_answer(yarn)
            yarn.forget()
            await asyncio.wait([all_.work], timeout=300)
            with pytest.raises(AlreadyRegisteredError, match="next attempt"):
                all_.work.result()

    asyncio.run(run())
