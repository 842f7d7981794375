"""How a worker and its master exchange reports and orders: a protocol, and that over signed HTTP.

The master holds its reply until it has an order that the report does not name, at most a second. A worker
that has news meanwhile begins another exchange; then the master replies to the first one at once. So both
connections stay, and news costs no new one. What is lost, is sent again.
"""

from __future__ import annotations

from typing import Any, Protocol

from yarn_accel.core.tasks.worker_messages import WorkerOrder, WorkerReport, parse_order, report_document
from yarn_accel.node.master_client import MasterConnection

REPORT_PATH = "/v1/worker"


class MasterLink(Protocol):
    """Two exchanges at once at most, begun one after the other; each may be cancelled."""

    async def exchange(self, report: WorkerReport) -> WorkerOrder:
        """Send a report, and return the order that is the reply.

        Raises:
            RemoteProtocolError: the reply is no order.
            AccelError: there is none; another try may work.
        """
        ...


class HttpMasterLink:
    """Signed requests to the master, wherever it is."""

    def __init__(self, connection: MasterConnection) -> None:
        self._connection = connection

    async def exchange(self, report: WorkerReport) -> WorkerOrder:
        """See `MasterLink`."""

        def parse(document: Any, _: str) -> WorkerOrder:
            return parse_order(document)

        return await self._connection.post(REPORT_PATH, report_document(report), parse)
