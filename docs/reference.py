"""The pages of the site that are made from the code, and the hooks by which mkdocs builds it.

``python -m docs.reference FOLDER`` writes these pages into a folder; `make docs` makes them anew for each
site, so none is committed and none can be older than the code:

- the commands with their options, from click;
- the settings with default and meaning, from pydantic;
- the metrics, from what the daemons answer at ``/metrics``;
- the goals of the benchmark `gpu` that were met and missed, from its recorded figures.

The pages of the site are ``docs/*.md``. A file of the repository that one of them links, such as README.md,
is a page of the site, too, below ``repository/``.
"""

from __future__ import annotations

import collections
import functools
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"(\[[^\]\n]*\])\(([^)\s]+)\)")
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_MOST_DEFAULT = 60
"""Longest default that a table shows as it is."""


def github_anchor(title: str, _: str = "-") -> str:
    """The anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")


def commands_page(root: click.Command, name: str) -> str:
    """Every command of a program with its help."""
    lines = [f"# {name}", "", f"Made from the program: what `{name} COMMAND --help` prints.", ""]
    for path, command, context in commands_of(root, (name,), None):
        lines += [f"## {' '.join(path)}", "", "```text", command.get_help(context).rstrip(), "```", ""]
    return "\n".join(lines)


def commands_of(
    command: click.Command, path: tuple[str, ...], parent: click.Context | None
) -> Iterator[tuple[tuple[str, ...], click.Command, click.Context]]:
    """A command and all below it, each with its path and the context of its help."""
    context = click.Context(command, parent=parent, info_name=path[-1], max_content_width=100)
    yield path, command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None, name
            yield from commands_of(inner, (*path, name), context)


def settings_page(title: str, intro: str, parts: Mapping[str, tuple[str, type[BaseModel]]]) -> str:
    """Every key of settings files with its default and meaning.

    Args:
        parts: heading -> where these keys stand, and their model.
    """
    lines = [f"# {title}", "", intro, ""]
    for heading, (place, model) in parts.items():
        lines += [f"## {heading}", "", place, "", "| key | default | meaning |", "|---|---|---|"]
        for key, field in fields_of(model):
            default = _default(field.get_default(call_default_factory=True))
            lines.append(f"| `{key}` | {default} | {_cell(field.description or '')} |")
        lines.append("")
    return "\n".join(lines)


def _reload_section(at_once: Iterable[str], model: type[BaseModel]) -> str:
    """Which keys count after a reload, and which after a restart."""
    now, later = (
        ", ".join(f"`{name}`" for name in sorted(names))
        for names in (set(at_once), set(model.model_fields) - set(at_once))
    )
    return (
        "\n## Reload and restart\n\n"
        f"After `systemctl reload torque-sched`, from the next cycle on: {now}.\n\n"
        f"After a restart: {later}.\n"
    )


def fields_of(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every key of a settings model, ``section.key`` for one in a section, with its field."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from fields_of(inner, f"{prefix}{name}.")
        else:
            yield prefix + name, field


def _default(value: Any) -> str:
    if value is PydanticUndefined:
        return "must be given"
    if value in (None, "", (), {}, []):
        return "none"
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", exclude_unset=True)
    text = json.dumps(value, default=lambda each: getattr(each, "model_dump", lambda: str(each))())
    return f"`{_cell(text)}`" if len(text) <= _MOST_DEFAULT else "see `check-config`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def metrics_page() -> str:
    """Every metric with its kind and meaning."""
    lines = [
        "# Metrics",
        "",
        "Made from the code. Each program answers at `/metrics` in Prometheus' format.",
        "",
    ]
    for heading, families in metric_families().items():
        lines += [f"## {heading}", "", "| name | kind | meaning |", "|---|---|---|"]
        for family in families:
            name = family.name + ("_total" if family.type == "counter" else "")
            lines.append(f"| `{name}` | {family.type} | {_cell(family.documentation)} |")
        lines.append("")
    return "\n".join(lines)


def metric_families() -> dict[str, Iterable[Any]]:
    """The metrics of each program, without values."""
    from torque_sched.adapters import metrics as scheduler
    from torque_sched.grid.site import reporting
    from yarn_accel.master import metrics as master
    from yarn_accel.master.tasks import views as tasks
    from yarn_accel.node import agent_metrics as agent
    from yarn_accel.pipeline import http as server

    state: dict[str, Any] = {"about": {}, "policy": "", "version": 0, "nodes": {}, "servers": {}}
    none: dict[str, Any] = {"apps": {}, "workers": {}, "workers_wanted": 0, "problems": (), "attempts": ()}
    none["used"] = collections.defaultdict(int, user="")
    site = reporting.SiteFigures(peers=(), requests=(), blocks=0, grants=0, jobs=0)
    return {
        "Pipeline server": server.families({}),
        "ApplicationMaster": master.families(state),
        "Task service": tasks.families(none),
        "Agent of a node": agent.families({}),
        "torque-sched": scheduler._collector(scheduler.Figures()).collect(),
        "torque-sched site": reporting._collector(lambda: site).collect(),
    }


def settings_models() -> dict[str, dict[str, tuple[str, type[BaseModel]]]]:
    """The settings of each distribution's package: heading -> where these keys stand, and their model."""
    from torque_sched.daemon.config import Config
    from torque_sched.grid.site.config import SiteConfig
    from yarn_accel.launch.config import LaunchConfig
    from yarn_accel.master.config import MasterConfig
    from yarn_accel.master.tasks.settings import TaskSettings
    from yarn_accel.node.config import AgentConfig
    from yarn_accel.pipeline.config import PipelineConfig

    yarn: dict[str, tuple[str, type[BaseModel]]] = {
        "accel.yaml": ("The file of `yarn-accel start --config`.", LaunchConfig),
        "The pipeline server": ("The section `pipeline` of accel.yaml; a server's own file.", PipelineConfig),
        "The ApplicationMaster": ("`master: {settings: ...}` of accel.yaml.", MasterConfig),
        "The agent": (
            "`agent: {settings: ...}`; the file of `yarn-accel node agent`.",
            AgentConfig,
        ),
        "The task service": ("The section `tasks` of accel.yaml.", TaskSettings),
    }
    torque: dict[str, tuple[str, type[BaseModel]]] = {
        "torque_sched.yaml": ("In `sched_priv` of the PBS home.", Config),
        "site.yaml": ("In `sched_priv`, of `torque-sched site`.", SiteConfig),
    }
    return {"yarn-accel": yarn, "torque-sched": torque}


def pages() -> dict[str, Callable[[], str]]:
    """The pages that are made from the code: name -> what makes it."""
    from benchmarks.tables import gpu_goals_page
    from torque_sched import cli as torque_cli
    from torque_sched.daemon.config import Config
    from torque_sched.daemon.startup import AT_ONCE
    from yarn_accel import cli as yarn_cli

    yarn, torque = settings_models().values()
    intro = (
        "Made from the code. `check-config` prints the values in force, and refuses a key that is not here."
    )
    return {
        "reference-yarn-accel.md": lambda: commands_page(yarn_cli.root, "yarn-accel"),
        "reference-torque-sched.md": lambda: commands_page(torque_cli.main, "torque-sched"),
        "reference-settings-yarn.md": lambda: settings_page("Settings of yarn-accel", intro, yarn),
        "reference-settings-torque.md": lambda: (
            settings_page("Settings of torque-sched", intro, torque) + _reload_section(AT_ONCE, Config)
        ),
        "reference-metrics.md": metrics_page,
        "benchmarks-gpu-goals.md": gpu_goals_page,
    }


def on_config(config: Any) -> Any:
    """Give headings the anchors that GitHub gives them, so that a link holds in both places."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = github_anchor
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages made from the code, and the files of the repository that pages link."""
    from mkdocs.structure.files import File

    for name, page in pages().items():
        files.append(File.generated(config, name, content=page()))
    for path in _linked_files():
        name = f"repository/{path.relative_to(ROOT)}"
        files.append(File.generated(config, name, content=path.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links to files of the repository lead to their copies in the site."""
    return _relinked(markdown, Path(page.file.src_uri))


@functools.cache
def _linked_files() -> tuple[Path, ...]:
    """Files outside of docs/ that pages link, those that these link, and so on."""
    found: dict[Path, None] = {}
    waiting = sorted((ROOT / "docs").glob("*.md"))
    while waiting:
        page = waiting.pop()
        for target in _targets(page):
            if target.is_file() and not _is_page(target) and target not in found:
                found[target] = None
                waiting += [target] if target.suffix == ".md" else []
    return tuple(found)


def _targets(page: Path) -> Iterator[Path]:
    for _, target in _LINK.findall(_FENCED.sub("", page.read_text(encoding="utf-8"))):
        if "://" not in target and not target.startswith("#"):
            yield _resolved(page.parent, target)


def _resolved(folder: Path, target: str) -> Path:
    place = Path(os.path.normpath(folder / target.partition("#")[0]))
    return place / "README.md" if (place / "README.md").is_file() else place


def _is_page(path: Path) -> bool:
    return ROOT / "docs" in path.parents


def _relinked(markdown: str, page: Path) -> str:
    """The text of a page of the site with its links turned from the repository's layout to the site's."""
    is_copy = page.parts[0] == "repository"
    folder = ROOT / page.relative_to("repository").parent if is_copy else ROOT / "docs" / page.parent

    def link(match: re.Match[str]) -> str:
        text, target = match.groups()
        place, _, anchor = target.partition("#")
        if "://" in target or not place:
            return match[0]
        path = _resolved(folder, target)
        if not path.is_file() or (not _is_page(path) and path not in _linked_files()):
            return text.strip("[]")
        is_page = _is_page(path)
        in_site = path.relative_to(ROOT / "docs") if is_page else "repository" / path.relative_to(ROOT)
        return f"{text}({os.path.relpath(in_site, page.parent)}{'#' if anchor else ''}{anchor})"

    parts, end = [], 0
    for fence in _FENCED.finditer(markdown):
        parts += [_LINK.sub(link, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(link, markdown[end:])])


def main() -> None:
    """Write the pages made from the code into the folder that is named."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m docs.reference FOLDER")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in pages().items():
        (folder / name).write_text(page(), encoding="utf-8")
        print(folder / name)


if __name__ == "__main__":
    main()
