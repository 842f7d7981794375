"""``python -m torque_sched`` is the ``torque-sched`` command."""

from torque_sched.cli import main

if __name__ == "__main__":
    main()
