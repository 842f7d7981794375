"""The demo: a real cluster on this machine, real input, both jobs, checks and a report."""
