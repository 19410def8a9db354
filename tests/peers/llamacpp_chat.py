"""llama.cpp's own cases of what models write, by chat template: `python -m tests.peers.llamacpp_chat SDIST`.

SDIST is the source distribution of xllamacpp (its file on PyPI's page), which has llama.cpp's `tests/test-chat.cpp` and
`models/templates`. Each case there is an output of a model with the message that it means. Of the C++ file, the tools,
the messages and the cases are compiled (`g++`) with types of the same names in place of llama.cpp's, and print the
cases. Each is read here by the format that is derived from its template, whole, by characters and cut at random, and
compared without outer white space. Cases of cut-off outputs are left out: a server that streams has sent what it read.

Prints what is read otherwise, and a table by template.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tarfile
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from agent_server.cli.parse import run_case
from tests.formats.reading import parsed

SPLITS = ("whole", "chars", "random:1", "random:2")
TYPES = r"""
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>
#define LOG_INF(...)
#define LOG_DBG(...)
struct common_chat_tool_call { std::string name, arguments, id; };
struct common_chat_msg_content_part { std::string type, text; };
struct common_chat_msg {
    std::string role, content;
    std::vector<common_chat_msg_content_part> content_parts;
    std::vector<common_chat_tool_call> tool_calls;
    std::string reasoning_content, tool_name, tool_call_id;
};
struct common_chat_tool { std::string name, description, parameters; };
enum common_chat_tool_choice {
    COMMON_CHAT_TOOL_CHOICE_AUTO, COMMON_CHAT_TOOL_CHOICE_REQUIRED, COMMON_CHAT_TOOL_CHOICE_NONE
};
enum common_reasoning_format {
    COMMON_REASONING_FORMAT_NONE, COMMON_REASONING_FORMAT_AUTO, COMMON_REASONING_FORMAT_DEEPSEEK_LEGACY,
    COMMON_REASONING_FORMAT_DEEPSEEK
};
enum common_chat_continuation {
    COMMON_CHAT_CONTINUATION_NONE, COMMON_CHAT_CONTINUATION_AUTO, COMMON_CHAT_CONTINUATION_REASONING,
    COMMON_CHAT_CONTINUATION_CONTENT
};
struct common_chat_templates_inputs {
    std::vector<common_chat_msg> messages;
    std::string json_schema;
    bool add_generation_prompt = true;
    std::vector<common_chat_tool> tools;
    common_chat_tool_choice tool_choice = COMMON_CHAT_TOOL_CHOICE_AUTO;
    bool parallel_tool_calls = false;
    common_reasoning_format reasoning_format = COMMON_REASONING_FORMAT_NONE;
    bool enable_thinking = true;
    std::map<std::string, std::string> chat_template_kwargs;
    common_chat_continuation continue_final_message = COMMON_CHAT_CONTINUATION_NONE;
};
typedef std::shared_ptr<int> common_chat_templates_ptr;
static common_chat_templates_ptr read_templates(const std::string &) { return nullptr; }
static std::string g_template_filter;
static std::string q(const std::string & text) {
    std::string out = "\"";
    for (unsigned char c : text) {
        char escaped[8];
        if (c == '"' || c == '\\') { out += '\\'; out += c; }
        else if (c < 32) { snprintf(escaped, 8, "\\u%04x", c); out += escaped; }
        else { out += c; }
    }
    return out + "\"";
}
template <typename T> static std::string list(const std::vector<T> & values, std::function<std::string(const T &)> one) {
    std::string out = "[";
    for (auto & value : values) { out += (out.size() > 1 ? "," : "") + one(value); }
    return out + "]";
}
static std::string message(const common_chat_msg & m) {
    return "{\"role\":" + q(m.role) + ",\"content\":" + q(m.content) + ",\"reasoning\":" + q(m.reasoning_content)
        + ",\"tool_call_id\":" + q(m.tool_call_id) + ",\"calls\":"
        + list<common_chat_tool_call>(m.tool_calls, [](const common_chat_tool_call & call) {
            return "[" + q(call.name) + "," + q(call.arguments) + "," + q(call.id) + "]";
        }) + "}";
}
"""
PRINTED = r"""
static void print(const std::string & path, const peg_test_case & t) {
    std::string kwargs;
    for (auto & [key, value] : t.params.chat_template_kwargs) {
        kwargs += (kwargs.empty() ? "" : ",") + q(key) + ":" + value;
    }
    auto word = [](bool value) { return value ? "true" : "false"; };
    std::cout << "{\"template\":" << q(path) << ",\"text\":" << q(t.input) << ",\"is_partial\":" << word(t.is_partial)
        << ",\"reasoning_format\":" << t.params.reasoning_format << ",\"tool_choice\":" << t.params.tool_choice
        << ",\"enable_thinking\":" << (t.params.thinking_is_set ? word(t.params.enable_thinking) : "null")
        << ",\"parallel_tool_calls\":" << word(t.params.parallel_tool_calls)
        << ",\"json_schema\":" << q(t.params.json_schema)
        << ",\"continued\":" << t.params.continue_final_message << ",\"chat_template_kwargs\":{" << kwargs << "}"
        << ",\"expect\":" << message(t.expect) << ",\"messages\":"
        << list<common_chat_msg>(t.params.messages, message) << ",\"tools\":"
        << list<common_chat_tool>(t.params.tools, [](const common_chat_tool & tool) {
            return "[" + q(tool.name) + "," + q(tool.description) + "," + q(tool.parameters) + "]";
        }) << "}" << std::endl;
}
"""
MAIN = "\nint main() { test_template_output_peg_parsers(false); }\n"
REASONING_FORMATS = ("none", "auto", "deepseek", "deepseek")
CONTINUED = ("none", "content", "reasoning", "content")


def program(source: str) -> str:
    """Return a program that prints the cases of `test-chat.cpp`."""

    def part(start: str, end: str) -> str:
        return source[source.index(start) : source.index(end)]

    builder = part("// Fluent builder", "static void test_msgs_oaicompat_json_conversion")
    builder = re.sub(r"test_peg_parser\(tester_.*?detailed_debug_\);", "print(tester_.template_path(), tc_);", builder, flags=re.DOTALL)  # fmt: skip
    builder = builder.replace("tc_.params.enable_thinking = val;", "tc_.params.enable_thinking = val; tc_.params.thinking_is_set = true;")  # fmt: skip
    cases = part("// Shared LFM2 parser cases", "static void test_template_generation_prompt")
    for needle in ("read_templates(", "common_chat_templates_init("):
        cases = _without_blocks(cases, needle)
    cases = re.sub(r'json\(\{ \{ "value", value \}, \{ "amount", 42 \} \}\)\.dump\(\)', r'("{\\"value\\":" + q(value) + ",\\"amount\\":42}")', cases)  # fmt: skip
    types = TYPES.replace("bool enable_thinking = true;", "bool enable_thinking = true, thinking_is_set = false;")
    constants = part("static common_chat_tool special_function_tool{", "// Global template filter")
    return types + constants + PRINTED + builder + cases + MAIN


def _without_blocks(cases: str, needle: str) -> str:
    """Remove the blocks that ask llama.cpp itself for something."""
    while (at := cases.find(needle)) >= 0:
        lines = cases.split("\n")
        first = last = cases[:at].count("\n")
        depth = _indent(lines[first])
        while not (lines[first].rstrip().endswith("{") and _indent(lines[first]) < depth):
            first -= 1
        while not (lines[last].strip() == "}" and _indent(lines[last]) == _indent(lines[first])):
            last += 1
        cases = "\n".join(lines[:first] + lines[last + 1 :])
    return cases


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def case_of(row: dict[str, Any]) -> dict[str, Any]:
    """Return a case in the form of `agent-server parse --batch`."""
    messages = []
    for number, given in enumerate(row["messages"]):
        calls = [
            {"id": id or f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for name, arguments, id in given["calls"]
        ]
        values = {"reasoning_content": given["reasoning"], "tool_calls": calls, "tool_call_id": given["tool_call_id"]}
        message = {"role": given["role"], "content": given["content"]}
        messages.append(message | {key: value for key, value in values.items() if value})
    tools = [
        {"type": "function", "function": {"name": name, "description": text, "parameters": json.loads(schema or "{}")}}
        for name, text, schema in row["tools"]
    ]
    copied = ("template", "text", "enable_thinking", "parallel_tool_calls", "chat_template_kwargs")
    return {
        **{name: row[name] for name in copied},
        "json_schema": json.loads(row["json_schema"]) if row["json_schema"] else None,
        "messages": messages or [{"role": "user", "content": "Hey there!"}],
        "tools": tools,
        "tool_choice": ("auto", "required", "none")[row["tool_choice"]],
        "reasoning_format": REASONING_FORMATS[row["reasoning_format"]],
        "continue_final_message": CONTINUED[row["continued"]],
    }


def meaning(reasoning: str, content: str, calls: list[tuple[str, str]]) -> tuple[str, str, list[tuple[str, str]]]:
    canonical = [(name, json.dumps(parsed(arguments), sort_keys=True)) for name, arguments in calls]
    return reasoning.strip(), content.strip(), canonical


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sdist", type=Path)
    options = parser.parse_args()
    read: Counter[str] = Counter()
    cases: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as place, tarfile.open(options.sdist) as archive:
        names = re.compile(r".*/llama\.cpp/(tests/test-chat\.cpp|models/templates/.*\.jinja)")
        archive.extractall(place, [each for each in archive.getmembers() if names.fullmatch(each.name)], filter="data")
        (source,) = Path(place).glob("**/llama.cpp/tests/test-chat.cpp")
        written, binary = Path(place, "cases.cpp"), Path(place, "cases")
        written.write_text(program(source.read_text("utf-8")), "utf-8")
        subprocess.run(["g++", "-std=c++17", "-O0", "-w", str(written), "-o", str(binary)], check=True)
        lines = subprocess.run([str(binary)], stdout=subprocess.PIPE, check=True, text=True).stdout.splitlines()
        for row in map(json.loads, lines):
            if row["is_partial"]:
                continue
            name, wanted = Path(row["template"]).stem, row["expect"]
            expected = meaning(wanted["reasoning"], wanted["content"], [call[:2] for call in wanted["calls"]])
            results = [run_case({**case_of(row), "split": split}, source.parents[1]) for split in SPLITS]
            found = [
                meaning(each["reasoning"], each["content"], [(c["name"], c["arguments"]) for c in each["tool_calls"]])
                for each in results
            ]
            cases[name] += 1
            if all(each == expected for each in found):
                read[name] += 1
            else:
                differing = next(each for each in found if each != expected)
                print(f"{name}: {row['text']!r}\n  read as {results[0]['error'] or differing}\n  not as  {expected}")
    for name, count in sorted(cases.items()):
        print(f"{name}: {read[name]} of {count}")
    print(f"{read.total()} of {cases.total()} cases of {len(cases)} templates are read as llama.cpp reads them")


if __name__ == "__main__":
    main()
