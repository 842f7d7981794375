"""Accelerators on stock Hadoop YARN, driven from Python."""

__all__ = ["__version__"]

__version__ = "1.0.0"
