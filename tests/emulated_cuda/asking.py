"""Many clients of a server at a time, each answer compared with the CPU's."""

import threading

import numpy as np

from tests.unit.operations.linear import general
from yarn_accel.client.calls import Call, Tensor
from yarn_accel.client.client import Client
from yarn_accel.errors import AccelError
from yarn_accel.operations import get

N_CLIENTS = 6


def ask(server, credential, first, n_calls, order=20):
    """What clients with so many calls each got: devices, and codes of errors; results are checked."""
    devices, codes, wrong = [], [], []

    def one_client(first):
        with Client(server.endpoint, credential) as client:
            for i in range(first, first + n_calls):
                matrix = general((order + i % 3, order + i % 3), seed=i)
                expected = get("lu").run([matrix.copy(order="K")], {}).arrays["lu"]
                try:
                    reply = client.call(Call(f"k{i}", "lu", {}, (Tensor.of(matrix),)))
                except AccelError as error:
                    codes.append(error.code)
                    continue
                devices.append(reply.device)
                if not np.allclose(reply.tensors["lu"].array(), expected, atol=1e-10):
                    wrong.append(i)

    threads = [threading.Thread(target=one_client, args=(first + 1000 * i,)) for i in range(N_CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(devices) + len(codes) == N_CLIENTS * n_calls
    return set(devices), codes
