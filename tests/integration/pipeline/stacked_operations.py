"""An operation that takes stacks and that no client knows; only a server's own process may import this."""

from yarn_accel.operations.operation import Operation, Outcome, allocate

#: What goes into the configuration.
PATH = "tests.integration.pipeline.stacked_operations:OPERATION"


def _run(arrays, params, place=allocate):
    sums = place("sums", arrays[0].shape[:-1], "<f8", "C")
    arrays[0].sum(axis=-1, out=sums)
    return Outcome({"sums": sums}, {"axes": arrays[0].ndim})


OPERATION = Operation(
    "sums-of-a-site", "", 1, lambda specs, params: None, _run, lambda specs, params: 0, takes_stacks=True
)
