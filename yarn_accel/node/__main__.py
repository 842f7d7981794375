"""``python -m yarn_accel.node``: as ``yarn-accel node``, without loading the other packages (10 MiB less)."""

from yarn_accel.extras import errors_as_lines


def _main() -> None:
    """Run the command; an expected error becomes one line on stderr and its exit code."""
    with errors_as_lines("yarn-accel"):
        from yarn_accel.node.cli import group

        group(standalone_mode=True, prog_name="python -m yarn_accel.node")


if __name__ == "__main__":
    _main()
