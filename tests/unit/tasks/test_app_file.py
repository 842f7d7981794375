"""An application's file: its archives, its splits, and the task loop that follows it."""

from __future__ import annotations

import re
import stat
import subprocess
import sys
import zipfile

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from yarn_accel.core.tasks.applications import MAX_TASKS
from yarn_accel.core.tasks.values import Form
from yarn_accel.errors import ConfigError
from yarn_accel.tasks import AppConfig, archives, load_app
from yarn_accel.tasks.app_file import CpuProgram, DeclaredFigures, FormTimes, GpuProgram
from yarn_accel.tasks.split import SizedFile, cut, cut_lines
from yarn_accel.worker.line_split import split_lines

GOOD = "name: a\ninput: in\noutput: out\ncpu: {command: [cat]}\n"
#: The same without a form, and without an input.
FORMLESS = "name: a\ninput: in\noutput: out\n"
NO_INPUT = "name: a\noutput: out\ncpu: {command: [cat]}\n"


@pytest.fixture
def load(tmp_path):
    def load(text):
        path = tmp_path / "app.yaml"
        path.write_text(text)
        return load_app(path)

    return load


def test_local_names_are_relative_to_the_file(load, tmp_path):
    app = load(
        "name: knn\n"
        "input: [in put, hdfs:///data/points]\n"
        "output: hdfs://nn:8020/out//knn/\n"
        "cpu: {command: [./mapper.py, --fast]}\n"
        "gpu: {operation: lu}\n"
        "files: [lib/mapper.py, hdfs:///lib/model-7.bin#model.bin]\n"
    )
    assert app.input == (f"file://{tmp_path}/in put", "hdfs:///data/points")
    assert app.output == "hdfs://nn:8020/out/knn"
    assert app.files == (
        f"file://{tmp_path}/lib/mapper.py#mapper.py",
        "hdfs:///lib/model-7.bin#model.bin",
    )
    assert set(app.forms()) == {Form.CPU, Form.GPU}
    assert app.split_bytes == 128 * 1024 * 1024


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (GOOD + "colour: red\n", "colour: unknown key; known: cpu, environment, figures, files, gpu, input"),
        (GOOD.replace("[cat]", "[cat], nice: 1"), "cpu.nice: unknown key; known: command, cores"),
        (GOOD.replace("name: a\n", ""), "name: missing"),
        (GOOD.replace("name: a", "name: a/b"), "name: must be a text that matches"),
        (GOOD.replace("output: out\n", ""), "output: missing"),
        (
            GOOD.replace("output: out", "output: ../out"),
            "output: .*the path must be absolute and without '..'",
        ),
        (
            GOOD.replace("input: in", "input: hdfs:///a/../b"),
            "input: .*the path must be absolute and without",
        ),
        (GOOD.replace("output: out", "output: s3://x/y"), "output: .*only hdfs:// and file://"),
        (GOOD.replace("output: out", "output: 'hdfs://nn/'"), "output: hdfs://nn/: names no file"),
        (GOOD + "manifest: m\n", "give either input or manifest"),
        (NO_INPUT, "give either input or manifest"),
        (NO_INPUT + "manifest: m\nsplit_bytes: 5\n", "split_bytes: a manifest is not cut"),
        (GOOD + "split_bytes: 0\n", "split_bytes: must be at least 1, not 0"),
        (GOOD + "max_attempts: 0\n", "max_attempts: must be at least 1, not 0"),
        (GOOD + "timeout_s: .inf\n", "timeout_s: must be at most 1000000000, not Infinity"),
        (GOOD + "timeout_s: -1\n", "timeout_s: must be at least 0.0, not -1"),
        (GOOD + "memory_mib: 0\n", "memory_mib: must be at least 1, not 0"),
        (FORMLESS, "give at least one form, cpu or gpu"),
        (FORMLESS + "cpu: {}\n", "cpu: give either a command or an operation"),
        (FORMLESS + "cpu: {command: []}\n", "cpu: give either a command or an operation"),
        (FORMLESS + "cpu: {command: cat file}\n", "cpu.command: must be a list"),
        (FORMLESS + "cpu: {command: [cat, 3]}\n", "cpu.command.1: must be a text, not 3"),
        (FORMLESS + "cpu: {command: [' ']}\n", "cpu.command: names no program"),
        (FORMLESS + 'cpu: {command: ["a\\0"]}\n', "cpu.command: an argument has no NUL"),
        (FORMLESS + "gpu: {}\n", "gpu: give either a command or an operation"),
        (FORMLESS + "gpu: {command: [x], operation: lu}\n", "gpu: give either a command or an operation"),
        (FORMLESS + "gpu: {command: [x], params: {k: 1}}\n", "gpu: params belong to an operation"),
        (FORMLESS + "gpu: {command: [x], gpus: 0}\n", "gpu.gpus: must be at least 1"),
        (FORMLESS + "gpu: {operation: magic}\n", "gpu: unknown operation 'magic'; known: chain, cholesky"),
        (
            FORMLESS + "gpu: {operation: echo}\n",
            "has no form for GPUs; those that have one: ",
        ),
        (FORMLESS + "gpu: {operation: lbp, params: {bins: 60}}\n", "gpu: bins: expected 59 or 256, found 60"),
        (FORMLESS + "gpu: {operation: lu, params: {speed: 1}}\n", "gpu: unknown parameter 'speed'; known: "),
        (FORMLESS + "gpu: {operation: lu, params: {form: .nan}}\n", "gpu: params: "),
        (GOOD + "figures: {cpu: {}}\n", "figures.cpu: read_s and compute_s are both 0"),
        (
            GOOD + "figures: {cpu: {read_s: .inf}}\n",
            "figures.cpu.read_s: must be at most 1000000000",
        ),
        (GOOD + "figures: {cpu: {read_s: -1}}\n", "figures.cpu.read_s: must be at least 0"),
        (GOOD + "figures: {split_bytes: 0}\n", "figures.split_bytes: must be greater than 0"),
        (GOOD + "figures: {gpu: {read_s: 1}}\n", "figures: of a form that the application does not have"),
        (
            NO_INPUT + "manifest: m\nfigures: {cpu: {read_s: 1}}\n",
            "figures.split_bytes: say how many bytes a task reads",
        ),
        (GOOD + "environment: {1A: x}\n", "environment: '1A' is no name of a variable"),
        (GOOD + 'environment: {A: "x\\0"}\n', "environment: A: a value has no NUL"),
        (GOOD + "files: [a/x, b/x]\n", "files: two files are called x; give one another name"),
        (GOOD + "files: ['x#../y']\n", "files: '../y' is no name of a file"),
        (GOOD + "name: b\n", "line 5: name was given in line 1 already"),
        ("- 1\n", "not a mapping of keys to values"),
        ("a: [\n", "not YAML"),
    ],
)
def test_each_fault_is_one_error_with_its_place(load, text, complaint):
    with pytest.raises(ConfigError, match=rf"app\.yaml: .*{complaint}"):
        load(text)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"no-such\.yaml: No such file"):
        load_app(tmp_path / "no-such.yaml")


@pytest.mark.parametrize("params", ["{}", "{precision: 1}", "{form: packed}", "{compute: double}"])
@pytest.mark.parametrize("operation", ["lu", "qr", "gemm", "solve", "cholesky"])
def test_operations_say_themselves_which_parameters_they_take(load, operation, params):
    """What is right here is right for the operation, and what it never takes is refused."""
    text = FORMLESS + f"gpu: {{operation: {operation}, params: {params}}}\n"
    if params == "{precision: 1}":
        with pytest.raises(ConfigError, match="unknown parameter 'precision'; known: "):
            load(text)
    elif params == "{}":
        assert load(text).gpu.operation == operation


def test_every_key_is_described():
    for model in (AppConfig, CpuProgram, GpuProgram, DeclaredFigures, FormTimes):
        for name, field in model.model_fields.items():
            assert field.description, f"{model.__name__}.{name}"


# Splits cover every file once, and have the lines that they should, whatever the sizes.


MIB = 1024 * 1024
LINES = st.lists(st.text("ab \t\x00ü", max_size=6).map(str.encode))


@settings(max_examples=examples(200))
@given(st.lists(st.integers(0, 2000), max_size=5), st.integers(1, 700))
def test_every_byte_is_in_one_split(sizes, split_bytes):
    files = [SizedFile(f"file:///f{i}", n_bytes) for i, n_bytes in enumerate(sizes)]
    splits = cut(files, split_bytes)
    for file in files:
        at = 0
        for split in (each for each in splits if each.uri == file.uri):
            assert split.start == at
            assert 0 < split.length <= split_bytes * 1.1
            at += split.length
        assert at == file.n_bytes
    assert [each.uri for each in splits] == sorted(each.uri for each in splits)


@settings(max_examples=examples(200))
@given(LINES, st.integers(1, 30))
def test_each_line_of_a_file_is_in_one_split(lines, split_bytes):
    content = b"".join(line + b"\n" for line in lines)
    splits = cut([SizedFile("file:///f", len(content))], split_bytes)
    assert [line for split in splits for line in lines_of(content, split)] == lines


@settings(max_examples=examples(200))
@given(LINES, st.sampled_from([b"\n", b"\r\n", b"\r"]), st.booleans())
def test_each_line_of_a_manifest_is_one_split(lines, end, is_whole):
    content = end.join(lines) + (end if is_whole else b"")
    assume(not re.match(rb"[\r\n][^\r\n]", content))
    splits = cut_lines("file:///m", content)
    read = [lines_of(content, split) for split in splits]
    assert read == [[line] for line in lines if line.strip()]


class Content:
    """A file in memory."""

    def __init__(self, content):
        self.content = content
        self.n_bytes = len(content)

    def read_into(self, start, view):
        view[:] = self.content[start : start + len(view)]


def lines_of(content, split):
    """What a worker gives of a split to a task."""
    return b"".join(split_lines(Content(content), split)).split(b"\n")[:-1]


def test_an_empty_first_line_is_an_error():
    for content in (b"\nx\n", b"\rx"):
        with pytest.raises(ConfigError, match="file:///m: the first line is empty: remove it"):
            cut_lines("file:///m", content)
    assert len(cut_lines("file:///m", b"\r\nx\n")) == 1


def test_too_many_splits_name_a_size_that_does():
    files = [SizedFile(f"hdfs:///f{i}", 3 * 2**40 + i) for i in range(7)]
    with pytest.raises(ConfigError, match=rf"at most {MAX_TASKS} are taken: give split_bytes: \d+") as caught:
        cut(files, 64 * MIB)
    split_bytes = int(caught.value.cure.split()[2])
    assert split_bytes % MIB == 0
    assert MAX_TASKS * 0.9 < len(cut(files, split_bytes)) <= MAX_TASKS


def test_so_many_files_that_no_size_does():
    with pytest.raises(ConfigError, match="these are 100001 files: join them"):
        cut([SizedFile(f"hdfs:///f{i}", 1) for i in range(MAX_TASKS + 1)], MIB)


def test_too_many_lines():
    with pytest.raises(ConfigError, match=r"file:///m has 100001 lines.*give the file as `input`"):
        cut_lines("file:///m", b"x\n" * (MAX_TASKS + 1))
    assert len(cut_lines("file:///m", b"x\n" * MAX_TASKS)) == MAX_TASKS


# Zip files of modules: made alike of like sources, refused where their names lead out of a folder.


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with one inside it, which can be imported."""
    folder = tmp_path / "src" / "outer_package"
    (folder / "inner" / "__pycache__").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "other.py").write_text("")
    (folder / "inner" / "__init__.py").write_text("def three(): return 3\n")
    (folder / "inner" / "data.json").write_text("{}")
    (folder / "inner" / "__pycache__" / "x.pyc").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path / "src"))
    yield "outer_package.inner"
    for name in [each for each in sys.modules if each.startswith("outer_package")]:
        del sys.modules[name]


def test_a_package_travels_with_those_around_it(package, tmp_path):
    path = archives.package_archive([package], tmp_path / "a.zip")
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == [
            "outer_package/__init__.py",
            "outer_package/inner/__init__.py",
            "outer_package/inner/data.json",
        ]
    archives.check_archive(path)
    assert archives.archived_modules(path) == {"outer_package"}
    program = f"import sys; sys.path[:] = ['{path}', *sys.path]; import {package} as p; print(p.three())"
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "3\n"


def test_like_sources_give_like_bytes(package, tmp_path):
    first = archives.package_archive([package], tmp_path / "a.zip").read_bytes()
    (tmp_path / "src" / "outer_package" / "inner" / "data.json").touch()
    assert archives.package_archive([package], tmp_path / "b.zip").read_bytes() == first


def test_what_cannot_be_packed(package, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="'no_such_package' is not here"):
        archives.package_archive(["no_such_package"], tmp_path / "a.zip")
    with pytest.raises(ConfigError, match="is not of plain files"):
        archives.package_archive(["sys"], tmp_path / "a.zip")
    monkeypatch.setattr(archives, "MAX_ARCHIVE_BYTES", 10)
    with pytest.raises(ConfigError, match="more than"):
        archives.package_archive([package], tmp_path / "a.zip")


@pytest.mark.parametrize("name", ["/etc/x.py", "../x.py", "a/../../x.py", "..\\x.py", "\\x.py", "c:/x.py"])
def test_names_that_lead_out(name, tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, "")
    with pytest.raises(ConfigError, match="is absolute or has"):
        archives.check_archive(path)


def test_links(tmp_path):
    entry = zipfile.ZipInfo("link.py")
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(entry, "/etc/passwd")
    with pytest.raises(ConfigError, match="is a symbolic link"):
        archives.check_archive(tmp_path / "a.zip")


def test_a_small_file_that_is_large_inside(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(3):
            archive.writestr(f"{number}.py", bytes(30 << 20))
    with pytest.raises(ConfigError, match="more than 64 MiB"):
        archives.check_archive(tmp_path / "a.zip")
