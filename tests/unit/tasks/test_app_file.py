"""APP.yaml: each fault is one error that names the file, the key and the cure."""

import pytest

from yarn_accel.core.tasks.values import Form
from yarn_accel.errors import ConfigError
from yarn_accel.tasks import AppConfig, load_app
from yarn_accel.tasks.app_file import CpuProgram, DeclaredFigures, FormTimes, GpuProgram

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
        (GOOD + "timeout_s: .inf\n", "timeout_s: must be a finite number"),
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
        (FORMLESS + "gpu: {operation: magic}\n", "gpu: unknown operation 'magic'; known: cholesky"),
        (
            FORMLESS + "gpu: {operation: kmeans, params: {k: 3}}\n",
            "has no form for GPUs; those that have one: ",
        ),
        (FORMLESS + "gpu: {operation: lbp, params: {bins: 60}}\n", "gpu: bins: expected 59 or 256, found 60"),
        (FORMLESS + "gpu: {operation: lu, params: {speed: 1}}\n", "gpu: unknown parameter 'speed'; known: "),
        (FORMLESS + "gpu: {operation: lu, params: {form: .nan}}\n", "gpu: params: "),
        (GOOD + "figures: {cpu: {}}\n", "figures.cpu: read_s and compute_s are both 0"),
        (GOOD + "figures: {cpu: {read_s: .inf}}\n", "figures.cpu.read_s: must be a finite number"),
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
