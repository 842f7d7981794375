"""The same play through Hadoop's own client; prints JSON.

Arguments: addresses and names of hosts (JSON), then the class path.
"""

from __future__ import annotations

import asyncio
import getpass
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from yarn_accel.adapters.hadoop_rpc import (
    Address,
    ApplicationGoneError,
    ApplicationId,
    ApplicationSubmission,
    ConnectionLostError,
    NativeApplicationMaster,
    NativeNodeManager,
    NativeResourceManager,
    NotRegisteredError,
    ResourceManagerAddresses,
    RpcSettings,
    User,
)
from yarn_accel.adapters.hadoop_rpc.jpype_backend import JpypeConnection, start_jvm
from yarn_accel.adapters.hadoop_rpc.records import FinalStatus, LaunchContext, YarnResource, pinned

SMALL = YarnResource.of(256, 1)
DEADLINE_S = 60.0


async def until(ask: Callable[[], Awaitable[Any]], is_good: Callable[[Any], object]) -> Any:
    deadline_s = time.monotonic() + DEADLINE_S
    while True:
        answer = await ask()
        if is_good(answer) or time.monotonic() > deadline_s:
            return answer
        await asyncio.sleep(0.05)


async def refused(what: Awaitable[object]) -> str:
    try:
        await what
    except (ApplicationGoneError, NotRegisteredError, ConnectionLostError) as error:
        return type(error).__name__
    return "nothing"


async def play(addresses: ResourceManagerAddresses, settings: RpcSettings) -> dict[str, object]:
    connect = JpypeConnection.open
    rm = NativeResourceManager(addresses, User(getpass.getuser()), settings, connect=connect)
    application = (await rm.new_application()).application
    unknown = await refused(rm.report(ApplicationId(application.cluster_timestamp, 9999)))
    target = (await rm.nodes())[0]
    assert target.capability is not None
    await rm.update_node_resource(target.node, target.capability)
    submission = ApplicationSubmission(
        application, "jpype", launch=LaunchContext(), resource=SMALL, is_unmanaged=True
    )
    await rm.submit(submission)
    report = await until(lambda: rm.report(application), lambda found: found.am_rm_token)
    master = NativeApplicationMaster(addresses, report.am_rm_token, settings, connect=connect)
    early = await refused(master.allocate())
    await master.register("test", -1, "")
    response = await master.allocate(pinned(target.node.host, target.rack, 1, SMALL))
    if not response.allocated:
        response = await until(master.allocate, lambda found: found.allocated)
    container = response.allocated[0]
    nodes = NativeNodeManager(settings, connect=connect)
    nodes.learn(response.node_tokens)
    launch = LaunchContext.of(["exec", "sleep", "100"])
    started = await nodes.start(container.node, [(container, launch)])
    await nodes.stop(container.node, [container.id])
    completed = (await until(master.allocate, lambda found: found.completed)).completed
    is_finished = await until(lambda: master.finish(FinalStatus.SUCCEEDED), bool)
    for client in (nodes, master, rm):
        await client.close()
    return {
        "unknown": unknown,
        "early": early,
        "started": [str(each) for each in started.succeeded],
        "container": str(container.id),
        "exit_status": completed[0].exit_status,
        "is_finished": is_finished,
    }


def main(where: str, *class_path: str) -> None:
    facts = json.loads(where)
    addresses = ResourceManagerAddresses(
        *((Address.parse(facts[service]),) for service in ("client", "scheduler", "admin"))
    )
    start_jvm([Path(each) for each in class_path])
    story = asyncio.run(play(addresses, RpcSettings(hosts=facts["hosts"])))
    sys.stdout.write(json.dumps(story))


if __name__ == "__main__":
    main(*sys.argv[1:])
