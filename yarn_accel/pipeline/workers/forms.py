"""Which function computes an operation on this worker's kind of device, loaded once per process."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from yarn_accel.operations import registry
from yarn_accel.operations.library import scipy_version
from yarn_accel.pipeline.workers.execution import Template
from yarn_accel.wire.tensors import TensorSpec


class Forms:
    """The operations for one kind of device."""

    def __init__(self, device_kind: str) -> None:
        self.device_kind = device_kind

    def template(self, name: str, params: dict[str, Any], specs: Sequence[TensorSpec]) -> Template:
        """What runs jobs of that kind; where it cannot be loaded, something that says so for each job."""
        try:
            operation = registry.get(name)
            run, run_batch = operation.form(self.device_kind), operation.batch_form(self.device_kind)
            facts = {} if run is not None else {"computed_on": "cpu"}
            run = run or operation.form("cpu") or operation.run
            computed = operation.computed_specs(specs, params)
        except Exception as error:  # noqa: BLE001 -- the job must fail, not the worker
            return Template.make(name, params, specs, _failing(error), None, False)
        template = Template.make(name, params, specs, run, run_batch, operation.overwrites)
        template.facts = facts
        if computed != tuple(specs):
            template.computed = computed
        return template


def prepare(extra_operations: Sequence[str]) -> None:
    """Load all operations, the site's own too, so that the first job finds everything imported.

    An operation that cannot be loaded fails when it is asked for and does not keep the worker from others.
    """
    registry.load_more(extra_operations)
    for operation in registry.OPERATIONS.values():
        try:
            operation.form("cpu")
            operation.batch_form("cpu")
        except Exception:  # noqa: BLE001 -- it is said to whoever asks for the operation
            continue


def versions() -> dict[str, str]:
    """What the speed of this worker depends on, besides the machine."""
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy_version,
        "blas": f"{blas.get('name', '')} {blas.get('version', '')}",
    }


def _failing(error: Exception) -> Callable[..., Any]:
    def run(*_: Any) -> Any:
        raise error

    return run
