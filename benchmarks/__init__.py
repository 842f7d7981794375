"""Measurements, run by hand: ``python -m benchmarks`` lists them. Never part of the tests."""
