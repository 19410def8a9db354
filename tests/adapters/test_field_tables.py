"""The tables of request fields are true: complete, and what they say is what the adapters do."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from adapters import anthropic_messages, openai_chat, openai_completions, openai_responses
from adapters.body import Inbound, Notes, noting
from adapters.errors import RequestError
from events.sampling import PARAMETERS
from tests.adapters.field_tables import COMPACT, DECISIONS, EMBEDDINGS, TABLES, TRANSCRIPTIONS, Table, document

PAGE = Path(__file__).parents[2] / "docs" / "openai-fields.md"
Parse = Callable[..., Inbound]

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
FLAT_TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
USER = [{"role": "user", "content": "Hi"}]
PREFILL = [*USER, {"role": "assistant", "content": "It"}]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}

# field → (a value that asks for something, other fields that it needs)
COMMON: dict[str, tuple[Any, dict[str, Any]]] = {
    **{name: (msgspec.to_builtins(parameter.example, str_keys=True), {}) for name, parameter in PARAMETERS.items()},
    "n": (2, {}), "model": ("m", {}), "stream": (True, {}),
    "stream_options": ({"include_usage": True}, {"stream": True}), "user": ("u", {}), "metadata": ({"k": "v"}, {}),
    "return_token_ids": (True, {}), "structured_outputs": ({"regex": "a+"}, {}), "response_format": (SCHEMA, {}),
    "chat_template_kwargs": ({"a": 1}, {}), "enable_thinking": (True, {}), "safety_identifier": ("s", {}),
    "parallel_tool_calls": (False, {}), "prompt_cache_key": ("k", {}), "prompt_cache_retention": ("24h", {}),
    "prompt_cache_options": ({"mode": "implicit"}, {}), "service_tier": ("flex", {}),
    "include_stop_str_in_output": (True, {}), "add_special_tokens": (True, {}), "cache_prompt": (False, {}),
    "id_slot": (2, {}), "n_keep": (9, {}), "n_cache_reuse": (3, {}), "request_id": ("r", {}),
    "guided_decoding_backend": ("xgrammar", {}), "mm_processor_kwargs": ({"a": 1}, {}),
    "kv_transfer_params": ({"a": 1}, {}), "priority": (5, {}), "cache_salt": ("s", {}), "spaces_between_special_tokens": (False, {}),
    "return_progress": (True, {}), "timings_per_token": (True, {}), "use_beam_search": (True, {}),
    "length_penalty": (2.0, {}), "mirostat": (2, {}), "dynatemp_range": (0.5, {}), "dry_multiplier": (0.8, {}),
    "xtc_probability": (0.5, {}), "top_n_sigma": (1.0, {}), "skip_special_tokens": (False, {}),
    "prompt_logprobs": (1, {}), "truncate_prompt_tokens": (5, {}), "truncation_side": ("right", {}),
    "guided_json": ('{"type": "object"}', {}), "guided_regex": ("a+", {}), "guided_choice": (["a", "b"], {}),
    "guided_grammar": ("start: /a/", {}),
    "regex": ("a+", {}), "ebnf": ('root ::= "a"', {}), "guided_whitespace_pattern": (" ", {}), "vllm_xargs": ({"a": 1}, {}),
    "media_io_kwargs": ({"a": 1}, {}), "return_tokens_as_token_ids": (True, {}), "return_tokens": (True, {}),
    "logits_processors": (["x"], {}), "documents": ([{"text": "x"}], {}), "grammar": ("root ::= a", {}),
    "json_schema": ({"type": "object"}, {}), "n_probs": (3, {}), "post_sampling_probs": (True, {}),
    "min_keep": (3, {}), "repeat_penalty": (1.2, {}), "repeat_last_n": (64, {}), "samplers": (["top_k"], {}),
    "mirostat_tau": (5.0, {}), "mirostat_eta": (0.1, {}), "dynatemp_exponent": (1.0, {}), "dry_base": (1.75, {}),
    "dry_allowed_length": (2, {}), "dry_penalty_last_n": (-1, {}), "dry_sequence_breakers": (["x"], {}),
    "xtc_threshold": (0.1, {}), "n_discard": (0, {}), "n_indent": (0, {}), "t_max_predict_ms": (9, {}),
    "lora": ([{"id": 0}], {}), "reasoning_format": ("auto", {}), "thinking_forced_open": (True, {}),
    "parse_tool_calls": (True, {}),
}  # fmt: skip
CHAT = COMMON | {
    "messages": ([{"role": "user", "content": "Bye"}], {}), "max_completion_tokens": (5, {}), "logprobs": (True, {}),
    "top_logprobs": (2, {"logprobs": True}), "reasoning_effort": ("low", {}), "store": (True, {}),
    "tools": ([TOOL], {}), "tool_choice": ("required", {"tools": [TOOL]}), "thinking": (True, {}),
    "reasoning": ({"effort": "low"}, {}), "include_reasoning": (False, {}), "delivery": ("adaptive", {}),
    "continue_final_message": (True, {"messages": PREFILL}), "boundaries": ("strict", {}),
    "constrain_tools": (False, {}), "verbosity": ("low", {}), "modalities": (["audio"], {}), "audio": ({"a": 1}, {}),
    "function_call": ({"name": "f"}, {"functions": [{"name": "f"}]}), "functions": ([{"name": "f"}], {}), "moderation": ({"model": "m"}, {}),
    "prediction": ({"type": "content", "content": "x"}, {}), "web_search_options": ({"a": 1}, {}), "echo": (True, {}),
    "include_stop_str_in_output": (True, {}),
    "add_generation_prompt": (False, {}),
}  # fmt: skip
RESPONSES = COMMON | {
    "input": ("Bye", {}), "background": (True, {}), "background_options": ({"completion_window": "8h"}, {}), "include": (["reasoning.encrypted_content"], {}),
    "instructions": ("Be brief.", {}), "max_output_tokens": (5, {}), "previous_response_id": ("resp_1", {}),
    "reasoning": ({"effort": "low"}, {}), "store": (False, {}), "text": ({"format": {"type": "json_object"}}, {}),
    "stream_options": ({"include_obfuscation": False}, {}),
    "tools": ([FLAT_TOOL], {}), "tool_choice": ("required", {"tools": [FLAT_TOOL]}),
    "top_logprobs": (2, {"include": ["message.output_text.logprobs"]}), "truncation": ("auto", {}),
    "context_management": ([{"type": "compaction"}], {}), "access_programs": ({"cyber": "standard"}, {}),
    "client_metadata": ({"k": "v"}, {}), "conversation": ("c", {}), "image": ({"context_compression": "auto"}, {}), "max_tool_calls": (1, {}),
    "moderation": ({"model": "m"}, {}), "prompt": ({"id": "p"}, {}),
}  # fmt: skip
COMPLETIONS = COMMON | {
    "prompt": ("Bye", {}), "best_of": (3, {}), "echo": (True, {}), "logprobs": (2, {}), "suffix": ("x", {}),
    "include_stop_str_in_output": (True, {}),
}  # fmt: skip
ANTHROPIC = COMMON | {
    "messages": ([{"role": "user", "content": "Bye"}], {}), "metadata": ({"user_id": "u"}, {}),
    "output_config": ({"effort": "low"}, {}), "stop_sequences": (["x"], {}), "system": ("Be brief.", {}),
    "thinking": ({"type": "enabled", "budget_tokens": 1024}, {}), "tools": ([{"name": "f", "input_schema": {}}], {}),
    "tool_choice": ({"type": "any"}, {"tools": [{"name": "f", "input_schema": {}}]}),
    "cache_control": ({"type": "ephemeral"}, {}), "context_management": ({"edits": []}, {}), "speed": ("fast", {}),
    "service_tier": ("batch", {}), "container": ({"id": "c"}, {}), "diagnostics": ({"a": 1}, {}),
    "inference_geo": ("eu", {}), "mcp_servers": ([{"type": "url", "name": "m", "url": "http://m"}], {}), "user_profile_id": ("u", {}), "workspace_id": ("w", {}),
    "thread": ({"type": "create"}, {}),
    "output_format": ({"type": "json_schema", "schema": {"type": "object"}}, {}),
}  # fmt: skip

WIRES: dict[str, tuple[Parse, dict[str, Any], dict[str, tuple[Any, dict[str, Any]]]]] = {
    "/v1/chat/completions": (openai_chat.parse, {"messages": USER}, CHAT),
    "/v1/responses": (openai_responses.parse, {"input": "Hi"}, RESPONSES),
    "/v1/completions": (openai_completions.parse, {"prompt": "Hi"}, COMPLETIONS),
    "/v1/messages": (anthropic_messages.parse, {"messages": USER, "max_tokens": 9}, ANTHROPIC),
}
CASES = [pytest.param(table, name, id=f"{table.title} {name}") for table in TABLES for name in table.fields]


def read(table: Table, **fields: Any) -> Any:
    """What a request comes to, as plain data."""
    parse, base, _ = WIRES[table.path]
    counter = itertools.count()
    inbound = parse(json.dumps({**base, **fields}).encode(), new_id=lambda prefix: f"{prefix}{next(counter)}")
    found = msgspec.to_builtins(inbound, enc_hook=lambda value: value.model_dump(mode="json"))
    if table.path == "/v1/responses":
        found["extra"].pop("echo", None)
    return found


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == document(), "run: python -m tests.adapters.field_tables > docs/openai-fields.md"


ALL = (*TABLES, COMPACT, DECISIONS, EMBEDDINGS, TRANSCRIPTIONS)


@pytest.mark.parametrize("table", ALL, ids=[table.title for table in ALL])
def test_every_field_of_the_package_has_a_row(table: Table) -> None:
    assert not set(table.package) - set(table.fields)


@pytest.mark.parametrize(("table", "name"), CASES)
def test_a_field_does_what_its_row_says(table: Table, name: str) -> None:
    value, needs = WIRES[table.path][2][name]
    field = table.fields[name]
    if field.status == "refused":
        with pytest.raises(RequestError) as caught:
            read(table, **needs, **{name: value})
        assert (caught.value.kind, caught.value.param) == ("invalid_request", name)
        for neutral in (None, *field.neutral):
            assert read(table, **{name: neutral}) == read(table)
        return
    if field.warns:
        with noting(Notes()) as notes:
            assert read(table, **{name: value}) == read(table)
            assert notes.warnings == [f"{name} changes nothing: {field.note}."]
        return
    changed = read(table, **{**needs, name: value}) != read(table, **needs)
    inert = {"stream_options"} if table.path == "/v1/responses" else set()
    assert changed == (field.status == "honoured" and name not in inert)
    if name not in WIRES[table.path][1]:
        assert read(table, **{name: None}) == read(table)


@pytest.mark.parametrize("table", TABLES, ids=[table.title for table in TABLES])
def test_an_unknown_field_is_left_out_with_a_note(table: Table) -> None:
    with noting(Notes()) as notes:
        assert read(table, frobnicate=None) == read(table, frobnicate={"a": [1]}) == read(table)
    assert notes.unknown == ["frobnicate"]
    with noting(Notes(strict=True)), pytest.raises(RequestError) as caught:
        read(table, frobnicate=None)
    assert caught.value.param == "frobnicate"
