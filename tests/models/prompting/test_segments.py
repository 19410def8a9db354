"""Later turns of a thread: their prompts have the ids of a whole rendering, and cost their new messages."""

from __future__ import annotations

import re
from datetime import datetime
from functools import lru_cache
from typing import Any

import pytest
from ag_ui.core import Message, RunAgentInput, Tool
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from tokenizers import AddedToken, Tokenizer

from agent_server.model_files import ModelFiles
from agent_server.models.prompting import segments
from agent_server.models.prompting.built_prompt import Prompt
from agent_server.models.prompting.control_tokens import ControlTokenEscaper, ControlTokens
from agent_server.models.prompting.prompt import PromptBuilder
from agent_server.models.prompting.segments import SegmentCache
from events.options import GenerationOptions
from events.template.environment import ChatTemplate, prompts_last
from tests.models.prompting.tokenizers_for_tests import CONTROL, KINDS, PLAIN_ADDED, byte_level
from tests.template.folder import SHARED_TEMPLATES, own, own_names

READ: TypeAdapter[list[Message]] = TypeAdapter(RunAgentInput.model_fields["messages"].annotation)
SPELLED = re.compile(r"<\|[^|<>]{1,40}\|>|<｜[^｜<>]{1,40}｜>|</?[a-z_]{2,30}>|\[/?[A-Z_]{3,30}\]")


def template_names() -> list[str]:
    shared = sorted(path.name for path in SHARED_TEMPLATES.glob("*.jinja"))
    return [*own_names(), *shared]


@lru_cache(maxsize=256)
def source_of(name: str) -> str:
    return (SHARED_TEMPLATES / name).read_text("utf-8") if name.endswith(".jinja") else own(name)


@lru_cache(maxsize=1)
def plain_tokenizer() -> str:
    return byte_level().to_str()


def tokenizer_of(source: str) -> Tokenizer:
    """One that has what the template spells like a control token as control tokens."""
    tokenizer = Tokenizer.from_str(plain_tokenizer())
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in sorted(set(SPELLED.findall(source)))])
    return tokenizer


@lru_cache(maxsize=256)
def files_of(name: str) -> ModelFiles:
    source = source_of(name)
    special = {"bos_token": "<bos>", "eos_token": "</s>"}
    return ModelFiles(tokenizer=tokenizer_of(source), templates={"default": source}, special_tokens=special)


def builder(name: str) -> PromptBuilder:
    return PromptBuilder(files_of(name), now=lambda: datetime(2030, 1, 2))


TOOLS = [
    Tool(
        name=name,
        description="Looks it up.",
        parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    )
    for name in ("get_weather", "think")
]


def asked(messages: list[dict[str, Any]]) -> RunAgentInput:
    read = READ.validate_python([{"id": f"m{place}", **message} for place, message in enumerate(messages)])
    return RunAgentInput(
        thread_id="t", run_id="r", state=None, messages=read, tools=TOOLS, context=[], forwarded_props=None
    )


def turn(number: int, text: str, reasoning: str, tool: str | None, result: str) -> list[dict[str, Any]]:
    """What a turn adds to its thread: a question, and an answer with thoughts, by way of a tool or not."""
    added: list[dict[str, Any]] = [{"role": "user", "content": f"{number} {text}"}]
    if reasoning:
        added.append({"role": "reasoning", "content": reasoning})
    if tool:
        call = {"name": tool, "arguments": '{"city": "Paris"}'}
        added.append(
            {"role": "assistant", "toolCalls": [{"id": f"call{number}", "type": "function", "function": call}]}
        )
        added.append({"role": "tool", "toolCallId": f"call{number}", "content": result})
    return [*added, {"role": "assistant", "content": f"answer {text}"}]


WORDS = st.sampled_from(
    ["Hello", "of </think> it", "<|im_end|>", "für 東京", "9 19 99", "  a\n\n", "</s> <bos>", "x" * 50]
)
TURNS = st.lists(
    st.tuples(WORDS, st.sampled_from(["", "Let me see."]), st.sampled_from([None, "get_weather", "think"]), WORDS),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("name", template_names())
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(turns=TURNS)
def test_a_prompt_has_the_ids_of_a_whole_rendering(name: str, turns: list[tuple[Any, ...]]):
    """Whatever was built before, in whatever thread, and whatever a template makes of earlier turns."""
    used, thread = builder_that_remembers(name), []
    for number, made in enumerate(turns):
        text = made[0]
        opening = [*thread, {"role": "user", "content": f"{number} {text}"}]
        prompt, whole = used.build(asked(opening), GenerationOptions()), built_whole(name, asked(opening))
        assert prompt.token_ids == whole.token_ids
        assert (prompt.text, prompt.opened) == (whole.text, whole.opened)
        thread += turn(number, *made)


@lru_cache(maxsize=256)
def builder_that_remembers(name: str) -> PromptBuilder:
    return builder(name)


def built_whole(name: str, input: RunAgentInput) -> Prompt:
    """By a builder that cuts nothing, renders twice and remembers nothing."""
    made = builder_that_renders_whole(name)
    return made.build(input, GenerationOptions())


@lru_cache(maxsize=256)
def builder_that_renders_whole(name: str) -> PromptBuilder:
    made = builder(name)
    controls = made._controls

    def whole(text: str, stand_ins: Any = None, pattern: str = "", most: int | None = None) -> list[int]:
        return [number for _, ids in controls._stretches(text, stand_ins or {}, pattern, most) for number in ids]

    controls.encode = whole  # type: ignore[method-assign]
    for chat in made._chats.values():
        chat.template.prompts_last = False
    return made


class Counting:
    """A tokenizer that counts the characters it is given to encode."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.characters = 0

    def encode(self, text: str, **options: Any) -> Any:
        self.characters += len(text)
        return self._tokenizer.encode(text, **options)

    def encode_batch(self, texts: list[str], **options: Any) -> Any:
        self.characters += sum(map(len, texts))
        return self._tokenizer.encode_batch(texts, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


@pytest.mark.parametrize("name", ["hermes_think", "mistral_list", "deepseek_switch"])
def test_a_later_turn_costs_its_new_messages(name: str):
    source = own(name)
    tokenizer = Counting(tokenizer_of(source))
    made = PromptBuilder(ModelFiles(tokenizer=tokenizer, templates={"default": source}))  # type: ignore[arg-type]
    thread = [message for number in range(25) for message in turn(number, "words " * 60, "", "get_weather", "found")]
    made.build(asked([*thread, {"role": "user", "content": "And now?"}]), GenerationOptions())
    first, tokenizer.characters = tokenizer.characters, 0
    later = [*thread, {"role": "user", "content": "And now?"}, *turn(26, "more", "", None, "")[1:]]
    made.build(asked([*later, {"role": "user", "content": "Then?"}]), GenerationOptions())
    assert first > 10_000
    assert 0 < tokenizer.characters < 400, "no more than the new messages, with what the template writes around them"


NEWEST_MARKED = """{% for message in messages -%}
<|im_start|>{{ message.role }}{% if loop.last %} (newest){% endif %}\n{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"""


def test_an_earlier_message_that_is_written_differently_later():
    files = ModelFiles(tokenizer=tokenizer_of(NEWEST_MARKED), templates={"default": NEWEST_MARKED})
    made = PromptBuilder(files)
    thread = [{"role": "user", "content": "Hi"}]
    first = made.build(asked(thread), GenerationOptions())
    thread += [{"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Thanks"}]
    later = made.build(asked(thread), GenerationOptions())
    assert "user (newest)Hi" in first.text and "userHi" in later.text
    assert made.detokenize(first.token_ids) == first.text
    assert made.detokenize(later.token_ids) == later.text


MIXED = st.lists(
    st.sampled_from([*CONTROL, *PLAIN_ADDED, "hello", " ", "the ", "a", "\n", "  ", "für", "<", "<|", "|>", "9", "12"]),
    max_size=14,
).map("".join)


@lru_cache(maxsize=8)
def controls_of(kind: str) -> ControlTokens:
    return ControlTokens(KINDS[kind]())


@pytest.mark.parametrize("kind", sorted(KINDS))
@given(text=MIXED, spelled=MIXED, behind=MIXED)
def test_segments_have_the_ids_of_the_whole_text(kind: str, text: str, spelled: str, behind: str):
    controls = controls_of(kind)
    assert controls.encode(text) == controls._encoded(controls._tokenizer, text).ids
    escaper = ControlTokenEscaper(controls, spelled)
    covered = text + escaper.cover(spelled) + behind
    whole = [
        number for _, ids in controls._stretches(covered, escaper.stand_ins, escaper.pattern, None) for number in ids
    ]
    for _ in range(2):
        assert controls.encode(covered, escaper.stand_ins, escaper.pattern) == whole


QUIRKS = {
    "takes white space before it": {"lstrip": True},
    "takes white space behind it": {"rstrip": True},
    "is a word of its own": {"single_word": True},
    "begins with white space": {"content": " <x>"},
    "ends with a digit": {"content": "<x9"},
    "is normalised": {"normalized": True},
}


@pytest.mark.parametrize("quirk", QUIRKS)
@given(words=st.lists(st.sampled_from(["<x>", " <x>", "<x9", " ", "\n", "a", "A", "9", "<|im_end|>"]), max_size=10))
def test_control_tokens_with_quirks(quirk: str, words: list[str]):
    controls = controls_with(quirk)
    text = "".join(words)
    assert controls.encode(text) == controls._encoded(controls._tokenizer, text).ids
    escaper = ControlTokenEscaper(controls, text)
    covered = f"a<x{escaper.cover(text)}<x>"
    whole = [
        number for _, ids in controls._stretches(covered, escaper.stand_ins, escaper.pattern, None) for number in ids
    ]
    assert controls.encode(covered, escaper.stand_ins, escaper.pattern) == whole


@lru_cache(maxsize=8)
def controls_with(quirk: str) -> ControlTokens:
    tokenizer = KINDS["sentence_pieces"]() if quirk == "is normalised" else Tokenizer.from_str(plain_tokenizer())
    options = {"content": "<x>", "normalized": False, **QUIRKS[quirk]}
    tokenizer.add_special_tokens([AddedToken(**options)])
    return ControlTokens(tokenizer)


def test_digits_that_form_a_control_token_with_the_text_before_them():
    controls = controls_with("ends with a digit")
    for data in ("</s>", "</s> 9", "</s> 99"):  # each has stand-ins of its own
        escaper = ControlTokenEscaper(controls, data)
        covered = f"a<x{escaper.cover('</s>')}"
        whole = [
            number
            for _, ids in controls._stretches(covered, escaper.stand_ins, escaper.pattern, None)
            for number in ids
        ]
        assert controls.encode(covered, escaper.stand_ins, escaper.pattern) == whole


def test_a_tokenizer_that_takes_control_tokens_for_text():
    tokenizer = Tokenizer.from_str(plain_tokenizer())
    tokenizer.encode_special_tokens = True
    controls = ControlTokens(tokenizer)
    text = "the<|im_end|>the quick</s>brown"
    for _ in range(2):
        assert controls.encode(text) == tokenizer.encode(text, add_special_tokens=False).ids


def test_what_is_remembered_is_bounded():
    kept = SegmentCache(most_characters=1000)
    for number in range(50):
        kept.put(f"{number:04} " + "a" * 95, [number])
    assert kept.characters <= 1000
    assert kept.get(["0000 " + "a" * 95, "0049 " + "a" * 95])[0] is None
    assert list(kept.get(["0049 " + "a" * 95])[0] or ()) == [49]
    kept.put("b" * (segments.MAX_SEGMENT_CHARACTERS + 1), [1])
    assert kept.get(["b" * (segments.MAX_SEGMENT_CHARACTERS + 1)]) == [None]


def test_what_was_used_last_is_kept():
    kept = SegmentCache(most_characters=300)
    kept.put("first", [1])
    for number in range(20):
        kept.get(["first"])
        kept.put(f"other {number}", [2])
    assert kept.get(["first"])[0] is not None and kept.get(["other 0"]) == [None]


# --- the generation prompt, rendered together with the conversation


@pytest.mark.parametrize("name", template_names())
def test_the_generation_prompt_is_found_in_one_rendering(name: str):
    template = ChatTemplate(source_of(name), {"bos_token": "<bos>", "eos_token": "</s>"})
    if not template.prompts_last:
        return
    declared = [{"role": "functions", "content": "[]"}] if name == "role_of_functions" else []
    for messages in (
        [*declared, {"role": "user", "content": "Hi"}],
        [
            *declared,
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello", "reasoning_content": ""},
            {"role": "user", "content": "?"},
        ],
    ):
        text, place = template.render_prompt(messages)
        assert text == template.render(messages, add_generation_prompt=True)
        assert text[:place] == template.render(messages)


ASKED = "{% if add_generation_prompt %}<a>{% endif %}"
DEFAULT = "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"


@pytest.mark.parametrize(
    ("source", "last"),
    [
        (f"x{ASKED}", True),
        ("x{% if messages and add_generation_prompt %}<a>{% endif %}", True),
        (f"{DEFAULT}x{ASKED}", True),
        (f"{ASKED}y", False),
        (f"{ASKED}x{ASKED}", False),
        ("x{% if not add_generation_prompt %}<e>{% endif %}", False),
        ("x{% if messages or add_generation_prompt %}<e>{% endif %}", False),
        ("x{% if add_generation_prompt %}<a>{% else %}<e>{% endif %}", False),
        ("x{% if add_generation_prompt %}<a>{% elif messages %}<e>{% endif %}", False),
        ("{% for m in messages %}{% if loop.last and add_generation_prompt %}<a>{% endif %}{% endfor %}", False),
        ("{% set add_generation_prompt = false %}x" + ASKED, False),
        (
            "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = 1 %}{% else %}y{% endif %}"
            + ASKED,
            False,
        ),
        ("{% for", False),
    ],
)
def test_templates_that_ask_for_the_generation_prompt_last(source: str, last: bool):
    assert prompts_last(source) is last
