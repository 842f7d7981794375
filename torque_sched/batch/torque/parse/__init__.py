"""Text to model and back, for everything Torque's commands print; no file, no process is touched here."""
