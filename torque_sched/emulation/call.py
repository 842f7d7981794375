"""One command as a client sent it, and the answer that goes back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from torque_sched.emulation.world import World

__all__ = ["Answer", "Call", "Options", "Verb", "read_options", "resolve"]


@dataclass(frozen=True, slots=True)
class Call:
    """What the client saw: its name, arguments, directory, environment, user and standard input."""

    name: str
    arguments: tuple[str, ...]
    cwd: str = "/"
    environment: dict[str, str] = field(default_factory=dict)
    user: str = "root"
    stdin: bytes | None = None
    """None until the server has asked for it."""

    def requestor(self, world: World) -> str:
        """``user@host`` as records name it."""
        return f"{self.user}@{world.settings.server}"


@dataclass(slots=True)
class Answer:
    """What the client prints and exits with."""

    out: str = ""
    err: str = ""
    code: int = 0
    wants_stdin: bool = False
    """Ask the client for its standard input and run the command again with it."""
    delay_s: float = 0.0
    """How long the client has to wait for the rest of the answer."""


Verb = Callable[[World, Call], Answer]


@dataclass(frozen=True, slots=True)
class Options:
    """Arguments taken apart: option letter -> its values, and the words left over."""

    values: dict[str, list[str]]
    words: tuple[str, ...]
    error: str = ""
    """The offending option, when there was one."""

    def has(self, letter: str) -> bool:
        """Whether the option was given."""
        return letter in self.values

    def last(self, letter: str, default: str = "") -> str:
        """The value given last."""
        return self.values.get(letter, [default])[-1]


def read_options(arguments: tuple[str, ...], letters: str, *, permute: bool = True) -> Options:
    """Read getopt-style arguments; ``letters`` as for getopt ("ab:" = -a, -b VALUE).

    With ``permute`` options may follow words, as GNU getopt allows.
    """
    values: dict[str, list[str]] = {}
    words: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--":
            words += rest
            break
        if not word.startswith("-") or word == "-":
            words.append(word)
            if not permute:
                words += rest
                break
            continue
        cluster = word[1:]
        while cluster:
            letter, cluster = cluster[0], cluster[1:]
            place = letters.find(letter)
            if place < 0 or letter == ":":
                return Options(values, tuple(words), f"invalid option -- '{letter}'")
            if letters[place + 1 : place + 2] == ":":
                if not cluster and not rest:
                    return Options(values, tuple(words), f"option requires an argument -- '{letter}'")
                values.setdefault(letter, []).append(cluster or rest.pop(0))
                cluster = ""
            else:
                values.setdefault(letter, []).append("")
    return Options(values, tuple(words))


def resolve(call: Call, path: str) -> Path:
    """A path as the client meant it."""
    return Path(call.cwd) / path
