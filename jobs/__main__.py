"""``python -m jobs``."""

from yarn_accel.extras import errors_as_lines

if __name__ == "__main__":
    with errors_as_lines("jobs"):
        from jobs.cli import root

        root(prog_name="python -m jobs")
