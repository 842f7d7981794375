"""OpenPBS: its text outputs and its orders."""
