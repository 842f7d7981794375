"""What a pipeline server computes: a table of operations and their reference implementation on the CPU.

Importing this package needs only the standard library; numpy, scipy and Pillow are imported when an
operation first runs. The operations are pure: arrays and parameters in, arrays and facts out.
"""

from yarn_accel.operations.operation import Operation, Outcome, Place, allocate
from yarn_accel.operations.registry import OPERATIONS, get, load_more

__all__ = ["OPERATIONS", "Operation", "Outcome", "Place", "allocate", "get", "load_more"]
