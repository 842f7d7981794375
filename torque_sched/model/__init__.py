"""Values and rules that touch nothing: no clock, no socket, no process."""
