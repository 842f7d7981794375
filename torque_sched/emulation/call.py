"""One command as a client sent it, and the answer that goes back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from torque_sched.emulation.model import Refused
from torque_sched.emulation.world import World


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


DENIED = "Access from host not allowed, or unknown host"
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


def read_options(
    arguments: tuple[str, ...], letters: str, *, permute: bool = True, program: str = ""
) -> Options:
    """Read getopt-style arguments; ``letters`` as for getopt ("ab:" = -a, -b VALUE).

    With ``permute`` options may follow words, as GNU getopt allows; with ``program`` all that is wrong is
    reported in its name, else the first thing only.
    """
    values: dict[str, list[str]] = {}
    errors: list[str] = []
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
                errors.append(f"invalid option -- '{letter}'")
                if program:
                    continue
                return Options(values, tuple(words), errors[0])
            if letters[place + 1 : place + 2] == ":":
                if not cluster and not rest:
                    errors.append(f"option requires an argument -- '{letter}'")
                    return Options(values, tuple(words), f"\n{program}: ".join(errors))
                values.setdefault(letter, []).append(cluster or rest.pop(0))
                cluster = ""
            else:
                values.setdefault(letter, []).append("")
    return Options(values, tuple(words), f"\n{program}: ".join(errors))


def resolve(call: Call, path: str) -> Path:
    """A path as the client meant it."""
    return Path(call.cwd) / path


def check_listed(world: World, call: Call) -> None:
    """Whether the server hears this user at all.

    Raises:
        Refused: it has a list of users, and he is not on it.
    """
    if world.server.get("acl_user_enable") != "True" or world.is_admin(call.user):
        return
    if call.user not in [each.partition("@")[0] for each in world.server.get("acl_users", "").split(",")]:
        raise Refused(15007, "Unauthorized Request ")


def unknown_host(host: str, n_tries: int, *, is_old: bool) -> str:
    """What a client prints that finds no server of that name, as often as it tries."""
    text = f"Can not resolve name for server {host}. (rc = -1 - {'Unknown error -1' if is_old else ''})\n"
    return (text + f"Cannot resolve specified server host '{host}'.\n") * n_tries
