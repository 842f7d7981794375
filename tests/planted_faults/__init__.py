"""Faults planted one by one, to see whether tests find them: ``python -m tests.planted_faults``."""
