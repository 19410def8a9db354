"""Addresses, errors, dialects' bodies, text without ids, and grammars in xgrammar's words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot

from agent_server.engine_protocol.detokenizer import ByteVocabulary, TokenizerVocabulary
from agent_server.engine_protocol.protocol import Constraint, EngineError, GenerationRequest
from agent_server.engines.upstream import UpstreamAddress, load_model, parse_address
from agent_server.engines.upstream.dialects import DIALECTS, OutgoingRequest, UpstreamInfo
from agent_server.engines.upstream.errors import error_frame, message_of
from agent_server.engines.upstream.grammar import ConstraintVerifiers, for_llguidance, for_xgrammar
from agent_server.engines.upstream.model import UpstreamText
from agent_server.engines.upstream.transport import FrameSplitter
from agent_server.engines.vllm_inprocess import VLLMEngine, engine_arguments
from agent_server.http.engine_choice import StartupError, choose_engine
from agent_server.http.server import BUNDLED
from agent_server.model_files import load_model_files
from agent_server.settings import ComputeSettings
from events.grammar.lark import Unwritable
from events.options import SamplingParams
from tests.server import settings

CONTROLS = {0: "<|pad|>", 2: "<|im_end|>", 5: "<tool_call>", 6: "</tool_call>"}


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("http://host:8000", UpstreamAddress("http://host:8000")),
        ("http://host:8000/v1/", UpstreamAddress("http://host:8000", None, "k")),
        ("https://:secret@host/base/v1", UpstreamAddress("https://host/base", None, "secret")),
        ("vllm-tokens+http://[::1]:1", UpstreamAddress("http://[::1]:1", "vllm-tokens")),
    ],
)
def test_addresses(text: str, address: UpstreamAddress):
    assert parse_address(text, address.key if address.key == "k" else "") == address


@pytest.mark.parametrize("text", ["host:8000", "ftp://host", "tgi+http://host", "http://", "http://:8000"])
def test_what_is_no_address_is_said(text: str):
    with pytest.raises(ValueError, match=r"host|upstream|dialect"):
        parse_address(text)


def test_the_settings_choose_the_engine():
    given = settings(engine=("vllm",), dtype="float32", max_context=512, vllm={"enforce_eager": True})
    assert isinstance(choose_engine(given, str(BUNDLED), "demo"), VLLMEngine)
    assert engine_arguments(given.compute, given.served.vllm) == snapshot(
        {"scheduling_policy": "priority", "dtype": "float32", "max_model_len": 512, "enforce_eager": True}
    )


def test_every_setting_of_the_core_reaches_vllm_or_is_refused_by_name():
    """What is left out concerns our own core alone: its queue's order, what it keeps for runs that
    wait, and the threads of a CPU."""
    changed = {
        "device": "cuda", "dtype": "bfloat16", "trust_remote_code": True, "kv_cache_dtype": "fp8", "max_batch": 32,
        "step_tokens": 2048, "kv_cache_bytes": 2**30, "max_context": 4096, "num_speculative_tokens": 3,
        "cuda_graphs": False, "threads": 7, "max_queued": 7, "turns_ahead": 7, "kept_percent": 7, "kept_seconds": 7,
    }  # fmt: skip
    refused = {"quantize": "int8", "adapter": "folder", "chunk_tokens": 128}
    assert {*changed, *refused, "draft", "lora"} == {*ComputeSettings.model_fields}
    assert engine_arguments(ComputeSettings(**changed), {}) == snapshot(
        {
            "scheduling_policy": "priority",
            "dtype": "bfloat16",
            "trust_remote_code": True,
            "kv_cache_dtype": "fp8",
            "max_num_seqs": 32,
            "max_num_batched_tokens": 2048,
            "kv_cache_memory_bytes": 1073741824,
            "max_model_len": 4096,
            "enforce_eager": True,
            "speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4},
        }
    )
    for name, value in refused.items():
        with pytest.raises(StartupError, match=f"does not take --{name.replace('_', '-')}"):
            choose_engine(settings(engine=("vllm",), **{name: value}), str(BUNDLED), "demo")
    with pytest.raises(StartupError, match="CUDA_VISIBLE_DEVICES"):
        choose_engine(settings(engine=("vllm",), device="cuda:1"), str(BUNDLED), "demo")
    drafted = engine_arguments(ComputeSettings(draft="small"), {"tensor_parallel_size": 2})
    assert drafted == snapshot(
        {
            "scheduling_policy": "priority",
            "speculative_config": {"model": "small", "num_speculative_tokens": 5},
            "tensor_parallel_size": 2,
        }
    )


def test_the_ranks_of_adapters_reach_vllm(tmp_path):
    folders = {}
    for name, config in {"a": {"r": 8}, "b": {"r": 4, "rank_pattern": {"q_proj": 24}}, "c": {"r": 600}}.items():
        folders[name] = tmp_path / name
        folders[name].mkdir()
        (folders[name] / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", **config}))
    lora = tuple(f"{name}={folders[name]}" for name in "ab")
    assert engine_arguments(ComputeSettings(lora=lora), {}) == {
        "scheduling_policy": "priority", "enable_lora": True, "max_loras": 2, "max_lora_rank": 32,
    }  # fmt: skip
    with pytest.raises(ValueError, match="rank 512 at most, not 600"):
        engine_arguments(ComputeSettings(lora=(f"c={folders['c']}",)), {})
    with pytest.raises(StartupError, match=r"adapter_config\.json"):
        choose_engine(settings(engine=("vllm",), lora=(f"d={tmp_path}",)), str(BUNDLED), "demo")


async def test_vllm_that_is_not_installed_is_said():
    engine = VLLMEngine(lambda: load_model(str(BUNDLED), "demo"))
    with pytest.raises(EngineError, match="pip install 'agent-server"):
        await engine.start()
    assert engine.status.state == "failed"
    await engine.close()


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b'{"error": {"message": "no", "param": "top_p"}}', ("no", "top_p")),
        (b'{"detail": [{"msg": "x"}]}', ("[{'msg': 'x'}]", None)),
        (b'{"error": "plain\\n text"}', ("plain text", None)),
        (b"<html>\n", ("<html>", None)),
        (b"\xff\xfe", ("\ufffd\ufffd", None)),
        (b"x" * 1000, ("x" * 400 + "...", None)),
    ],
)
def test_errors_are_read_however_they_are_written(body: bytes, shown: tuple[str, str | None]):
    assert message_of(body) == shown


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "x", "code": 400}, "invalid_request"),
        ({"message": "x", "code": "400"}, "invalid_request"),
        ({"message": "exceeds the context size", "code": 400}, "context_length_exceeded"),
        ({"message": "EngineDeadError", "code": 500}, "connection"),
        ({"message": "x", "code": "server_error"}, "connection"),
        ("x", "connection"),
        ({"message": "busy", "code": 429}, "overloaded"),
    ],
)
def test_error_frames_have_kinds(error: Any, kind: str):
    assert error_frame(error).kind == kind


@given(st.lists(st.text("ab\r\n: {}", max_size=8), max_size=12), st.integers(1, 9))
def test_frames_do_not_depend_on_where_they_are_cut(lines: list[str], size: int):
    data = "".join(
        f"data: {line.strip() or 'x'}\n\n" for line in lines if "\n" not in line and "\r" not in line
    ).encode()
    whole = FrameSplitter().feed(data)
    splitter = FrameSplitter()
    assert [f for at in range(0, len(data), size) for f in splitter.feed(data[at : at + size])] == whole


SAMPLING = SamplingParams(
    temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, repetition_penalty=1.2, max_tokens=5, min_tokens=2, seed=2**64 - 1,
    stop=("x",), stop_token_ids=(9,), logprobs=3, logit_bias={4: -1.5}, presence_penalty=0.5, frequency_penalty=0.25,
    ignore_eos=True,
)  # fmt: skip


def body(name: str, **changes: Any) -> dict[str, Any]:
    request = GenerationRequest(request_id="r", prompt_token_ids=(65, 66), sampling=SAMPLING, **changes)
    served = UpstreamInfo(model="m")
    outgoing = OutgoingRequest(request=request, sampling=SAMPLING, served=served, vocabulary=ByteVocabulary())
    return json.loads(json.dumps(DIALECTS[name]().body(outgoing), default=list))


def test_what_vllm_is_asked():
    assert body("vllm", priority=3) == {
        "model": "m", "prompt": [65, 66], "stream": True, "stream_options": {"include_usage": True}, "request_id": "r",
        "return_token_ids": True, "add_special_tokens": False, "max_tokens": 5, "min_tokens": 2, "temperature": 0.5,
        "top_p": 0.9, "top_k": 7, "min_p": 0.1, "repetition_penalty": 1.2, "presence_penalty": 0.5,
        "frequency_penalty": 0.25, "logit_bias": {"4": -1.5}, "seed": 2**63 - 1, "stop_token_ids": [9],
        "ignore_eos": True, "skip_special_tokens": False, "spaces_between_special_tokens": False, "stop": ["x"],
        "logprobs": 3, "return_tokens_as_token_ids": True, "priority": -3,
    }  # fmt: skip


def test_what_sglang_is_asked():
    assert body("sglang") == {
        "rid": "r", "input_ids": [65, 66], "stream": True, "return_logprob": True, "top_logprobs_num": 3,
        "logprob_start_len": -1,
        "sampling_params": {
            "max_new_tokens": 5, "min_new_tokens": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1,
            "repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.25, "logit_bias": {"4": -1.5},
            "sampling_seed": 2**63 - 1, "stop": ["x"], "stop_token_ids": [9], "ignore_eos": True,
            "skip_special_tokens": False, "spaces_between_special_tokens": False,
        },
    }  # fmt: skip


def test_what_openai_is_asked():
    assert body("openai") == {
        "model": "m", "prompt": "AB", "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 5,
        "temperature": 0.5, "top_p": 0.9, "presence_penalty": 0.5, "frequency_penalty": 0.25, "seed": 2**63 - 1,
    }  # fmt: skip


def test_tenants_do_not_share_a_prefix_cache():
    salts = {tenant: body("vllm", tenant=tenant).get("cache_salt") for tenant in ("", "a", "b")}
    assert salts[""] is None and salts["a"] != salts["b"]
    assert body("vllm", tenant="a")["cache_salt"] == salts["a"] == body("sglang", tenant="a")["extra_key"]


def test_text_without_ids_reads_as_it_came():
    vocabulary = TokenizerVocabulary(load_model_files(BUNDLED).tokenizer)
    texts = UpstreamText(vocabulary, CONTROLS)
    decoder = texts.detokenizer()
    for piece in ("Hello, ", "<tool_call>\n{", "}</tool_call>🦉<|im_end|>", " é", ""):
        ids = texts.take(piece)
        assert "".join(map(decoder.push, ids)) == piece
        assert [number for number in ids if number in CONTROLS] == [
            number for mark, number in (("<tool_call>", 5), ("</tool_call>", 6), ("<|im_end|>", 2)) if mark in piece
        ]


# grammars


def tag(node: dict[str, Any]) -> Constraint:
    return Constraint(kind="structural_tag", value={"type": "structural_tag", "format": node})


CALL = {
    "type": "sequence",
    "elements": [
        {"type": "token", "token": 5},
        {"type": "json_schema", "json_schema": {"type": "object", "x-guidance": {"lenient": True}}},
        {"type": "token", "token": 6},
    ],
}


def test_text_in_xgrammars_words_holds_no_control_token():
    written = for_xgrammar(tag(CALL), CONTROLS).value["format"]
    schema = written["elements"][1]
    assert schema["json_schema"] == {"type": "object"} and schema["excludes"] == list(CONTROLS.values())
    free = for_xgrammar(tag({"type": "any_text", "excludes": ["x"]}), CONTROLS).value["format"]
    assert free == {"type": "any_text", "excludes": ["x", *CONTROLS.values()]}


def test_a_greedy_tag_and_a_triggers_excluded_tokens_are_rewritten():
    greedy = {"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": "\n", "greedy": True}
    written = for_xgrammar(tag(greedy), {}).value["format"]
    assert written["type"] == "sequence" and written["elements"][1] == {"type": "const_string", "value": "\n"}
    inner = {"type": "tag", "begin": "<f>", "content": {"type": "const_string", "value": "x"}, "end": "</f>"}
    triggered = {"type": "triggered_tags", "triggers": ["<f"], "tags": [inner], "exclude_tokens": [5, 2]}
    written = for_xgrammar(tag(triggered), CONTROLS).value["format"]
    assert "exclude_tokens" not in written and written["excludes"] == ["<tool_call>", "<|im_end|>"]


@pytest.mark.parametrize(
    "node",
    [
        {"type": "regex", "pattern": "a+", "not_pattern": "aa"},
        {"type": "regex", "pattern": "a+", "excludes": ["aa"]},
        {"type": "json_schema", "json_schema": {"type": "integer", "multipleOf": 3}},
        {"type": "json_schema", "json_schema": {"properties": {"a": {"not": {}}}}},
        {"type": "grammar", "grammar": "start: /x/", "syntax": "lark"},
        {"type": "star", "content": {"type": "unheard_of"}},
    ],
    ids=lambda node: json.dumps(node)[:40],
)
def test_what_xgrammar_would_not_enforce_is_refused(node: dict[str, Any]):
    with pytest.raises(Unwritable):
        for_xgrammar(tag(node), CONTROLS)


def test_names_of_properties_are_no_keywords():
    schema = {"type": "object", "properties": {"not": {"type": "string"}, "contains": {"enum": [{"not": 1}]}}}
    written = for_xgrammar(tag({"type": "json_schema", "json_schema": schema}), {}).value["format"]
    assert written["json_schema"] == schema


def test_llguidance_gets_the_embedded_engines_grammar():
    grammar = for_llguidance(tag(CALL), tuple(CONTROLS))
    assert grammar.kind == "lark" and "<[5]>" in grammar.value and "%json" in grammar.value
    assert for_llguidance(Constraint(kind="lark", value="start: /x/"), ()).value.startswith("%llguidance {}")
    unknown = tag({"type": "dispatch", "rules": []})
    assert for_llguidance(unknown, ()) == type(grammar)("structural_tag", unknown.value)


def test_a_token_that_does_not_belong_is_found():
    files = load_model_files(BUNDLED)
    verifiers = ConstraintVerifiers(TokenizerVocabulary(files.tokenizer), 1536, frozenset(files.stop_token_ids), ())
    encode = TokenizerVocabulary(files.tokenizer).encode
    verifier = verifiers.verifier(Constraint(kind="regex", value="[0-9]{3}"))
    for number in encode("12"):
        verifier.token(number, ends=False)
    with pytest.raises(EngineError, match="grammar does not allow"):
        verifier.token(2, ends=True)
    with pytest.raises(EngineError, match="grammar does not allow"):
        verifier.token(encode("x")[0], ends=False)
    whole = verifiers.verifier(Constraint(kind="regex", value="[0-9]{3}"))
    for number in encode("123"):
        whole.token(number, ends=False)
    whole.token(2, ends=True)


@pytest.mark.parametrize("kind", ["json_schema", "structural_tag"])
def test_white_space_of_json_is_no_fault(kind: Any):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    value = schema if kind == "json_schema" else tag({"type": "json_schema", "json_schema": schema}).value
    files = load_model_files(BUNDLED)
    vocabulary = TokenizerVocabulary(files.tokenizer)
    verifier = ConstraintVerifiers(vocabulary, 1536, frozenset(files.stop_token_ids), ()).verifier(
        Constraint(kind=kind, value=value)
    )
    for number in vocabulary.encode('{\n  "a" : 1\n}'):
        verifier.token(number, ends=False)
    verifier.token(2, ends=True)
