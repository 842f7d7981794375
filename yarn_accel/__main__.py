"""``python -m yarn_accel`` is the ``yarn-accel`` command."""

from yarn_accel.cli import main

if __name__ == "__main__":
    main()
