"""gRPC without protobuf's copy: unary calls for small payloads, a stream of 1 MiB chunks for larger ones.

Chunks are gRPC's own advice for large messages, and were faster here from 1 MiB on. The server puts a request
together before it answers, as it must before it can compute with a matrix.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from benchmarks.pipeline.peers.candidate import Address, More, Route, in_turn

_CHUNK_BYTES = 1 << 20
_UNARY_BYTES = 512 << 10
_UNLIMITED = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))
_SIZE = "n-bytes"


def serve(folder: Path) -> tuple[Address, object]:
    """One server on both carriers."""
    server = grpc.server(ThreadPoolExecutor(16), options=_UNLIMITED)
    handlers = {
        "Unary": grpc.unary_unary_rpc_method_handler(lambda request, context: request),
        "Stream": grpc.stream_stream_rpc_method_handler(_answer_stream),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Echo", handlers),))
    unix = f"unix://{folder / 'grpc.sock'}"
    server.add_insecure_port(unix)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return {"unix": unix, "tcp": f"127.0.0.1:{port}"}, server


def _answer_stream(chunks: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
    n_bytes = int(dict(context.invocation_metadata())[_SIZE])
    whole = memoryview(bytearray(n_bytes))
    n_filled = 0
    for chunk in chunks:
        whole[n_filled : n_filled + len(chunk)] = chunk
        n_filled += len(chunk)
        if n_filled == n_bytes:
            for start in range(0, n_bytes, _CHUNK_BYTES):
                yield bytes(whole[start : start + _CHUNK_BYTES])
            n_filled = 0


class Client:
    """A channel of its own."""

    def __init__(self, address: Address, route: Route) -> None:
        target = address["tcp" if route.carrier == "tcp" else "unix"]
        options = (*_UNLIMITED, ("grpc.use_local_subchannel_pool", 1))
        self._channel = grpc.insecure_channel(target, options=options)
        self._unary = self._channel.unary_unary("/Echo/Unary")
        self._stream = self._channel.stream_stream("/Echo/Stream")

    def echoes(self, payload: Any, more: More, window: int) -> Iterator[Any]:
        """As `EchoClient.echoes`; gRPC takes nothing but `bytes`, which are made beforehand."""
        content = bytes(payload)
        if len(content) > _UNARY_BYTES:
            return self._stream_echoes(content, more, window)
        if window == 1:
            return in_turn(lambda: self._unary(content), lambda answer: answer, more, 1)
        return in_turn(lambda: self._unary.future(content), lambda call: call.result(), more, window)

    def _stream_echoes(self, content: bytes, more: More, window: int) -> Iterator[memoryview]:
        parts = [content[start : start + _CHUNK_BYTES] for start in range(0, len(content), _CHUNK_BYTES)]
        slots = threading.Semaphore(window)

        def requests() -> Iterator[bytes]:
            while slots.acquire() and more():
                yield from parts

        whole = memoryview(bytearray(len(content)))
        n_filled = 0
        for chunk in self._stream(requests(), metadata=((_SIZE, str(len(content))),)):
            whole[n_filled : n_filled + len(chunk)] = chunk
            n_filled += len(chunk)
            if n_filled == len(content):
                n_filled = 0
                yield whole
                slots.release()

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()
