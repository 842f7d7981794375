"""Torque: by its commands, and by its batch protocol."""
