"""``python -m jobs``."""

from jobs.cli import main

if __name__ == "__main__":
    main()
