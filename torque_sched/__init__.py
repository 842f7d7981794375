"""A drop-in replacement for Torque's ``pbs_sched`` that learns from the job history."""

__all__ = ["__version__"]

__version__ = "1.0.0"
