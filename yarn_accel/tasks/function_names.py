"""What a function is called where only its module can be imported."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

from yarn_accel.errors import ConfigError

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*\Z", re.ASCII)


def function_name(function: Callable[..., Any] | str) -> str:
    """A function as MODULE:NAME, by which a worker finds it.

    >>> from posixpath import join
    >>> function_name(join), function_name("mypackage.steps:clean")
    ('posixpath:join', 'mypackage.steps:clean')

    Raises:
        ConfigError: nobody else could import it: a lambda, a function within another one, a method, one of
            the program itself; says what to do.
    """
    if isinstance(function, str):
        if not _NAME.match(function):
            raise ConfigError(f"function {function[:200]!r}: expected MODULE:NAME")
        return function
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not name:
        raise ConfigError(
            f"{type(function).__name__} {str(function)[:100]}: is no function of a module",
            cure="write a function with `def` in a module, and give what differs as arguments",
        )
    if "<lambda>" in name or "<locals>" in name or "." in name:
        what = "a lambda" if "<lambda>" in name else "a method" if "<locals>" not in name else "a closure"
        raise ConfigError(
            f"{module}:{name} is {what}, which nobody can import",
            cure="write a function at the top of a module, and give what differs as arguments",
        )
    if module == "__main__":
        raise ConfigError(
            f"{name} is a function of the program itself, which workers do not have",
            cure="move it to a module of a package, and name that package in `packages`",
        )
    if getattr(sys.modules.get(module), name, None) is not function:
        raise ConfigError(
            f"{module}:{name} is another object than this function",
            cure="give the name under which the module has it, as text: MODULE:NAME",
        )
    return f"{module}:{name}"
