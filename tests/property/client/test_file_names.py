"""A name means one file, whoever reads it: server, fallback, tasks, a path of the caller."""

import tempfile
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from yarn_accel.client import AccelError, Call, RejectedError, StorageError
from yarn_accel.client.fallback import LocalExecutor
from yarn_accel.storage import Store
from yarn_accel.tasks import load_app, plan_app
from yarn_accel.uris import normalised, split_uri

PIECES = st.sampled_from([*"ab #?\t\n\\%+:;~é.'\"&", "%20", "%2F"])
# Hadoop's input formats and ours skip those that begin with a dot.
NAMES = st.lists(PIECES, min_size=1, max_size=6).map("".join).filter(lambda name: not name.startswith("."))


def echo(given_input):
    (tensor,) = LocalExecutor().call(Call.of("echo", given_input, key="k")).tensors.values()
    return bytes(tensor.array().tobytes())


@settings(max_examples=examples(200), deadline=None)
@given(names=st.sets(NAMES, min_size=1, max_size=6), folder=NAMES)
@example(names={"a b", "a%20b", "a#b", "a?b", "a\tb", "ab", "a\nb"}, folder="in%20 #put")
def test_a_folder_neither_loses_nor_doubles_a_file(names, folder):
    with tempfile.TemporaryDirectory() as base:
        home = Path(base, folder)
        home.mkdir()
        for number, name in enumerate(sorted(names)):
            (home / name).write_bytes(f"{number} {name}".encode())
        contents = {f"{number} {name}".encode() for number, name in enumerate(sorted(names))}
        server = Store(follow_symlinks=False)
        uris = server.list(f"file://{home}")
        assert [server.read_bytes(uri) for uri in uris] == [echo(uri) for uri in uris]
        assert {server.read_bytes(uri) for uri in uris} == contents
        assert len(uris) == len(names)
        assert {normalised(uri) for uri in uris} == set(uris)
        for name in names:
            wanted = (home / name).read_bytes()
            assert echo(home / name) == server.read_bytes(f"file://{home}/{name}") == wanted
            server.write_atomic(f"file://{home}/{name}", [b"new" + wanted])
            assert (home / name).read_bytes() == b"new" + wanted
        app = Path(base, "app.yaml")
        app.write_text(f"name: x\ninput: [{repr_yaml(folder)}]\noutput: out\ncpu: {{command: [cat]}}\n")
        tasks = plan_app(load_app(app), server).tasks
        assert {server.read_bytes(task.input.uri) for task in tasks if task.input} == {
            b"new" + content for content in contents
        }
        assert len(tasks) == len(names)


def repr_yaml(text):
    return '"' + "".join(f"\\U{ord(letter):08x}" for letter in text) + '"'


ODD = st.one_of(
    st.text(max_size=30),
    st.tuples(
        st.sampled_from(["file://", "FILE://", "file:", "hdfs://", "", "s3://", "file://host", "hdfs://u@h"]),
        st.lists(st.sampled_from(["/", "//", "..", ".", "a", "%2e", "\0", "\t", "#", "?", "\udcff", ":9"])),
    ).map(lambda parts: parts[0] + "".join(parts[1])),
)


@settings(max_examples=examples(300), deadline=None)
@given(ODD)
@example("file:///a/../b")
def test_server_and_fallback_refuse_the_same_names_with_one_line(uri):
    try:
        plain, why = normalised(uri), ""
    except RejectedError as error:
        plain, why = "", error.code
        assert "\n" not in str(error)
    try:
        assert split_uri(plain or "file:///").path.startswith("/")
        if not plain.startswith("hdfs"):
            LocalExecutor().call(Call.of("echo", uri, key="k"))
    except AccelError as error:
        # A request itself carries no control characters but TAB and LF, and no half characters.
        assert error.code == "cannot-be-sent" or (error.code == "forbidden-uri") == bool(why)
        assert "\n" not in str(error)
        assert isinstance(error, (RejectedError, StorageError))
