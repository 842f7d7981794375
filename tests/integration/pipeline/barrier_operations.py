"""Operations a test can hold, for ``extra_operations``; files carry the word to the worker processes.

``wait`` notes that it began in the folder its parameters name, and computes once the barrier there is opened.
"""

import time
from pathlib import Path

from yarn_accel.operations.operation import Operation, Outcome, allocate

#: What goes into the configuration.
PATH = "tests.integration.pipeline.barrier_operations:OPERATIONS"
_PATIENCE_S = 120.0


def _wait(arrays, params, place=allocate):
    folder = Path(params["folder"])
    with (folder / "started").open("ab") as file:
        file.write(b".")
        n_started = file.tell()
    until_s = time.monotonic() + _PATIENCE_S
    while not (folder / "opened").exists():
        assert time.monotonic() < until_s, "the barrier was never opened"
        time.sleep(0.002)
    return Outcome({f"a{index}": array for index, array in enumerate(arrays)}, {"n": n_started})


OPERATIONS = [Operation("wait", "", None, lambda specs, params: None, _wait, lambda specs, params: 0)]
