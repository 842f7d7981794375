"""PyTriton: a model that returns its input, over gRPC.

PyTriton needs numpy below 2, so it lives in a virtual environment of its own: `benchmarks.pipeline.fleet`.
"""

from __future__ import annotations

import queue
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.pipeline.peers.candidate import Address, More, Route, in_turn

_MODEL, _IN, _OUT = "echo", "content", "answer"


def _free_ports(n: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(n)]
        return [each.getsockname()[1] for each in sockets]


def _answer(requests: Any) -> list[dict[str, Any]]:
    return [{_OUT: request[_IN]} for request in requests]


def serve(folder: Path) -> tuple[Address, object]:
    """Triton's server with one Python model."""
    import numpy as np
    from pytriton.model_config import ModelConfig, Tensor
    from pytriton.triton import Triton, TritonConfig

    http, grpc, metrics = _free_ports(3)
    triton = Triton(config=TritonConfig(http_port=http, grpc_port=grpc, metrics_port=metrics))
    triton.bind(
        model_name=_MODEL,
        infer_func=_answer,
        inputs=[Tensor(name=_IN, dtype=np.uint8, shape=(-1,))],
        outputs=[Tensor(name=_OUT, dtype=np.uint8, shape=(-1,))],
        config=ModelConfig(batching=False),
    )
    triton.run()
    return {"grpc": f"127.0.0.1:{grpc}"}, SimpleNamespace(close=triton.stop)


class Client:
    """A gRPC client of Triton's own; requests in flight through its callbacks.

    PyTriton keeps Triton's shared-memory protocol to itself (by an access token), so this is TCP everywhere.
    """

    carrier = "tcp"

    def __init__(self, address: Address, route: Route) -> None:
        import tritonclient.grpc as grpc

        self._grpc = grpc
        self._client = grpc.InferenceServerClient(address["grpc"])

    def echoes(self, payload: Any, more: More, window: int) -> Iterator[Any]:
        """As `EchoClient.echoes`."""
        answers: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        content = self._grpc.InferInput(_IN, [len(payload)], "UINT8")

        def send() -> None:
            content.set_data_from_numpy(payload)
            self._client.async_infer(_MODEL, [content], lambda result, error: answers.put((result, error)))

        def receive(_: object) -> Any:
            result, error = answers.get()
            if error is not None:
                raise error
            return result.as_numpy(_OUT)

        return in_turn(send, receive, more, window)

    def close(self) -> None:
        """Close the channel."""
        self._client.close()
