"""`agent-server parse`: the batch contract, and the shared cases of chat templates through it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_server.cli.parse import run_case
from tests.formats.reading import parsed
from tests.formats.shared import DATA, MISSING, cases

TEMPLATE_CASES = cases("template-cases.jsonl")
SPLITS = ["whole", "chars", *(f"random:{seed}" for seed in range(10))]
TOOLS = [{"type": "function", "function": {"name": "tide", "parameters": {"type": "object", "properties": {"port": {"type": "string"}}}}}]  # fmt: skip
TEMPLATE = """{%- for message in messages -%}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content }}<|im_end|>
{% endfor -%}{%- if add_generation_prompt -%}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% else %}<think>
{% endif %}{%- endif -%}"""


def calls(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [
        (c["name"], c.get("id") or "", json.dumps(parsed(c["arguments"]), sort_keys=True)) for c in result["tool_calls"]
    ]


@pytest.mark.skipif(not TEMPLATE_CASES, reason=MISSING)
@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in TEMPLATE_CASES])
def test_template_case(case: dict[str, Any]):
    for split in SPLITS:
        result = run_case({**case, "split": split}, DATA / "templates")
        assert result["error"] is None
        assert result["reasoning"].strip() == (case["expect"]["reasoning"] or "").strip()
        assert result["content"].strip() == (case["expect"]["content"] or "").strip()
        assert calls(result) == calls(case["expect"])


def test_a_template_decides_where_the_output_starts():
    case = {"template_text": TEMPLATE, "text": "Hm.\n</think>\n\nHigh."}
    result = run_case({**case, "messages": [{"role": "user", "content": "Tide?"}]})
    assert (result["reasoning"], result["content"], result["finish_reason"]) == ("Hm.", "High.", "stop")
    closed = run_case({**case, "enable_thinking": False, "text": "High."})
    assert (closed["reasoning"], closed["content"]) == ("", "High.")


def test_a_prefill_is_part_of_the_message():
    messages = [
        {"role": "user", "content": "Tide?"},
        {"role": "assistant", "content": "", "reasoning_content": "Spring"},
    ]
    case = {"template_text": TEMPLATE, "messages": messages, "continue_final_message": "reasoning"}
    result = run_case({**case, "text": " tide.\n</think>\n\nHigh."})
    assert (result["reasoning"], result["content"]) == ("Spring tide.", "High.")


def test_reasoning_may_be_left_in_the_content():
    result = run_case({"format": "hermes", "text": "<think>a</think>b", "reasoning_format": "none"})
    assert (result["reasoning"], result["content"]) == ("", "<think>a</think>b")


def test_partial_output_is_reported_as_far_as_it_was_sent():
    text = '<tool_call>\n{"name": "tide", "arguments": {"port": "Bre'
    partial = run_case({"format": "hermes", "text": text, "is_partial": True})
    assert partial["tool_calls"] == [{"id": "", "name": "tide", "arguments": '{"port": "Bre'}]
    assert partial["event_types"] == ["TOOL_CALL_START", "TOOL_CALL_ARGS"]
    assert partial["finish_reason"] is None
    assert run_case({"format": "hermes", "text": text})["event_types"][-1] == "TOOL_CALL_END"


def test_tools_null_and_empty():
    text = '<tool_call>\n{"name": "ferry", "arguments": {}}\n</tool_call>'
    assert run_case({"format": "hermes", "text": text})["tool_calls"]
    assert run_case({"format": "hermes", "text": text, "tools": []})["content"] == text
    assert run_case({"format": "hermes", "text": text, "tools": TOOLS, "tool_choice": "none"})["content"] == text


def test_one_call_where_parallel_calls_are_off():
    one = '<tool_call>\n{"name": "tide", "arguments": {"port": "Brest"}}\n</tool_call>'
    result = run_case({"format": "hermes", "text": one * 2, "tools": TOOLS, "parallel_tool_calls": False})
    assert len(result["tool_calls"]) == 1
    assert result["warnings"] == ["a further call was left out: parallel calls are off"]


def test_a_json_answer_is_no_call():
    text = '{"name": "tide", "arguments": {"port": "Brest"}}'
    assert run_case({"format": "hermes", "text": text, "tools": TOOLS})["tool_calls"]
    answer = run_case({"format": "hermes", "text": text, "tools": TOOLS, "json_schema": {"type": "object"}})
    assert (answer["content"], answer["tool_calls"]) == (text, [])


@pytest.mark.parametrize(
    "case",
    [
        {"text": "x"},
        {"format": "nonsense", "text": "x"},
        {"format": "hermes"},
        {"format": "hermes", "text": "x", "split": "often"},
        {"template": "nowhere.jinja", "text": "x"},
        {"template_text": "{{ raise_exception('no') }}", "text": "x"},
        {"template_text": "{{ never closed", "text": "x"},
        {"template_text": "{{ messages[9].content.strip() }}", "text": "x"},
        {"format": "hermes", "text": "x", "tools": 3},
        {"template_text": "{{ messages }}", "text": "x", "messages": "hello"},
    ],
)
def test_a_case_that_cannot_be_run_says_why(case: dict[str, Any]):
    result = run_case({"id": 7, **case})
    assert result["id"] == 7
    assert result["error"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.txt"], "No such file or directory: nowhere.txt"),
        (["--template", "bad.jinja"], "the chat template is not valid"),
        (["--format", "nonsense"], "no format is called 'nonsense'"),
        (["--tools", "bad.jinja"], "bad.jinja is not valid JSON"),
    ],
)
def test_the_command_says_what_is_wrong_in_a_sentence(tmp_path: Path, arguments: list[str], said: str):
    (tmp_path / "bad.jinja").write_text("{{ never closed")
    program = "import typer; from agent_server.cli.parse import parse; typer.run(parse)"
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], input="text", capture_output=True, text=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("agent-server: ") and said in done.stderr and done.stderr.count("\n") == 1


def test_the_command_reads_lines_and_writes_lines():
    lines = [json.dumps({"id": 1, "format": "hermes", "text": "High."}), "", "no json", "[1]"]
    program = "import typer; from agent_server.cli.parse import parse; typer.run(parse)"
    done = subprocess.run(
        [sys.executable, "-c", program, "--batch"], input="\n".join(lines), capture_output=True, text=True, check=True
    )
    first, second, third = map(json.loads, done.stdout.splitlines())
    assert first == {
        "id": 1,
        "reasoning": "",
        "content": "High.",
        "tool_calls": [],
        "finish_reason": "stop",
        "warnings": [],
        "error": None,
        "event_types": ["TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END"],
    }
    assert second["error"].startswith("no JSON")
    assert third["error"] == "no JSON object"


@pytest.mark.parametrize("tools", ["tide", ["tide"], {"name": "tide"}, 3, [None]], ids=str)
def test_tools_that_are_none_are_told_in_the_cases_own_words(tools: Any):
    error = run_case({"format": "hermes", "text": "x", "tools": tools})["error"]
    assert error == "CaseError: `tools` must be a list of objects, each a tool in OpenAI's form"
