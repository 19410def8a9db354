from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from agent_server.cli.inspect import inspect
from tests.template.folder import OWN, SHARED_TEMPLATES, own, own_names

app = typer.Typer()
app.command()(inspect)
runner = CliRunner()


@pytest.mark.parametrize("name", own_names())
def test_explains_each_template(name: str) -> None:
    result = runner.invoke(app, [str(OWN / f"{name}.jinja")])
    assert result.exit_code == 0
    assert "The model writes" in result.output
    assert "It is sunny in Paris." in result.output


@pytest.mark.parametrize("path", sorted(SHARED_TEMPLATES.glob("*.jinja")), ids=lambda path: path.stem)
def test_explains_each_shared_template(path: Path) -> None:
    result = runner.invoke(app, [str(path), "--json"])
    assert result.exit_code == 0
    found = json.loads(result.output)
    assert len(found["analysis"]["findings"]) >= 2
    assert found["examples"]["text"]


def test_json_has_the_whole_description() -> None:
    found = json.loads(runner.invoke(app, [str(OWN / "coder_tags.jinja"), "--json"]).output)
    assert found["analysis"]["output_format"]["tools"]["name_prefix"] == "<function="
    assert found["analysis"]["tool_mode"] == "tag_with_tagged"
    assert found["examples"]["one call"] == (
        "\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
        "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>"
    )


def test_examples_are_in_the_models_own_format() -> None:
    output = runner.invoke(app, [str(OWN / "llama_pythonic.jinja")]).output
    assert (
        '<|python_start|>[get_weather(city="Paris", days=2), get_time(city="Rome", exact=True)]<|python_end|>' in output
    )
    output = runner.invoke(app, [str(OWN / "hermes_think.jinja")]).output
    assert "│<think>" in output
    assert "thinking is switched by enable_thinking" in output


def test_a_model_folder(tmp_path: Path) -> None:
    both = [{"name": "default", "template": own("exaone_bars")}, {"name": "tool_use", "template": own("jamba_list")}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": both}), "utf-8")
    found = json.loads(runner.invoke(app, [str(tmp_path), "--json"]).output)
    assert [each["name"] for each in found] == ["default", "tool_use"]
    (tmp_path / "chat_template.jinja").write_text(own("olmo_lines"), "utf-8")
    assert "<function_calls>" in runner.invoke(app, [str(tmp_path)]).output


def test_clear_errors(tmp_path: Path) -> None:
    missing = runner.invoke(app, [str(tmp_path / "nothing.jinja")])
    assert missing.exit_code == 1
    assert "no such file" in missing.output
    empty = runner.invoke(app, [str(tmp_path)])
    assert empty.exit_code == 1
    assert "no chat template" in empty.output


def test_an_invalid_template_is_explained(tmp_path: Path) -> None:
    (tmp_path / "bad.jinja").write_text("{% if %}", "utf-8")
    result = runner.invoke(app, [str(tmp_path / "bad.jinja")])
    assert result.exit_code == 0
    assert "not valid" in result.output
