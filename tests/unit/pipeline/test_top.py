"""The picture: rates come from two answers, and whatever is missing leaves its place empty."""

import json

import pytest
from click.testing import CliRunner
from rich.console import Console

from tests.unit.pipeline.statistics_of_a_server import statistics
from yarn_accel.errors import ConfigError, UnavailableError
from yarn_accel.pipeline import top
from yarn_accel.pipeline.config import PipelineConfig


def shown(before, after):
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    with console.file:
        console.print(top.screen(before, after))
        return console.export_text()


def line_of(text, start):
    return next(line for line in text.splitlines() if line.strip().startswith(start))


@pytest.fixture
def config(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text(bytes(range(32)).hex())
    secret.chmod(0o600)
    return PipelineConfig(master_secret_file=secret, state_file=str(tmp_path / "state.json"))


@pytest.fixture
def config_file(tmp_path, config):
    path = tmp_path / "config.yaml"
    path.write_text(f"master_secret_file: {config.master_secret_file}\nlisten_port: 1\n")
    return path


def test_rates_are_differences():
    text = shown(statistics(10.0, 20), statistics(12.0, 26))
    assert "3.0 requests/s" in text
    assert "in 2.3 KiB/s" in text
    assert line_of(text, "compute").split()[1] == "0.60"
    assert line_of(text, "alice").split()[1:4] == ["3.0", "3.0", "0.0"]
    assert line_of(text, "lu").split()[5] == "0.60"


@pytest.mark.parametrize("before", [{}, statistics(50.0, 500), statistics(5.0, 500, pid=1)])
def test_without_a_matching_earlier_answer_rates_are_averages(before):
    assert "2.0 requests/s" in shown(before, statistics(10.0, 20))


def test_memory_workers_and_devices():
    text = shown({}, statistics())
    assert line_of(text, "read queue").split()[2:8] == ["1.0", "MiB", "2.0", "MiB", "4.0", "MiB"]
    assert "1 requests wait for memory" in text
    assert line_of(text, "0 ").split()[:5] == ["0", "cpu:0", "4242", "busy", "0.40"]
    assert "died" in line_of(text, "0 ")
    assert "41 °C" in line_of(text, "cuda:0")
    assert line_of(text, "cuda:0").split()[4:8] == ["3.0", "GiB", "1.0", "GiB"]


def test_an_old_server_without_these_keys_is_shown_too():
    assert "w9" in shown({}, {"server": "w9", "workers": 3})


def test_the_client_takes_the_port_from_the_state_file(config, tmp_path):
    (tmp_path / "state.json").write_text(json.dumps({"port": 4321}))
    assert top.operator_client(config).endpoint.port == 4321


def test_a_missing_state_file_is_explained(config):
    with pytest.raises(ConfigError, match="is the server running"):
        top.operator_client(config)


class FakeClient:
    def __init__(self, answers):
        self.answers = iter(answers)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        pass

    def connect(self):
        pass

    def close(self):
        pass

    def stats(self):
        answer = next(self.answers)
        if isinstance(answer, BaseException):
            raise answer
        return answer


def test_once_prints_one_picture(config_file, monkeypatch):
    answers = [statistics(10.0, 20), statistics(11.0, 25)]
    monkeypatch.setattr(top, "operator_client", lambda config: FakeClient(answers))
    done = CliRunner().invoke(top.command, ["--config", str(config_file), "--once", "--interval", "0.1"])
    assert done.exit_code == 0
    assert "5.0 requests/s" in done.output


def test_live_goes_on_when_the_server_comes_back(config_file, monkeypatch):
    monkeypatch.setattr(top, "_RETRY_S", 0.0)
    answers = [statistics(), UnavailableError("it is gone"), statistics(), KeyboardInterrupt()]
    client = FakeClient(answers)
    monkeypatch.setattr(top, "operator_client", lambda config: client)
    done = CliRunner().invoke(top.command, ["--config", str(config_file), "--interval", "0.1"])
    assert done.exit_code == 0
    assert next(client.answers, "all were asked for") == "all were asked for"
    assert done.output.count("requests/s") == 2, "in a pipe every picture is written"
    assert "it is gone\nasking again every second" in done.output


def test_nobody_there_is_one_line_and_exit_1(config_file):
    done = CliRunner().invoke(top.command, ["--config", str(config_file), "--once"])
    assert done.exit_code == 1
    assert done.output.count("\n") == 1
    assert "pipeline top: no pipeline server answers" in done.output
