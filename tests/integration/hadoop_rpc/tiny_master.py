"""An application master in a container: registers, asks for one pinned container, runs `sleep` there, ends.

Arguments: address of the scheduler, host and rack of the wanted container, file to write the story to (JSON).
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import time
from pathlib import Path

from yarn_accel.adapters.hadoop_rpc import (
    AM_RM_KIND,
    Address,
    AlreadyRegisteredError,
    ApplicationMaster,
    ContainerId,
    NodeManager,
    ResourceManagerAddresses,
    read_token_file,
)
from yarn_accel.adapters.hadoop_rpc.methods import AllocateResponse
from yarn_accel.adapters.hadoop_rpc.records import (
    ContainerState,
    ContainerStatus,
    FinalStatus,
    LaunchContext,
    YarnContainer,
    YarnResource,
    pinned,
)

POLL_S = 0.02
DEADLINE_S = 60.0


class Story:
    """The steps and how long each took, as JSON."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.facts: dict[str, object] = {"started_ms": round(time.time() * 1000)}
        self._at_s = time.perf_counter()

    def took(self, what: str) -> None:
        now_s = time.perf_counter()
        self.facts[f"{what}_ms"] = round(1000 * (now_s - self._at_s), 2)
        self._at_s = now_s

    def write(self) -> None:
        """Before the end is announced: from then on the NodeManager may kill this process."""
        self.facts["rss_mib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)
        self._file.write_text(json.dumps(self.facts), encoding="utf-8")


class TinyMaster:
    def __init__(self, scheduler: str, story: Story) -> None:
        files = read_token_file(Path(os.environ["HADOOP_TOKEN_FILE_LOCATION"]).read_bytes())
        address = Address.parse(scheduler)
        addresses = ResourceManagerAddresses((address,), (address,), (address,))
        self.master = ApplicationMaster(addresses, files.of_kind(AM_RM_KIND))
        self.nodes = NodeManager()
        self.story = story
        self.own = ContainerId.parse(os.environ["CONTAINER_ID"])
        story.facts |= {"container": str(self.own), "secrets": {k: v.hex() for k, v in files.secrets.items()}}

    async def allocate(self, *ask: object) -> AllocateResponse:
        response = await self.master.allocate(ask)  # type: ignore[arg-type]
        self.nodes.learn(response.node_tokens)
        return response

    async def container(self, host: str, rack: str) -> YarnContainer:
        ask = pinned(host, rack, 5, YarnResource.of(256, 1), allocation_request_id=7)
        response = await self.allocate(*ask)
        while not response.allocated:
            await asyncio.sleep(POLL_S)
            response = await self.allocate()
        return response.allocated[0]

    async def completed(self) -> ContainerStatus:
        while True:
            response = await self.allocate()
            if response.completed:
                return response.completed[0]
            await asyncio.sleep(POLL_S)

    async def running(self, container: YarnContainer) -> None:
        while True:
            answer = await self.nodes.statuses(container.node, [container.id])
            if any(status.state is ContainerState.RUNNING for status in answer.statuses):
                return
            await asyncio.sleep(POLL_S)

    async def registered_again(self) -> str:
        """The answer to a second registration, as after a lost answer."""
        try:
            await self.master.register(os.environ["NM_HOST"], -1, "")
        except AlreadyRegisteredError as error:
            return str(error)
        return "taken"

    async def run(self, host: str, rack: str) -> None:
        registered = await self.master.register(os.environ["NM_HOST"], -1, "")
        self.story.took("register")
        self.story.facts["resource_types"] = sorted(each.name for each in registered.resource_types)
        self.story.facts["registered_again"] = await self.registered_again()
        self.story.took("register_again")
        await self.allocate()
        self.story.took("first_allocate")
        for _ in range(20):
            await self.allocate()
        self.story.took("twenty_allocates")
        container = await self.container(host, rack)
        self.story.took("ask_to_container")
        launch = LaunchContext.of(["exec", "sleep", "600", ">", "<LOG_DIR>/stdout"])
        started = await self.nodes.start(container.node, [(container, launch)])
        self.story.took("start")
        assert started.succeeded == (container.id,), started.failed
        await self.running(container)
        self.story.took("running")
        stopped = await self.nodes.stop(container.node, [container.id])
        self.story.took("stop")
        assert stopped.succeeded == (container.id,), stopped.failed
        status = await self.completed()
        self.story.took("completed")
        self.story.facts |= {
            "host": container.node.host,
            "allocation_request_id": container.allocation_request_id,
            "exit_status": status.exit_status,
        }
        self.story.write()
        while True:
            if await self.master.finish(FinalStatus.SUCCEEDED, "all done"):
                return
            await asyncio.sleep(POLL_S)

    async def close(self) -> None:
        await self.nodes.close()
        await self.master.close()


async def main(scheduler: str, host: str, rack: str, report: Path) -> None:
    story = Story(report)
    master = TinyMaster(scheduler, story)
    try:
        await asyncio.wait_for(master.run(host, rack), DEADLINE_S)
    except Exception as error:  # the test shows it
        story.facts["error"] = repr(error)
        story.write()
        raise
    finally:
        await master.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4])))
