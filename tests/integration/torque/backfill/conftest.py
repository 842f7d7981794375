"""The daemon's fixtures: a daemon of ours beside an emulated Torque, both as processes."""

from tests.integration.torque.daemon.conftest import port, serve, torque

__all__ = ["port", "serve", "torque"]
