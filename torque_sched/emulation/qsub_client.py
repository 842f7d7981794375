"""What the qsub client does before it asks the server: options, the script's directives, and its refusals.

As read in the clients of 6.1.3 and 4.2.10 and seen on both: what the command line says wins over the script,
letter by letter; only ``-l`` and ``-W`` add up. Nobody here has a terminal, so ``-I`` is always refused.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field

from torque_sched.emulation.call import Call, Options, read_options, resolve
from torque_sched.emulation.checks import Misused, check_options, is_host_list
from torque_sched.emulation.depend import read_depends

_LETTERS = "a:A:b:c:C:d:D:e:EfF:hi:Ij:J:k:K:l:L:m:M:nN:o:p:P:q:r:S:t:T:u:v:Vw:W:Xxz-:"
_OLD_LETTERS = _LETTERS.replace("i:", "").replace("K:", "").replace("L:", "")
_NO_TERMINAL = "qsub:\tstandard input and output must be a terminal for\n\tinteractive job submission\n"
_STAGED = re.compile(r"[^@]+@[^:]+:.+")
_OCTAL_DIGITS = 3
_LEAST_RADIX = 2


class Stopped(Exception):
    """The client ends by itself, without its usage."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.text = text
        self.code = code


class NeedsInput(Exception):
    """The script comes from standard input, which was not sent yet."""


@dataclass(slots=True)
class Submission:
    """What the client is about to send."""

    options: Options
    extras: dict[str, str]
    """Of ``-W``."""
    script: str
    """The script file as named, empty for standard input."""
    text: str
    warning: str = field(default="")


def read_submission(call: Call, now_s: float, *, is_old: bool) -> Submission:
    """Read a command line and its script.

    Raises:
        Misused, Stopped: the client refuses it.
        NeedsInput: ask for standard input first.
    """
    own = _read(call.arguments, now_s, is_old)
    if len(own.words) > 1:
        raise Misused("", "index issues")
    script = own.words[0] if own.words else ""
    _check_interactive(own, script)
    text = _script_text(call, script, own)
    found = _read(_directives(own, text), now_s, is_old)
    values = {**found.values, **own.values}
    for letter in "lW":
        if letter in values:
            values[letter] = found.values.get(letter, []) + own.values.get(letter, [])
    options = Options(values, own.words)
    extras = {**_read_extras(found, is_old), **_read_extras(own, is_old)}
    _check_interactive(options, script)
    # A folder named from the root may be on another machine than this server.
    place = options.last("d", "/")
    if not place.startswith("/") and not resolve(call, place).is_dir():
        what = f"cannot chdir to '{options.last('d')}' errno: 2 (No such file or directory)"
        raise Misused("qsub", what if is_old else "illegal -d value")
    if options.has("I") or "interactive" in extras:
        if options.has("t"):
            raise Stopped("qsub: interactive job can not be job array.\n", 2)
        raise Stopped(_NO_TERMINAL, 1)
    _check_destination(options.last("q"))
    empty = any(not each.strip() for each in values.get("W", []))
    return Submission(options, extras, script, text, "qsub: illegal -W value\n" if empty else "")


def _read(arguments: tuple[str, ...], now_s: float, is_old: bool) -> Options:
    options = read_options(arguments, _OLD_LETTERS if is_old else _LETTERS)
    if "--" in arguments:
        # Seen on real servers: a script behind `--` is not read.
        options = Options(options.values, (), options.error)
    if options.has("-"):
        raise Misused("", "a single - is not a valid option")
    if options.error:
        raise Misused("", "exiting", before=f"qsub: {options.error}\n")
    check_options("qsub", options, now_s, is_old=is_old)
    _read_extras(options, is_old)
    return options


def _check_interactive(options: Options, script: str) -> None:
    if options.has("X"):
        raise Misused("qsub", "DISPLAY not set")
    if options.has("x") and not options.has("I"):
        raise Misused("qsub", "'-x' invalid on non-interactive job")
    if options.has("x") and not script:
        raise Misused("qsub", "'-x' used without a script specified")


def _check_destination(name: str) -> None:
    if name.endswith("@"):
        raise Stopped(f"qsub: illegally formed destination: {name}\n", 2)


def _script_text(call: Call, script: str, own: Options) -> str:
    if script:
        path = resolve(call, script)
        if path.is_dir():
            raise Stopped("qsub: script not a file\n", 1)
        try:
            return path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            text = f"qsub: script file '{script}' cannot be loaded - {error.strerror}\n"
            raise Stopped(text, 1) from error
    if own.has("I"):
        return ""
    if call.stdin is None:
        raise NeedsInput
    return call.stdin.decode("utf-8", "replace")


def _directives(own: Options, text: str) -> tuple[str, ...]:
    """Words of the directive lines before the first line that a shell would run."""
    prefix = own.last("C", "#PBS")
    words: list[str] = []
    for line in text.splitlines():
        if prefix and line.lstrip().startswith(prefix):
            words += shlex.split(line.lstrip()[len(prefix) :], comments=True)
        elif line.strip() and not line.startswith(":") and not line.lstrip().startswith("#"):
            break
    # A word that is no option is passed over, and so is all behind it on the line.
    return tuple(words) if words[:1] and words[0].startswith("-") else ()


def _read_extras(options: Options, is_old: bool) -> dict[str, str]:
    """``-W``: one ``name=value`` each; anything else is for the scheduler, as ``x``.

    Raises:
        Misused: a value that the client knows to be none.
    """
    found: dict[str, str] = {}
    for text in options.values.get("W", []):
        if not text.strip():
            continue
        match = re.match(r"\s*([^=\s]+)\s*=\s*(.+)", text, re.DOTALL)
        key, value = (match[1], match[2]) if match else ("x", text.strip())
        value = _checked_extra(key, value, is_old)
        joined = {"stagein": ",", "stageout": ",", "x": ";"}.get(key)
        found[key] = f"{found[key]}{joined}{value}" if key in found and joined else value
    return found


def _checked_extra(key: str, value: str, is_old: bool) -> str:
    if key == "depend" and not read_depends(value):
        raise Misused("qsub", "illegal -W value" if is_old else f"illegal -W dependency value: '{value}'")
    if key in ("stagein", "stageout") and not all(_STAGED.fullmatch(each) for each in value.split(",")):
        raise Misused("qsub", f"illegal -W value for {key}")
    if key == "group_list" and not is_host_list(value):
        raise Misused("qsub", "illegal -W value grouplist")
    if key == "interactive" and value != "true":
        raise Misused("qsub", "illegal -W value")
    if key == "job_radix" and not value.isdigit():
        raise Misused("qsub", "illegal -W value for job_radix")
    if key == "job_radix" and int(value) < _LEAST_RADIX:
        raise Misused("qsub", "illegal -W. job_radix must be >= 2")
    return _sent_extra(key, value)


def _sent_extra(key: str, value: str) -> str:
    """A value as the client sends it."""
    if key == "fault_tolerant":
        if value[0] not in "TtYyFfNn":
            raise Misused("qsub", f"invalid fault_tolerant value: {value}")
        return "True" if value[0] in "TtYy" else "False"
    if key == "umask":
        if len(value) - value.startswith("0") > _OCTAL_DIGITS:
            raise Misused("qsub", f"Invalid umask value, too many digits: {value}")
        octal = re.match("0[0-7]*", value)
        # With a leading zero it is octal, and sent as a decimal number.
        return str(int(octal[0], 8)) if octal else value
    return value


def parse_pairs(text: str) -> dict[str, str]:
    """``a=1,b=x,y,c=`` -> a, b = ``x,y``, c: a comma separates only in front of ``name=``."""
    pairs: dict[str, str] = {}
    last = ""
    for piece in text.split(","):
        match = re.match(r"\s*([A-Za-z_][\w.]*)=(.*)", piece, re.DOTALL)
        if match:
            last = match[1]
            pairs[last] = match[2]
        elif last:
            pairs[last] += f",{piece}"
        elif piece.strip():
            last = piece.strip()
            pairs[last] = ""
    return pairs


def unquoted(value: str) -> str:
    """A value in quotes without them: the client's parser leaves a blank where the closing one was."""
    is_quoted = len(value) > 1 and value[0] in "\"'" and value.rstrip()[-1:] == value[0]
    return value.rstrip()[1:-1] + " " if is_quoted else value


def variables(text: str | None, mine: dict[str, str], *, is_old: bool) -> list[tuple[str, str]]:
    """``-v A=1,B`` -> A as said, B from the client's environment; without text there are none.

    A comma always separates, quotes or not. Seen in 6.1.3: one that is not set is sent empty, and the last of
    the list, if that is it, under the name ``name``; behind others the first letter of the next one is lost.

    Raises:
        Stopped: a name is missing.
    """
    found: list[tuple[str, str]] = []
    while text is not None:
        match = re.search("[=,]", text)
        if match is not None and match.start() == 0:
            raise Stopped("invalid -v syntax\n", 3)
        head, comma, rest = text.partition(",")
        name, sign, value = head.partition("=")
        following = rest if comma else None
        if not sign or (not value and comma):
            known = name in mine
            if not known and not comma:
                name = name.replace("'", "\\'") if is_old else "name"
            elif not known and not is_old and following and not sign:
                following = following[1:]
            value = escaped(mine.get(name, ""))
        else:
            value = value.replace("'", "\\'").replace('"', '\\"')
        found.append((name, value))
        text = following
    return found


def escaped(value: str) -> str:
    """A value from the environment as the client sends it."""
    return re.sub(r"""(["'\\\n,])""", r"\\\1", value)
