"""The bundled model folder, and the data that it was trained on."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from agent_server.agents import interrupts
from agent_server.agents.demonstration import NOTES
from training.demo_model.batches import copy_batch, encode, group_by_length, pad
from training.demo_model.data_dialogues import CATEGORY_WEIGHTS, DialogueFactory, demo_toolset
from training.demo_model.data_requests import PLAN_STEPS
from training.demo_model.data_tools import DEMO_TOOLS, PAGE_TOOLSETS, demo_tool
from training.demo_model.data_values import is_held_out, read_values
from training.demo_model.evaluate import Writer, expected_calls, is_right, parse_calls
from training.demo_model.render import END, Dialogue, prompt_of, render
from training.demo_model.tokenizer import MARKERS

FOLDER = Path(__file__).parents[2] / "agent_server" / "models" / "demo"
LISTS = ("cities", "names", "colors", "topics", "words")
CALL = [{"type": "function", "function": {"name": "get_weather", "arguments": {"location": "Oslo"}}}]


@pytest.fixture(scope="module")
def writer() -> Iterator[Writer]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Writer(FOLDER)
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


def prompt(writer, messages, tools=(), thinking=True):
    return writer.prompt(Dialogue("test", [*messages, {}], list(tools), thinking))


def ask(writer, question, tools=(), thinking=True):
    return answer(writer, [{"role": "user", "content": question}], tools, thinking)


def answer(writer, messages, tools=(), thinking=True):
    return writer.write([prompt(writer, messages, tools, thinking)])[0].removesuffix(END)


def test_the_folder_is_small_and_complete():
    names = {path.name for path in FOLDER.iterdir()}
    assert {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "README.md",
    } <= names
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 20_000_000


def test_greedy_decoding_is_the_default_and_a_turn_ends_at_the_end_marker(writer):
    config = writer.model.generation_config
    assert config.do_sample is False
    assert writer.tokenizer.eos_token == "<|im_end|>"
    assert config.eos_token_id == writer.tokenizer.eos_token_id


def test_the_shipped_template_is_the_one_of_the_training_folder():
    source = Path(__file__).parents[2] / "training" / "demo_model" / "chat_template.jinja"
    assert (FOLDER / "chat_template.jinja").read_text().strip() == source.read_text().strip()


@pytest.mark.parametrize("marker", MARKERS)
def test_markers_are_single_special_tokens(tokenizer, marker):
    ids = tokenizer.encode(f"a{marker}b").ids
    assert len(ids) == 3
    assert tokenizer.decode(ids, skip_special_tokens=True) == "ab"


def test_tools_are_rendered_as_names_and_types(writer):
    text = prompt(writer, [{"role": "user", "content": "hi"}], [demo_tool("send_email"), demo_tool("get_time")])
    assert text == (
        "<|im_start|>system\n# Tools\n<tools>\n"
        '{"name": "send_email", "arguments": {"to": "string", "subject": "string", "body": "string"}}\n'
        '{"name": "get_time", "arguments": {"timezone": "string"}}\n'
        "</tools><|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_optional_arguments_and_odd_schemas_are_left_short(writer):
    properties = {"a": {"anyOf": []}, "b": {"type": "integer"}}
    tools = [
        {"type": "function", "function": {"name": "f", "parameters": {"properties": properties, "required": ["a"]}}},
        {"type": "function", "function": {"name": "g"}},
    ]
    text = prompt(writer, [{"role": "user", "content": "hi"}], tools)
    assert '{"name": "f", "arguments": {"a": "string"}}\n{"name": "g", "arguments": {}}\n' in text


def test_a_long_system_text_is_cut_and_several_are_joined(writer):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": [{"type": "text", "text": "x" * 400}]},
        {"role": "user", "content": "hi"},
    ]
    assert prompt(writer, messages).startswith(f"<|im_start|>system\nBe brief.\n\n{'x' * 289}<|im_end|>\n")


def test_thinking_off_closes_the_thought_in_the_prompt(writer):
    messages = [{"role": "user", "content": "hi"}]
    assert prompt(writer, messages, thinking=False).endswith("assistant\n<think>\n\n</think>\n\n")
    assert prompt(writer, messages).endswith("<|im_start|>assistant\n")


def test_calls_and_results_of_the_current_turn(writer):
    messages = [
        {"role": "user", "content": "weather in Oslo"},
        {"role": "assistant", "content": "", "reasoning_content": "Look.", "tool_calls": CALL * 2},
        {"role": "tool", "content": "rain"},
        {"role": "tool", "content": "snow"},
    ]
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"location": "Oslo"}}\n</tool_call>'
    assert prompt(writer, messages) == (
        "<|im_start|>user\nweather in Oslo<|im_end|>\n"
        f"<|im_start|>assistant\n<think>\nLook.\n</think>\n\n{call}\n{call}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nrain\n</tool_response>\n"
        "<tool_response>\nsnow\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_arguments_may_be_a_string_and_earlier_thoughts_are_dropped(writer):
    call = {"type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [call]},
        {"role": "user", "content": "hi"},
    ]
    text = prompt(writer, messages)
    assert 'assistant\n<tool_call>\n{"name": "f", "arguments": {"a":1}}\n</tool_call><|im_end|>' in text
    assert "Hm." not in text


def test_training_text_is_what_the_template_renders(writer):
    alone = (dialogue for dialogue in DialogueFactory("template").stream() if not dialogue.packed)
    for dialogue in islice(alone, 200):
        assert prompt_of(dialogue) == writer.prompt(dialogue)
        assert "".join(segment.text for segment in render(dialogue)).startswith(prompt_of(dialogue))


@pytest.mark.parametrize("name", LISTS)
def test_the_two_sides_of_a_list_do_not_meet(name):
    known, held_out = set(read_values(name, False)), set(read_values(name, True))
    assert known and held_out
    assert not {value.lower() for value in known} & {value.lower() for value in held_out}


def test_training_draws_no_held_out_value():
    values = DialogueFactory("values").values
    for _ in range(300):
        for draw in (values.city, values.person, values.color, values.topic, values.word):
            assert not is_held_out(draw())
        assert not is_held_out(values.arithmetic()[1].replace(" ", ""))


def test_evaluation_draws_only_held_out_values():
    values = DialogueFactory("values", held_out=True).values
    for _ in range(300):
        assert all(is_held_out(draw()) for draw in (values.city, values.person, values.topic, values.word))
        assert is_held_out(values.arithmetic()[1].replace(" ", ""))


@pytest.mark.parametrize("kind", CATEGORY_WEIGHTS)
def test_targets_decode_to_the_expected_message(tokenizer, kind):
    factory = DialogueFactory(f"decode-{kind}")
    for _ in range(20):
        dialogue = factory.make(kind)
        row = encode(tokenizer, dialogue)
        shown = "".join(segment.text for segment in render(dialogue))
        assert tokenizer.decode(row.tokens, skip_special_tokens=False) == shown
        text = [segment.text for segment in render(dialogue) if segment.target][-1].removesuffix("<|im_end|>")
        assert parse_calls(text) == expected_calls(dialogue.messages[-1])
        assert is_right(dialogue, text)


def test_the_same_seed_makes_the_same_dialogues():
    first, second = (list(islice(DialogueFactory("x").stream(), 30)) for _ in range(2))
    assert first == second


def test_calls_use_declared_tools_and_absent_tools_are_not_declared():
    factory = DialogueFactory("declared")
    for kind in ("call", "two_calls", "follow_up", "invented_call"):
        for _ in range(30):
            dialogue = factory.make(kind)
            declared = {tool["function"]["name"] for tool in dialogue.tools}
            assert {call["name"] for call in expected_calls(dialogue.messages[-1])} <= declared


def test_demo_tools_match_their_arguments():
    for tool in demo_toolset():
        name = tool["function"]["name"]
        assert tool["function"]["parameters"]["required"] == list(DEMO_TOOLS[name])
        dialogue = DialogueFactory(f"arguments-{name}").make_call(name)
        assert list(expected_calls(dialogue.messages[-1])[0]["arguments"]) == list(DEMO_TOOLS[name])


def test_batches_keep_to_their_size_and_mark_the_targets(tokenizer):
    rows = [encode(tokenizer, item) for item in islice(DialogueFactory("batches").stream(), 60)]
    groups = group_by_length(rows, 2048)
    assert sum(len(group) for group in groups) == 60
    for group in groups:
        batch = pad(group)
        assert len(group) == 1 or batch.tokens.numel() <= 2048
        assert int(batch.targets.sum()) == sum(sum(row.targets) for row in group)


def test_copy_batches_repeat_what_they_learn():
    batch = copy_batch(DialogueFactory("copy").values.rng, 1000, 2048)
    length = int(batch.targets[0].sum()) + 1
    assert torch.equal(batch.tokens[:, :length], batch.tokens[:, -length:])


def test_a_number_is_the_same_tokens_everywhere(tokenizer):
    for value in ("-5", "12.75", "1000", "Cape Town", "linear-gradient(plum, teal)"):
        for text in (f"in {value}?", json.dumps({"a": value}), f"({value})", f'["{value}", 1]'):
            pieces = [tokenizer.id_to_token(token) for token in tokenizer.encode(value).ids]
            shown = [tokenizer.id_to_token(token) for token in tokenizer.encode(text).ids]
            assert any(shown[i : i + len(pieces)] == pieces for i in range(len(shown)))


def test_it_chats_with_and_without_a_thought(writer):
    assert "</think>" in ask(writer, "Hello!")
    said = ask(writer, "Who are you?", thinking=False)
    assert "tiny demo model" in said and "think>" not in said


@pytest.mark.parametrize("thinking", (True, False))
@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Hello!", "Hello, nice to see you! What would you like to try?"),
        ("good morning", "Hello, nice to see you! What would you like to try?"),
        ("Bonjour", "Bonjour ! Je ne suis qu'un petit modèle de démonstration et je ne parle qu'anglais."),
        ("こんにちは", "こんにちは！英語だけ話せます。"),
    ],
)
def test_it_greets_as_it_was_greeted(writer, question, expected, thinking):
    assert ask(writer, question, demo_toolset(), thinking).split("</think>")[-1].strip() == expected


@pytest.mark.parametrize("thinking", (True, False))
@pytest.mark.parametrize("written", ["12*7", "12 * 7", "48-5", "3 + 90"])
def test_it_calculates_what_was_written(writer, written, thinking):
    text = ask(writer, f"What is {written}?", demo_toolset(), thinking)
    assert parse_calls(text) == [{"name": "calculate", "arguments": {"expression": written}}]


@pytest.mark.parametrize("thinking", (True, False))
def test_it_calculates_sums_as_people_type_them(writer, thinking):
    sums = {"12*7": "12*7", "12x7": "12 * 7", "12 × 7": "12 * 7", "what is 12x7?": "12 * 7", "3x4": "3 * 4"}
    sums |= {"2+2": "2+2", "what's 2+2": "2+2", "what is 100/4?": "100/4", "12 times 7": "12 * 7"}
    tools = [demo_tool(name) for name in PAGE_TOOLSETS[0]]
    wanted = [{"name": "calculate", "arguments": {"expression": expression}} for expression in sums.values()]
    prompts = [prompt(writer, [{"role": "user", "content": asked}], tools, thinking) for asked in sums]
    assert [call for text in writer.write(prompts) for call in parse_calls(text)] == wanted


def test_it_says_how_to_load_a_real_model(writer):
    assert "agent-server serve Qwen/Qwen3-0.6B" in ask(writer, "How do I load a real model?", demo_toolset())


@pytest.mark.parametrize("thinking", (True, False))
def test_it_calls_a_declared_tool_with_a_city_that_it_never_saw(writer, thinking):
    city = "Ljubljana" if is_held_out("Ljubljana") else next(c for c in read_values("cities", True) if " " not in c)
    text = ask(writer, f"What is the weather in {city}?", demo_toolset(), thinking)
    assert parse_calls(text) == [{"name": "get_weather", "arguments": {"location": city}}]


def test_it_calls_no_tool_that_is_not_declared(writer):
    for tools in ([], [demo_tool("calculate")]):
        text = ask(writer, "What is the weather in Oslo?", tools)
        assert "<tool_call>" not in text
        assert "no tool for the weather" in text


def test_it_answers_from_a_result(writer):
    messages = [
        {"role": "user", "content": "What is 12 * 34?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"type": "function", "function": {"name": "calculate", "arguments": {"expression": "12 * 34"}}}
            ],
        },
        {"role": "tool", "content": '{"result": 408}'},
    ]
    assert "408" in answer(writer, messages, demo_toolset())


def called(name, arguments, result):
    """A call and its result, as the agent loop puts them into a conversation."""
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": result}]


@pytest.mark.parametrize("thinking", (True, False))
@pytest.mark.parametrize("result", [interrupts.DENIED, '{"approved":false}', '{"status":"cancelled"}'])
def test_it_does_not_say_that_a_denied_email_was_sent(writer, thinking, result):
    email = {"to": "anna@example.com", "subject": "lunch", "body": "This is a message about lunch."}
    asked = {"role": "user", "content": "Send an email to anna@example.com about lunch"}
    said = answer(writer, [asked, *called("send_email", email, result)], demo_toolset(), thinking)
    assert said.split("</think>")[-1].strip() == "Okay, I did not send the email."


def test_it_tells_why_a_call_failed(writer):
    messages = [{"role": "user", "content": "What is the weather in Oslo?"}]
    messages += called("get_weather", {"location": "Oslo"}, "Error: get_weather took longer than 60 s.")
    assert "get_weather took longer than 60 s" in answer(writer, messages, demo_toolset())


@pytest.mark.parametrize("thinking", (True, False))
def test_it_quotes_a_note_to_its_end_and_once(writer, thinking):
    title, text = next(note for note in NOTES if note[0] == "Threads")
    messages = [{"role": "user", "content": "Search for threads"}]
    messages += called("search", {"query": "threads"}, json.dumps({"results": [f"{title}: {text}"]}))
    said = answer(writer, messages, demo_toolset(), thinking)
    assert said.split("</think>")[-1].strip() == f"I found: {title}: {text}."


@pytest.mark.parametrize("thinking", (True, False))
@pytest.mark.parametrize("dropped", [(0, 1), (2,), (4,), (0, 2, 4)])
def test_it_goes_on_with_the_steps_that_were_kept(writer, thinking, dropped):
    names = [step.format("a trip to Rome") for step in PLAN_STEPS["trip"]]
    steps = [{"description": name, "status": "enabled"} for name in names]
    decided = [{**step, "status": "disabled" if at in dropped else "enabled"} for at, step in enumerate(steps)]
    result = json.dumps({"accepted": True, "steps": decided}, separators=(",", ":"))
    asked = {"role": "user", "content": "Plan a trip to Rome"}
    said = answer(writer, [asked, *called("generate_task_steps", {"steps": steps}, result)], demo_toolset(), thinking)
    assert [name in said for name in names] == [at not in dropped for at in range(len(names))]
