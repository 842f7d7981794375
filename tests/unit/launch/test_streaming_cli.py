"""`yarn-accel streaming` with a program in place of the site's `mapred`."""

import json
import shlex
import subprocess
import sys
import zipfile

import pytest
from click.testing import CliRunner

from yarn_accel.cli import root
from yarn_accel.client.task_servers import load_credential
from yarn_accel.errors import ConfigError

MAPRED = f"""#!{sys.executable}
import json, os, shutil, sys
arguments = sys.argv[1:]
for name in arguments[arguments.index("-files") + 1].split(","):
    shutil.copy(name, os.environ["SHIPPED"])
credential = [word.partition("=")[2] for word in arguments if word.startswith("mapreduce.job.credentials")]
for name in credential:
    shutil.copy(name, os.environ["SHIPPED"])
with open(os.environ["SHIPPED"] + "/call.json", "w") as out:
    json.dump([arguments, os.environ.get("HADOOP_CLIENT_OPTS"), os.environ["HADOOP_CONF_DIR"]], out)
sys.exit(int(os.environ.get("STATUS", "0")))
"""
SETTING = "<configuration><property><name>{}</name><value>{}</value></property></configuration>"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A site of files alone, whose `mapred` notes what it gets; no ResourceManager answers."""
    conf, programs, shipped = (tmp_path / name for name in ("conf", "bin", "shipped"))
    for folder in (conf, programs, shipped):
        folder.mkdir()
    (conf / "core-site.xml").write_text(SETTING.format("fs.defaultFS", "hdfs://nn"))
    (conf / "resource-types.xml").write_text(SETTING.format("yarn.resource-types", "acct/slot"))
    (conf / "secret").write_text("ab" * 32)
    (conf / "secret").chmod(0o600)
    (conf / "binding.json").write_text('{"version": 1}')
    settings = "master_secret_file: secret\nbinding_file: binding.json\nclient_jvm_options: -Dx=y\n"
    (conf / "yarn-accel-site.yaml").write_text(settings)
    (programs / "mapred").write_text(MAPRED)
    (programs / "mapred").chmod(0o755)
    (tmp_path / "my_mapper.py").write_text("from yarn_accel.client import connect\n")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(conf))
    monkeypatch.delenv("HADOOP_HOME", raising=False)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    monkeypatch.setenv("SHIPPED", str(shipped))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def streaming(*words):
    return CliRunner().invoke(
        root, ["streaming", *words, "-input", "in", "-output", "out", "-mapper", "my_mapper.py"]
    )


def test_a_job_gets_client_script_binding_and_credential(site):
    done = streaming("-D", "mapreduce.job.name=mine")
    assert done.exit_code == 0, done.output
    shipped = site / "shipped"
    arguments, options, conf = json.loads((shipped / "call.json").read_text())
    assert arguments[0] == "streaming"
    assert arguments[arguments.index("-mapper") + 1] == "python3 my_mapper.py"
    assert {"mapreduce.job.name=mine", "mapreduce.map.resource.acct/slot=1"} <= set(arguments)
    assert "PYTHONPATH=yarn-accel-client.zip" in arguments
    assert (options, conf) == ("-Dx=y", str(site / "conf"))
    assert {"my_mapper.py", "binding.json", "yarn-accel-client.zip"} <= {
        each.name for each in shipped.iterdir()
    }
    assert "ab" * 16 not in json.dumps(arguments), "no secret travels in an argument"
    token = {"HADOOP_TOKEN_FILE_LOCATION": str(shipped / "credential")}
    assert load_credential(token, 0).key
    assert not list(site.glob("yarn-accel-*")), "what was made for the job is gone"


def test_the_client_that_travels_is_enough_for_a_mapper(site):
    assert streaming().exit_code == 0
    archive = site / "shipped" / "yarn-accel-client.zip"
    with zipfile.ZipFile(archive) as content:
        assert not [name for name in content.namelist() if "pipeline" in name]
    program = (
        f"import sys; sys.path.insert(0, {str(archive)!r})\n"
        "from yarn_accel.client import connect\n"
        "with connect(patience_s=0) as accel:\n"
        "    print(accel.call('echo', b'x').device)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True, cwd=site
    )
    assert ran.stdout == "cpu:fallback\n"


def test_print_shows_a_command_that_runs_and_runs_nothing(site):
    shown = streaming("--print")
    assert shown.exit_code == 0, shown.output
    assert not (site / "shipped" / "call.json").exists()
    folder = site / "yarn-accel-streaming"
    assert (folder / "credential").stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    subprocess.run(shlex.split(shown.output), check=True)
    assert (site / "shipped" / "call.json").exists()
    assert streaming("--print").exit_code == 0, "again"


def test_the_status_of_the_job_is_the_commands_own(site, monkeypatch):
    monkeypatch.setenv("STATUS", "5")
    assert streaming().exit_code == 5


def test_without_a_secret_a_credential_may_be_given_or_left_out(site):
    (site / "conf" / "yarn-accel-site.yaml").write_text("{}")
    (site / "mine").write_bytes(b"HDTS\0\0\0")
    for words, count in (((), 0), (("--credential", "mine"), 1)):
        assert streaming(*words).exit_code == 0
        arguments = json.loads((site / "shipped" / "call.json").read_text())[0]
        found = [word for word in arguments if word.startswith("mapreduce.job.credentials.binary=")]
        assert len(found) == count
    assert found == [f"mapreduce.job.credentials.binary={site}/mine"]


def test_a_secret_of_another_user_says_whom_to_ask(site):
    (site / "conf" / "secret").chmod(0o644)
    failed = streaming()
    assert isinstance(failed.exception, ConfigError)
    assert "yarn-accel credential issue" in failed.exception.cure
