"""The operations that a pipeline server computes: their table, and their implementations for CPU and GPU.

Importing this package needs only the standard library; numpy, scipy and Pillow are imported when an
operation first runs. The operations are pure: arrays and parameters in, arrays and facts out.
"""

from yarn_accel.operations.models import WITH_MODELS
from yarn_accel.operations.operation import Operation, Outcome, Place, allocate
from yarn_accel.operations.registry import OPERATIONS, get, load_more

__all__ = ["OPERATIONS", "WITH_MODELS", "Operation", "Outcome", "Place", "allocate", "get", "load_more"]
