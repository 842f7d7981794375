"""The start of a master: what it reads and loads, and a registration whose answer is lost."""

import asyncio
import json
import subprocess
import sys

import aiohttp
import pytest

from tests.unit.adapters.hadoop_rpc.fake_hadoop import CLOSE
from tests.unit.master.fake_yarn import CONTROL, RACKS_OF_TWO, FakeYarn, config_for, environ_for, rig
from yarn_accel.adapters.hadoop_rpc import AlreadyRegisteredError
from yarn_accel.adapters.signed_http import Signer, exchange, sender_key
from yarn_accel.errors import ConfigError, StartupError
from yarn_accel.master.environment import container_environment
from yarn_accel.master.registration import RegistrationSettings, listen, read_registration_settings, register
from yarn_accel.master.service import Master

HEAVY = ("aiohttp", "pydantic", "yaml", "numpy", "yarn_accel.core.application", "yarn_accel.core.binding")


async def control(port):
    """An admin's question."""
    signer = Signer(sender_key(CONTROL, "control:test"), "control:test")
    async with aiohttp.ClientSession() as session:
        return await exchange(session, signer, "POST", f"http://127.0.0.1:{port}", "/v1/control/status", {})


def test_registering_loads_nothing_that_takes_long():
    program = f"import sys, yarn_accel.master.registration; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("is_json", [True, False], ids=["json", "yaml"])
def test_the_few_settings_are_read_from_either_form(tmp_path, is_json):
    values = {"rm_client": ["rm:8032"], "rm_scheduler": ["rm:8030", "rm2:8030"], "rm_admin": ["rm:8033"]}
    path = tmp_path / "master"
    path.write_text(json.dumps(values | {"hosts": {"rm": "10.0.0.1"}, "http_port": 7000}))
    if not is_json:
        path.write_text(
            "rm_client: ['rm:8032']\nrm_admin: ['rm:8033']\nrm_scheduler: ['rm:8030', 'rm2:8030']\n"
            "hosts: {rm: 10.0.0.1}\nhttp_port: 7000\n"
        )
    assert read_registration_settings(path) == RegistrationSettings(
        ("rm:8030", "rm2:8030"), {"rm": "10.0.0.1"}, "0.0.0.0", 7000
    )


def test_what_is_wrong_with_settings_is_said_as_ever(tmp_path):
    path = tmp_path / "master.json"
    path.write_text(json.dumps({"rm_scheduler": ["rm:no-port"], "rm_client": ["rm:1"], "rm_admin": ["rm:1"]}))
    with pytest.raises(ConfigError, match="rm_scheduler"):
        read_registration_settings(path)
    with pytest.raises(ConfigError, match="nowhere"):
        read_registration_settings(tmp_path / "nowhere")


def test_a_taken_port_is_named():
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartupError, match=f"cannot listen on 127.0.0.1:{port}"):
            listen("127.0.0.1", port)


def test_only_yarn_starts_a_master():
    with pytest.raises(StartupError, match="CONTAINER_ID is not set"):
        asyncio.run(register(RegistrationSettings(("rm:8030",)), {}))


async def test_who_calls_before_it_works_is_answered_later(tmp_path):
    async with FakeYarn(RACKS_OF_TWO) as yarn:
        config = config_for(yarn, tmp_path)
        environ = environ_for(yarn, tmp_path)
        registration = await register(
            RegistrationSettings(config.rm_scheduler, config.hosts, "127.0.0.1"), environ
        )
        try:
            assert yarn.is_registered
            assert yarn.address == (
                "127.0.0.1",
                registration.port,
                f"http://127.0.0.1:{registration.port}/",
            )
            asked = asyncio.create_task(control(registration.port))
            await asyncio.sleep(0.05)
            master = Master(config, container_environment(config, registration, environ), registration)
            await master.open()
            assert (await asked)["application"] == master.application
            await master.close()
        finally:
            registration.listener.close()
            await registration.am.close()


async def test_a_resource_manager_that_is_away_is_asked_again(tmp_path):
    async with FakeYarn(RACKS_OF_TWO) as yarn:
        await yarn.rm.vanish()
        async with rig(yarn, tmp_path) as all_:
            assert not yarn.is_registered
            await yarn.rm.listen()
            await all_.until("registered after all", lambda: yarn.is_registered)
            await all_.until("and at work", lambda: all_.bound() == {"w1": "a1"})


REGISTER = "registerApplicationMaster"


def lose_one_answer(yarn):
    """The next registration is carried out, and the connection breaks before its answer is there."""
    register = yarn.rm.handlers[REGISTER]

    def lost(request):
        yarn.rm.handlers[REGISTER] = register
        register(request)
        return CLOSE

    yarn.rm.handlers[REGISTER] = lost


async def test_the_first_attempt_goes_on(tmp_path):
    async with FakeYarn(RACKS_OF_TWO) as yarn:
        lose_one_answer(yarn)
        async with rig(yarn, tmp_path) as all_:
            await all_.until("at work", lambda: all_.bound() == {"w1": "a1"})
            assert yarn.rm.methods().count(REGISTER) > 1, "the answer was not lost"


def test_a_later_one_says_what_happened_and_the_next_takes_over(tmp_path):
    async def run():
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


async def test_an_attempt_that_worked_ends_when_its_new_registration_is_lost(tmp_path):
    """After a restart of the ResourceManager, the answer tells what runs, in the first attempt too."""

    async with FakeYarn(RACKS_OF_TWO) as yarn, rig(yarn, tmp_path) as all_:
        await all_.until("at work", lambda: all_.bound() == {"w1": "a1"})
        lose_one_answer(yarn)
        yarn.forget()
        await asyncio.wait([all_.work], timeout=300)
        with pytest.raises(AlreadyRegisteredError, match="next attempt"):
            all_.work.result()
