"""Late binding: mappers that run already ask their node's agent, at the last moment, "CPU or GPU?"."""

from yarn_accel.core.tasks.late_binding.machine import LateBinder

__all__ = ["LateBinder"]
