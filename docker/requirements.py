"""Print what pip shall install: ``requirements.py setup.cfg base``, or ``... setup.cfg EXTRA,EXTRA``."""

from __future__ import annotations

import configparser
import sys
from pathlib import Path


def requirements(settings: str, extras: str) -> list[str]:
    """Return the sorted requirements of the packages, with those of `extras` (``base``: none)."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(settings)
    texts = [parser["options"]["install_requires"]]
    texts += [parser["options.extras_require"][extra] for extra in extras.split(",") if extra != "base"]
    lines = (line.strip() for text in texts for line in text.splitlines())
    return sorted({line for line in lines if line and not line.startswith("#")})


if __name__ == "__main__":
    print("\n".join(requirements(Path(sys.argv[1]).read_text(encoding="utf-8"), sys.argv[2])))
