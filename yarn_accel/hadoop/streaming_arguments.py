"""The arguments of ``mapred streaming`` as a user writes them, with what a mapper of pipeline servers needs.

Generic options (``-D``, ``-files`` and their like) come first, as Hadoop wants them, wherever the user wrote
them; what the user says wins over what is added. `complete` touches no file but to see whether it is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from yarn_accel.errors import ConfigError

CREDENTIAL_PROPERTY = "mapreduce.job.credentials.binary"
_GENERIC = ("-D", "-files", "-archives", "-libjars", "-conf", "-fs", "-jt", "-tokenCacheFile")
_COMMANDS = ("-mapper", "-reducer", "-combiner")
_REQUIRED = ("-input", "-output", "-mapper")
#: Streaming's options without a value.
_FLAGS = ("-debug", "-verbose", "-lazyOutput", "-background", "-info", "-help")
#: Its options with a value, also the deprecated ones, besides the generic ones.
_OPTIONS = (
    *(*_COMMANDS, "-input", "-output", "-file", "-cmdenv", "-inputformat", "-outputformat", "-partitioner"),
    *("-numReduceTasks", "-inputreader", "-io", "-mapdebug", "-reducedebug", "-jobconf", "-dfs"),
    *("-cacheFile", "-cacheArchive", "-additionalconfspec"),
)


@dataclass(frozen=True, slots=True)
class StreamingAdditions:
    """What is added to a job.

    Attributes:
        python: the interpreter of the nodes, for scripts named without one.
        properties: job properties, unless the user sets them.
        files: files that travel with the job, unless one of that name does already.
        environment: variables of the tasks; those of `PYTHONPATH` stand before the user's.
    """

    python: str = "python3"
    properties: Mapping[str, str] = field(default_factory=dict)
    files: Sequence[Path] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def is_request_for_help(arguments: Sequence[str]) -> bool:
    """Whether no job is to run."""
    return any(flag in arguments for flag in ("-help", "-info"))


def job_name(arguments: Sequence[str]) -> str:
    """The name that the user gives the job; empty: none."""
    properties = dict(value.partition("=")[::2] for option, value in _split(arguments)[0] if option == "-D")
    return properties.get("mapreduce.job.name", "")


def complete(arguments: Sequence[str], additions: StreamingAdditions) -> list[str]:
    """The arguments that run the job.

    Raises:
        ConfigError: no input, output or mapper; an option without its value; or a file name that Hadoop would
            split.
    """
    generic, rest = _split(arguments)
    missing = [name for name in _REQUIRED if name not in [option for option, _ in rest]]
    if missing:
        raise ConfigError(
            f"no {missing[0]} is given",
            cure="-input IN -output OUT -mapper my_mapper.py, as in mapred streaming",
        )
    files: list[str] = [name for option, value in generic if option == "-files" for name in value.split(",")]
    shipped = {_name_of(name) for name in files}
    shipped |= {_name_of(value or "") for option, value in rest if option == "-file"}
    options: list[tuple[str, str | None]] = []
    scripts: list[Path] = []
    for option, value in rest:
        if option in _COMMANDS and value is not None:
            options.append((option, _portable(value, additions.python, scripts)))
        elif option != "-cmdenv" or (value or "").partition("=")[0] not in additions.environment:
            options.append((option, value))
    files += [_checked(path) for path in (*scripts, *additions.files) if path.name not in shipped]
    given = dict((value or "").partition("=")[::2] for option, value in rest if option == "-cmdenv")
    options += [("-cmdenv", text) for text in _environment(additions.environment, given)]
    known = {value.partition("=")[0] for option, value in generic if option == "-D"}
    first = [("-D", f"{name}={value}") for name, value in additions.properties.items() if name not in known]
    first += [(option, value) for option, value in generic if option != "-files"]
    first += [("-files", ",".join(dict.fromkeys(files)))] if files else []
    return [part for pair in (*first, *options) for part in pair if part is not None]


def _split(arguments: Sequence[str]) -> tuple[list[tuple[str, str]], list[tuple[str, str | None]]]:
    """Generic options, and all others, each with its value."""
    generic: list[tuple[str, str]] = []
    rest: list[tuple[str, str | None]] = []
    words = iter(arguments)
    before = ""
    for option in words:
        if option.startswith("-D") and "=" in option:
            generic.append(("-D", option[len("-D") :]))
        elif option in _FLAGS:
            rest.append((option, None))
        else:
            _check_option(option, before)
            value = next(words, None)
            if value is None or value in (*_OPTIONS, *_GENERIC, *_FLAGS):
                raise ConfigError(f"{option} has no value" + (f": {value} follows" if value else ""))
            if option in _GENERIC:
                generic.append((option, value))
            else:
                rest.append((option, value))
            before = f" after {option} {value}"
    return generic, rest


def _check_option(word: str, before: str) -> None:
    if word in _OPTIONS or word in _GENERIC:
        return
    if word.startswith("-"):
        known = ", ".join((*_OPTIONS, *_GENERIC, *_FLAGS))
        raise ConfigError(f"unknown option {word}{before}", cure=f"known: {known}")
    raise ConfigError(
        f"the word {word!r}{before} belongs to no option",
        cure="quote a value that has spaces, such as -mapper 'my_mapper.py --fast'; remove it otherwise",
    )


def _portable(command: str, python: str, scripts: list[Path]) -> str:
    """A command as the nodes run it: Python files of this machine by their names alone, which are noted."""
    words = command.split(" ")
    for place, word in enumerate(words):
        if word.endswith(".py") and Path(word).is_file():
            scripts.append(Path(word).absolute())
            words[place] = Path(word).name
            if not place:
                words[0] = f"{python} {words[0]}"
    return " ".join(words)


def _environment(added: Mapping[str, str], given: Mapping[str, str]) -> list[str]:
    texts = []
    for name, value in added.items():
        own = given.get(name, "")
        joined = f"{value}:{own}" if own and name == "PYTHONPATH" else own or value
        texts.append(f"{name}={joined}")
    return texts


def _name_of(name: str) -> str:
    path, _, link = name.partition("#")
    return link or Path(path).name


def _checked(path: Path) -> str:
    name = str(path)
    if "," in name or " " in name:
        raise ConfigError(f"{name!r} cannot be shipped: Hadoop splits names at commas and spaces")
    return name
