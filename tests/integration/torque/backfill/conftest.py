"""Backfilling on the real daemon over an EMULATED Torque, by both ways of asking it."""

from tests.integration.torque.daemon.conftest import port, pytest_generate_tests, serve, torque

__all__ = ["port", "pytest_generate_tests", "serve", "torque"]
