"""One file for each verb of ``torque-sched``: it parses arguments and calls."""
