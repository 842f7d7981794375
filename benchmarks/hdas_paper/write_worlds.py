"""``python -m benchmarks.hdas_paper.write_worlds``: an example of WORLD.yaml for each of the paper's mixes.

A test holds the files to what this writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

from benchmarks.hdas_paper.paper import MIXES, SETS, mix_world

FOLDER = Path(__file__).parent / "worlds"


def example_worlds() -> Mapping[str, str]:
    """File name -> text, by the parameter set S2."""
    return {f"{letter}.yaml": _text(letter, mix) for letter, mix in MIXES.items()}


def _text(letter: str, mix: tuple[str, ...]) -> str:
    world = mix_world(mix, SETS["S2"], "hdas", settings={"learns": False})
    head = f"# Mix {letter} of the HDAS paper: {', '.join(mix)} on 6 nodes; parameter set S2, fitted.\n"
    return head + yaml.safe_dump(world, sort_keys=False, default_flow_style=None, width=110)


def main() -> None:
    """Write all."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in example_worlds().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
