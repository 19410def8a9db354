"""What `agent-server doctor` says of this machine."""

import pytest
import torch
from typer.testing import CliRunner

from agent_server.cli import doctor
from agent_server.cli.main import app


def run(*arguments):
    return CliRunner().invoke(app, ["doctor", *arguments])


def test_it_names_packages_device_and_engine():
    result = run("--device", "cpu")
    assert result.exit_code == 0, result.output
    lines = dict(line.split(None, 1) for line in result.output.splitlines())
    assert lines["torch"] == torch.__version__
    assert lines["device"].startswith("cpu, ") and lines["device"].endswith(" GiB free")
    assert lines["engine"] == "embedded for agent-server-demo. The device is cpu, and vLLM is taken on CUDA alone."


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--device", "gpu"), "Unknown device 'gpu'. Use cpu, cuda, cuda:N or mps."),
        (("/nowhere/at-all",), "There is no folder /nowhere/at-all."),
    ],
)
def test_what_cannot_be_served_is_one_sentence(arguments, sentence):
    result = run(*arguments)
    assert result.exit_code == 1 and sentence in result.output, result.output


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(doctor, "missing_package", lambda: "torch")
    result = run()
    assert result.exit_code == 1
    assert "Models cannot be computed here without torch: pip install 'agent-server[local]'." in result.output
