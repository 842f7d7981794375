"""Reads Hadoop's ``*-site.xml`` files."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from pathlib import Path

from yarn_accel.errors import ConfigError


def read_properties(path: Path) -> dict[str, str]:
    """Properties of one Hadoop XML file; no file, no properties.

    Raises:
        ConfigError: it is not Hadoop XML.
    """
    try:
        root = ElementTree.parse(path).getroot()
    except FileNotFoundError:
        return {}
    except (ElementTree.ParseError, OSError, ValueError, LookupError) as error:  # the last two: its encoding
        raise ConfigError(f"{path} cannot be read as Hadoop configuration: {error}") from error
    found = {}
    for node in root.iter("property"):
        name = (node.findtext("name") or "").strip()
        if name:
            found[name] = (node.findtext("value") or "").strip()
    return found


def read_site(conf_dir: Path) -> dict[str, str]:
    """Properties of core-, hdfs-, yarn- and mapred-site.xml together, with ``${other.key}`` expanded."""
    merged: dict[str, str] = {}
    for name in ("core", "hdfs", "yarn", "mapred"):
        merged.update(read_properties(conf_dir / f"{name}-site.xml"))
    return {name: _expand(value, merged) for name, value in merged.items()}


def _expand(value: str, properties: Mapping[str, str]) -> str:
    for _ in range(20):
        expanded = re.sub(r"\$\{([^}$\s]+)\}", lambda match: properties.get(match[1], match[0]), value)
        if expanded == value:
            break
        value = expanded
    return value
