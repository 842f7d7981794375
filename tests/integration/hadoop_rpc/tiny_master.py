"""An application master in a container: registers, asks for one pinned container, runs `sleep` there, ends.

Arguments: address of the scheduler, host and rack of the wanted container, file to write the story to (JSON).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from yarn_accel.adapters import hadoop_rpc
from yarn_accel.adapters.hadoop_rpc import records
from yarn_accel.adapters.hadoop_rpc.methods import AllocateResponse

POLL_S = 0.02
DEADLINE_S = 60.0


class Story:
    """What happened, as JSON."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.facts: dict[str, object] = {}

    def write(self) -> None:
        """Before the end is announced: from then on the NodeManager may kill this process."""
        self._file.write_text(json.dumps(self.facts), encoding="utf-8")


class TinyMaster:
    def __init__(self, scheduler: str, story: Story) -> None:
        files = hadoop_rpc.read_token_file(Path(os.environ["HADOOP_TOKEN_FILE_LOCATION"]).read_bytes())
        address = hadoop_rpc.Address.parse(scheduler)
        addresses = hadoop_rpc.ResourceManagerAddresses((address,), (address,), (address,))
        self.master = hadoop_rpc.ApplicationMaster(addresses, files.of_kind(hadoop_rpc.AM_RM_KIND))
        self.nodes = hadoop_rpc.NodeManager()
        self.story = story
        self.own = hadoop_rpc.ContainerId.parse(os.environ["CONTAINER_ID"])
        story.facts |= {"container": str(self.own), "secrets": {k: v.hex() for k, v in files.secrets.items()}}

    async def allocate(self, *ask: object) -> AllocateResponse:
        response = await self.master.allocate(ask)  # type: ignore[arg-type]
        self.nodes.learn(response.node_tokens)
        return response

    async def container(self, host: str, rack: str) -> records.YarnContainer:
        ask = records.pinned(host, rack, 5, records.YarnResource.of(256, 1), allocation_request_id=7)
        response = await self.allocate(*ask)
        while not response.allocated:
            await asyncio.sleep(POLL_S)
            response = await self.allocate()
        return response.allocated[0]

    async def completed(self) -> records.ContainerStatus:
        while True:
            response = await self.allocate()
            if response.completed:
                return response.completed[0]
            await asyncio.sleep(POLL_S)

    async def running(self, container: records.YarnContainer) -> None:
        while True:
            answer = await self.nodes.statuses(container.node, [container.id])
            if any(status.state is records.ContainerState.RUNNING for status in answer.statuses):
                return
            await asyncio.sleep(POLL_S)

    async def registered_again(self) -> str:
        """The answer to a second registration, as after a lost answer."""
        try:
            await self.master.register(os.environ["NM_HOST"], -1, "")
        except hadoop_rpc.AlreadyRegisteredError as error:
            return str(error)
        return "taken"

    async def run(self, host: str, rack: str) -> None:
        registered = await self.master.register(os.environ["NM_HOST"], -1, "")
        self.story.facts["resource_types"] = sorted(each.name for each in registered.resource_types)
        self.story.facts["registered_again"] = await self.registered_again()
        await self.allocate()
        container = await self.container(host, rack)
        launch = records.LaunchContext.of(["exec", "sleep", "600", ">", "<LOG_DIR>/stdout"])
        started = await self.nodes.start(container.node, [(container, launch)])
        assert started.succeeded == (container.id,), started.failed
        await self.running(container)
        stopped = await self.nodes.stop(container.node, [container.id])
        assert stopped.succeeded == (container.id,), stopped.failed
        status = await self.completed()
        self.story.facts |= {
            "host": container.node.host,
            "allocation_request_id": container.allocation_request_id,
            "exit_status": status.exit_status,
        }
        self.story.write()
        while True:
            if await self.master.finish(records.FinalStatus.SUCCEEDED, "all done"):
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
