"""Several sites without a global scheduler, simulated, with messages that take time or none."""
