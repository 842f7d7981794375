"""Arrow Flight: one DoExchange, a record batch with one column of bytes there and back; no copy in Python."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import flight

from benchmarks.pipeline.peers.candidate import Address, More, Route, at_once, in_turn

_SCHEMA = pa.schema([("content", pa.uint8())])


class _Server(flight.FlightServerBase):  # type: ignore[misc]
    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        writer.begin(_SCHEMA)
        for chunk in reader:
            writer.write_batch(chunk.data)


def serve(folder: Path) -> tuple[Address, object]:
    """Two servers, since each has one location."""
    unix = f"grpc+unix://{folder / 'flight.sock'}"
    servers = (_Server(unix), _Server("grpc+tcp://127.0.0.1:0"))
    return {"unix": unix, "tcp": f"grpc+tcp://127.0.0.1:{servers[1].port}"}, servers


class Client:
    """A client; each run is one exchange."""

    def __init__(self, address: Address, route: Route) -> None:
        self._client = flight.connect(address["tcp" if route.carrier == "tcp" else "unix"])

    def echoes(self, payload: Any, more: More, window: int) -> Iterator[Any]:
        """As `EchoClient.echoes`."""
        column = pa.Array.from_buffers(pa.uint8(), len(payload), [None, pa.py_buffer(payload)])
        batch = pa.record_batch([column], schema=_SCHEMA)
        writer, reader = self._client.do_exchange(flight.FlightDescriptor.for_path("echo"))
        with writer:
            writer.begin(_SCHEMA)
            send, receive = partial(writer.write_batch, batch), partial(_content, reader)
            # With nothing to overlap, one thread does it all.
            yield from (
                in_turn(send, lambda _: receive(), more, 1)
                if window == 1
                else at_once(send, receive, more, window)
            )
            writer.done_writing()

    def close(self) -> None:
        """Close the client."""
        self._client.close()


def _content(reader: Any) -> Any:
    return reader.read_chunk().data.column(0).buffers()[1]
