"""The policies that give tasks their places, a file each, and the table of their names."""

from yarn_accel.core.tasks.policies.registry import POLICIES, SETTINGS, make

__all__ = ["POLICIES", "SETTINGS", "make"]
