"""HTML and SVG in which nothing is forgotten to be escaped: text becomes markup only through `element`.

::

    element("p", "1 < 2", class_="note")        <p class="note">1 &lt; 2</p>

Characters that cannot be seen (control characters, marks that turn the direction of writing, halves of
surrogate pairs) are shown as U+FFFD: a node's agent must not be able to make a page lie.
"""

from __future__ import annotations

import html
from collections.abc import Iterable

_VOID = frozenset(("meta",))


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | float | None | Iterable["Child"]


def text(value: object) -> Markup:
    """Any value as escaped text."""
    words = str(value)
    if not words.isprintable():
        words = "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in words)
    return Markup(html.escape(words))


def raw(trusted: str) -> Markup:
    """Our own text as it is, for what is inside <style> and <script>."""
    return Markup(trusted)


def element(tag: str, /, *children: Child, **attributes: object) -> Markup:
    """One element.

    Args:
        children: `Markup` as it is, all else as escaped text; None is left out, lists are taken apart.
        attributes: None and False are left out, True stands alone; ``class_`` is ``class``, and another
            ``_`` in a name is ``-``.
    """
    words = [tag, *(_attribute(key, value) for key, value in attributes.items() if _is_given(value))]
    opening = f"<{' '.join(words)}>"
    return Markup(opening if tag in _VOID else f"{opening}{_joined(children)}</{tag}>")


def document(*children: Child) -> str:
    """A whole page: what is inside <html>."""
    return f"<!DOCTYPE html>\n{element('html', *children, lang='en')}\n"


def _is_given(value: object) -> bool:
    return value is not None and value is not False


def _attribute(key: str, value: object) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return name
    return f'{name}="{text(_short(value) if isinstance(value, float) else value)}"'


def _joined(children: Iterable[Child]) -> str:
    parts: list[str] = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, Markup):
            parts.append(child)
        elif isinstance(child, float):
            parts.append(_short(child))
        elif isinstance(child, str | int):
            parts.append(text(child))
        else:
            parts.append(_joined(child))
    return "".join(parts)


def _short(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")
