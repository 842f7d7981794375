"""docs/troubleshooting.md has every code that the sources can give to an error, and no other."""

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
PLACES = {"RejectedError": 0, "Failure": 1, "JobFailure": 1, "Refused": 0, "_deny": 0, "refuse": 0} | {
    "_say_goodbye": 0,
    "disconnect": 0,
    "goodbye": 0,
    "Disconnect": 1,
    "Failed": 2,
    "CredentialRefusal": 0,
    "RefuseClaim": 1,
    "KerberosError": 0,
    "TokenEndedError": 0,
    "Trouble": 0,
    "_Trouble": 0,
}
"""Which argument of these is a code."""
CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
INDIRECT = {"too-many-connections", "unknown-storage", "kerberos-no-kdc", "token-file"}
"""Codes on their way through a variable, or of a class of errors."""


def codes_of(path):
    text = path.read_text(encoding="utf-8")
    if path.stem != "errors" and not any(name in text for name in PLACES):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            arguments = node.args[PLACES[name] : PLACES[name] + 1] if name in PLACES else []
            words = [
                each.value for part in arguments for each in ast.walk(part) if isinstance(each, ast.Constant)
            ]
            yield from (word for word in words if isinstance(word, str) and CODE.fullmatch(word))
        elif (
            isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "code" and path.stem == "errors"
        ):
            yield ast.literal_eval(node.value)


@functools.cache
def codes():
    paths = [path for top in ("yarn_accel", "jobs") for path in (ROOT / top).rglob("*.py")]
    found = {code for path in paths for code in codes_of(path)}
    text = "".join(path.read_text(encoding="utf-8") for path in paths)
    assert all(f'"{code}"' in text for code in INDIRECT)
    return found | INDIRECT


def test_every_code_has_its_cause_and_cure():
    rows = re.findall(r"^\| (`[a-z0-9-]+`(?:, `[a-z0-9-]+`)*) \| .+ \| .+ \|$", PAGE, re.MULTILINE)
    assert sorted(code.strip("`") for row in rows for code in row.split(", ")) == sorted(codes())
    assert len(codes()) > 50


def test_the_codes_that_operations_name_are_there():
    page = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("operations*.md"))
    named = {word for word in re.findall(r"`([a-z]+(?:-[a-z]+)+)`", page)}
    assert named <= codes()
