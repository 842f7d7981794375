"""`yarn-accel streaming` with a program in place of the site's `mapred`."""

import json
import os
import shlex
import subprocess
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit.adapters.hadoop_rpc.fake_hadoop import FakeHadoop, in_thread
from yarn_accel.adapters.hadoop_rpc import ApplicationId
from yarn_accel.adapters.hadoop_rpc.methods import (
    GetApplicationReportResponse,
    KillApplicationRequest,
    KillApplicationResponse,
)
from yarn_accel.adapters.hadoop_rpc.records import ApplicationReport, FinalStatus
from yarn_accel.cli import root
from yarn_accel.client.task_servers import load_credential
from yarn_accel.errors import ConfigError, JobError
from yarn_accel.hadoop.site import HDFS_SERVERS_PROPERTY, SiteSettings
from yarn_accel.launch import streaming_cli

ROOT = Path(__file__).resolve().parents[3]
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
print(os.environ.get("SAYS", ""), file=sys.stderr, flush=True)
if os.environ.get("HANGS"):
    sys.stdin.close()
    __import__("signal").pause()
sys.exit(int(os.environ.get("STATUS", "0")))
"""
SAYS = "INFO mapreduce.Job: Running job: job_1_0002\nINFO mapreduce.Job:  map 100% reduce 0%"
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


@pytest.mark.parametrize(
    ("key", "variable"), [("web_ca_file", "ACCEL_CA_FILE"), ("server_ca_file", "ACCEL_SERVER_CA_FILE")]
)
def test_who_signed_the_certificates_travels_with_the_job(site, key, variable):
    (site / "conf" / "yarn-accel-site.yaml").write_text(f"{key}: ca.pem\n")
    (site / "conf" / "ca.pem").write_text("a certificate")
    assert streaming().exit_code == 0
    arguments = json.loads((site / "shipped" / "call.json").read_text())[0]
    authority = next(each.partition("=")[2] for each in arguments if each.startswith(f"{variable}="))
    assert (site / "shipped" / authority).read_text() == "a certificate"
    (site / "conf" / "ca.pem").unlink()
    assert key in str(streaming().exception)


def test_no_job_is_begun_whose_result_nobody_could_read(site):
    (site / "conf" / "yarn-accel-site.yaml").write_text("web_ca_file: ca.pem\n")
    (site / "conf" / "ca.pem").write_text("a certificate")
    assert isinstance(streaming("--result", "result.json").exception, ConfigError)


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


@pytest.mark.parametrize("home", ["", "nowhere"])
def test_print_needs_no_hadoop(site, monkeypatch, home):
    (site / "bin" / "mapred").unlink()
    monkeypatch.setenv("PATH", str(site / "bin"))
    monkeypatch.setenv("HOME", str(site))
    monkeypatch.setenv("XDG_CACHE_HOME", str(site))
    monkeypatch.setenv("JAVA_HOME", str(site))
    if home:
        monkeypatch.setenv("HADOOP_HOME", str(site / home))
    shown = streaming("--print")
    assert shown.exit_code == 0, shown.output
    words = shlex.split(shown.stdout)
    assert words[words.index("mapred") + 1] == "streaming"
    assert f"HADOOP_CLIENT_OPTS={'-Dx=y'}" in words
    assert "run the command where mapred is" in shown.stderr
    assert streaming().exit_code != 0


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


class _Answers(BaseHTTPRequestHandler):
    """A history server, for one job."""

    def do_GET(self):
        if self.server.state is None:
            self.send_error(404)
            return
        path = self.path.partition("/job_1_0002")[2]
        attempt = {"id": "attempt_1", "type": "MAP", "nodeHttpAddress": "w1:8042", "state": "SUCCEEDED"}
        group = {
            "counterGroupName": "yarn-accel",
            "counter": [{"name": "done", "totalCounterValue": 3}],
        }
        self.answer(
            {
                "": {"job": {"state": self.server.state, "diagnostics": "no disk"}},
                "/counters": {"jobCounters": {"counterGroup": [group]}},
                "/tasks": {"tasks": {"task": [{"id": "t", "type": "MAP"}]}},
                "/tasks/t/attempts": {"taskAttempts": {"taskAttempt": [attempt]}},
            }[path]
        )

    def answer(self, content):
        data = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


GONE = ApplicationReport(ApplicationId(1, 2), final_status=FinalStatus.KILLED, diagnostics="killed by\nbob")


@pytest.fixture
def hadoop(site, monkeypatch):
    """The site's services, as far as --result asks them; and a `mapred` that says which job it runs."""
    knows = {
        "forceKillApplication": lambda _: KillApplicationResponse(is_completed=True),
        "getApplicationReport": lambda _: GetApplicationReportResponse(GONE),
    }
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as server, in_thread(FakeHadoop(knows)) as manager:
        server.state, server.manager = "SUCCEEDED", manager
        server.web = f"127.0.0.1:{server.server_port}"
        settings = SETTING.format("yarn.resourcemanager.address", str(manager.address))
        settings += SETTING.format("mapreduce.jobhistory.webapp.address", server.web)
        text = settings.replace("</configuration><configuration>", "")
        (site / "conf" / "yarn-site.xml").write_text(text)
        monkeypatch.setenv("SAYS", SAYS)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_result_says_what_came_of_the_job(site, hadoop):
    done = streaming("--result", "result.json", "-D", "mapreduce.job.name=mine")
    assert done.exit_code == 0, done.output
    assert done.stderr == "mine: job_1_0002 submitted\nmine: map 100 %, reduce 0 %\n"
    found = json.loads((site / "result.json").read_text())
    assert found.pop("seconds") > 0
    assert found == {
        "job_id": "job_1_0002",
        "application_id": "application_1_0002",
        "state": "SUCCEEDED",
        "diagnostics": "",
        "tracking_url": f"http://{hadoop.web}/jobhistory/job/job_1_0002",
        "counters": {"yarn-accel": {"done": 3}},
        "tasks": [
            {
                "attempt": "attempt_1",
                "kind": "map",
                "node": "w1",
                "state": "SUCCEEDED",
                "start_s": 0,
                "finish_s": 0,
            }
        ],
    }


def test_a_failed_job_is_one_line_and_has_a_result(site, hadoop, monkeypatch):
    monkeypatch.setenv("STATUS", "5")
    hadoop.state = "FAILED"
    failed = streaming("--result", "result.json")
    assert isinstance(failed.exception, JobError)
    assert str(failed.exception) == "job_1_0002 failed: no disk"
    assert json.loads((site / "result.json").read_text())["state"] == "FAILED"


def test_of_a_job_without_a_history_the_resourcemanager_knows_the_end(hadoop, monkeypatch):
    monkeypatch.setattr("yarn_accel.hadoop.streaming._FAILED_PATIENCE_S", 0.0)
    monkeypatch.setenv("STATUS", "5")
    hadoop.state = None
    failed = streaming("--result", "result.json")
    assert str(failed.exception) == "job_1_0002 killed: killed by bob"


def test_a_job_that_was_not_accepted_leaves_no_result_of_another(site, hadoop, monkeypatch):
    monkeypatch.setenv("SAYS", "ERROR streaming.StreamJob: Error Launching job : Output is there already")
    monkeypatch.setenv("STATUS", "5")
    (site / "result.json").write_text("{}")
    failed = streaming("--result", "result.json")
    assert isinstance(failed.exception, JobError)
    assert "was not accepted: " in str(failed.exception)
    assert "Output is there already" in str(failed.exception)
    assert not (site / "result.json").exists()


def test_a_client_that_does_not_name_its_job_is_an_error(hadoop, monkeypatch):
    monkeypatch.setenv("SAYS", "")
    failed = streaming("--result", "result.json")
    assert isinstance(failed.exception, JobError)
    assert "HADOOP_ROOT_LOGGER" in failed.exception.cure


@pytest.mark.parametrize("words", [("--print",), ("-background",)])
def test_a_result_needs_the_end_of_the_job(site, words):
    failed = streaming("--result", "result.json", *words)
    assert isinstance(failed.exception, ConfigError)
    assert words[0] in str(failed.exception)
    assert not (site / "shipped" / "call.json").exists()


def test_a_result_that_cannot_be_written_is_refused_before_the_job(site):
    failed = streaming("--result", "my_mapper.py/result.json")
    assert isinstance(failed.exception, ConfigError)
    assert "result.json" in str(failed.exception)
    assert not (site / "shipped" / "call.json").exists()


def test_what_ends_the_command_ends_the_job(site, hadoop, monkeypatch):
    monkeypatch.setenv("HANGS", "1")
    words = (
        *("-m", "yarn_accel", "streaming", "--result", "r", "-input", "i", "-output", "o", "-mapper", "cat"),
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, *words], stderr=subprocess.PIPE, text=True, env=environ
    ) as command:
        try:
            first = command.stderr.readline()
        finally:
            command.terminate()
        command.stderr.read()
    assert (first, command.returncode) == ("job: job_1_0002 submitted\n", 1)
    assert hadoop.manager.seen == [
        ("forceKillApplication", KillApplicationRequest(ApplicationId.parse("application_1_0002")))
    ]


def test_servers_without_a_credential_for_them_are_refused(site):
    (site / "conf" / "yarn-accel-site.yaml").write_text("{}")
    (site / "mine.json").write_text('{"version": 1, "servers": [{"name": "a", "host": "h", "port": 1}]}')
    failed = streaming("--binding", "mine.json")
    assert isinstance(failed.exception, ConfigError)
    assert "no credential for them" in str(failed.exception)
    (site / "token").write_bytes(b"HDTS\0\0\0")
    assert streaming("--binding", "mine.json", "--credential", "token").exit_code == 0
    assert (site / "shipped" / "binding.json").read_text() == (site / "mine.json").read_text()


def test_a_request_for_help_is_the_sites_own(site):
    shipped = site / "shipped"
    (shipped.parent / "bin" / "mapred").write_text('#!/bin/sh\necho "$@" > $SHIPPED/help\n')
    assert CliRunner().invoke(root, ["streaming", "-help"]).exit_code == 0
    assert (shipped / "help").read_text() == "streaming -help\n"


@pytest.mark.parametrize("login", ["kerberos", "simple"])
def test_a_job_gets_a_token_of_each_hdfs_that_its_arguments_name(tmp_path, login):
    properties = {"hadoop.security.authentication": login, HDFS_SERVERS_PROPERTY: "hdfs://of-site"}
    words = ["-mapper", "m.py --to hdfs://ns2/x --from=hdfs://nn:9000/y", "-input", "/in,hdfs://ns2/in"]
    found = streaming_cli._hdfs_servers(SiteSettings(tmp_path, properties), words)
    wanted = {HDFS_SERVERS_PROPERTY: "hdfs://of-site,hdfs://nn:9000,hdfs://ns2"}
    assert found == (wanted if login == "kerberos" else {})
    assert streaming_cli._hdfs_servers(SiteSettings(tmp_path, properties), ["-input", "/in"]) == {}
