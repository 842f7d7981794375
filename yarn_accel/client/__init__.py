"""The client of pipeline servers, for mappers and anything else: standard library only, Python 3.8.

::

    from yarn_accel.client import connect

    with connect() as accel:
        print(accel.lu([[4.0, 3.0], [6.0, 3.0]]).piv)

What is listed here is public and stays; docs/mapper.md and the pages that it names show it. Names are loaded
when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from yarn_accel.client.accelerator import Accelerator, is_bad_record
    from yarn_accel.client.asynchronous import AsyncAccelerator, connect_async
    from yarn_accel.client.binding import Binding, Endpoint, format_binding, parse_binding
    from yarn_accel.client.calls import Call, Reference, Reply, Tensor
    from yarn_accel.client.current_attempt import CurrentAttempt
    from yarn_accel.client.late_binding import DeviceClaim, claim_device
    from yarn_accel.client.local_server import LocalServer
    from yarn_accel.client.operation_calls import (
        LU,
        QR,
        SVD,
        ChainResult,
        CholeskyFactor,
        Clusters,
        Determinant,
        EigenDecomposition,
        ImageFeatures,
        Inference,
        Inverse,
        MatrixProduct,
        Neighbours,
        PackedQR,
        ResidualCheck,
        SeparateLU,
        Solution,
        step,
    )
    from yarn_accel.client.reporter import COUNTER_GROUP, Reporter
    from yarn_accel.client.runners import connect
    from yarn_accel.client.sequence_file import SequenceFileReader, SequenceFileWriter
    from yarn_accel.client.task_files import TaskFiles
    from yarn_accel.client.typed_bytes import (
        TypedBytesReader,
        TypedValue,
        encode_typed,
        encode_typed_pair,
        write_typed_pairs,
    )
    from yarn_accel.errors import (
        AccelError,
        AuthenticationError,
        ConfigError,
        RejectedError,
        StartupError,
        StorageError,
        UnavailableError,
    )
    from yarn_accel.wire import TensorSpec

__all__ = [
    "COUNTER_GROUP",
    "LU",
    "QR",
    "SVD",
    "AccelError",
    "Accelerator",
    "AsyncAccelerator",
    "AuthenticationError",
    "Binding",
    "Call",
    "ChainResult",
    "CholeskyFactor",
    "Clusters",
    "ConfigError",
    "CurrentAttempt",
    "Determinant",
    "DeviceClaim",
    "EigenDecomposition",
    "Endpoint",
    "ImageFeatures",
    "Inference",
    "Inverse",
    "LocalServer",
    "MatrixProduct",
    "Neighbours",
    "PackedQR",
    "Reference",
    "RejectedError",
    "Reply",
    "Reporter",
    "ResidualCheck",
    "SeparateLU",
    "SequenceFileReader",
    "SequenceFileWriter",
    "Solution",
    "StartupError",
    "StorageError",
    "TaskFiles",
    "Tensor",
    "TensorSpec",
    "TypedBytesReader",
    "TypedValue",
    "UnavailableError",
    "claim_device",
    "connect",
    "connect_async",
    "encode_typed",
    "encode_typed_pair",
    "format_binding",
    "is_bad_record",
    "parse_binding",
    "step",
    "write_typed_pairs",
]

_MODULES = {
    "yarn_accel.client.accelerator": ("Accelerator", "is_bad_record"),
    "yarn_accel.client.asynchronous": ("AsyncAccelerator", "connect_async"),
    "yarn_accel.client.binding": ("Binding", "Endpoint", "format_binding", "parse_binding"),
    "yarn_accel.client.calls": ("Call", "Reference", "Reply", "Tensor"),
    "yarn_accel.client.current_attempt": ("CurrentAttempt",),
    "yarn_accel.client.late_binding": ("DeviceClaim", "claim_device"),
    "yarn_accel.client.local_server": ("LocalServer",),
    "yarn_accel.client.reporter": ("COUNTER_GROUP", "Reporter"),
    "yarn_accel.client.runners": ("connect",),
    "yarn_accel.client.sequence_file": ("SequenceFileReader", "SequenceFileWriter"),
    "yarn_accel.client.task_files": ("TaskFiles",),
    "yarn_accel.client.typed_bytes": (
        "TypedBytesReader",
        "TypedValue",
        "encode_typed",
        "encode_typed_pair",
        "write_typed_pairs",
    ),
    "yarn_accel.wire.messages": ("TensorSpec",),
    "yarn_accel.errors": tuple(name for name in __all__ if name.endswith("Error")),
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError("module {!r} has no attribute {!r}".format(__name__, name))
    module = importlib.import_module(_PLACES.get(name, "yarn_accel.client.operation_calls"))
    value = globals()[name] = getattr(module, name)
    return value
