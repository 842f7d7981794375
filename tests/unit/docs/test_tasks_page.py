"""docs/tasks.md has every key of APP.yaml with its default and its meaning, and no other."""

import re
from pathlib import Path

from pydantic_core import PydanticUndefined

from yarn_accel.tasks import AppConfig
from yarn_accel.tasks.app_file import CpuProgram, DeclaredFigures, GpuProgram

PAGE = (Path(__file__).parents[3] / "docs" / "tasks.md").read_text(encoding="utf-8")
SECTIONS = {"cpu": CpuProgram, "gpu": GpuProgram, "figures": DeclaredFigures}


def default(field):
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "must be given"
    return "none" if value in (None, "", (), {}) else f"`{str(value).lower()}`"


def rows(model, prefix=""):
    """The rows of a model's keys, those of a section after the section."""
    for name, field in model.model_fields.items():
        yield f"| `{prefix}{name}` | {default(field)} | {field.description} |"
        if not prefix and name in SECTIONS:
            yield from rows(SECTIONS[name], f"{name}.")


def test_the_table_has_what_the_model_has():
    table = PAGE.partition("## Keys")[2].partition("|---|---|---|\n")[2].partition("\n\n")[0]
    assert table.splitlines() == list(rows(AppConfig)), "\n".join(rows(AppConfig))


def test_every_key_that_the_text_names_exists():
    text = PAGE.partition("- **Input.**")[2].partition("\n## ")[0]
    assert set(re.findall(r"`([a-z][a-z_]*)`", text)) <= AppConfig.model_fields.keys()
