"""Every sampling parameter is sent, honoured here, or refused by name: by each dialect, with nothing left to memory."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from agent_server.engine_protocol.detokenizer import ByteVocabulary
from agent_server.engine_protocol.protocol import EngineError, EngineInfo, GenerationRequest, check_supported
from agent_server.engines.upstream.dialects import DIALECTS, Dialect, OutgoingRequest, UpstreamInfo
from agent_server.engines.upstream.dialects.dialect import HERE
from agent_server.generation.core.generation import HONOURED
from events.options import SamplingParams
from events.sampling import PARAMETERS

UPSTREAM_PAGE = Path(__file__).parents[3] / "docs" / "upstream.md"
FOUND_HERE = {
    "vllm": set(),
    "vllm-tokens": {"stop"},
    "sglang": set(),
    "llamacpp": {"stop", "stop_token_ids"},
    "openai": {"stop", "stop_token_ids"},
}
"""What `Output` finds in the tokens that come back, whichever dialect sent them."""
CASES = [pytest.param(name, parameter, id=f"{name} {parameter}") for name in DIALECTS for parameter in PARAMETERS]


def request_with(sampling: SamplingParams) -> GenerationRequest:
    return GenerationRequest(request_id="r", prompt_token_ids=(65, 66), sampling=sampling)


def body_of(dialect: Dialect, sampling: SamplingParams) -> bytes:
    outgoing = OutgoingRequest(
        request=request_with(sampling), sampling=sampling, served=UpstreamInfo(model="m"), vocabulary=ByteVocabulary()
    )
    return msgspec.json.encode(dialect.body(outgoing))


def info_of(dialect: Dialect) -> EngineInfo:
    return EngineInfo(model="m", context_length=99, vocab_size=256, sampling=frozenset(dialect.words))


@pytest.mark.parametrize(("name", "parameter"), CASES)
def test_a_parameter_is_sent_or_found_here_or_refused(name: str, parameter: str):
    dialect = DIALECTS[name]()
    sampling = SamplingParams(**{parameter: PARAMETERS[parameter].example})
    word = dialect.words.get(parameter)
    if word is None:
        with pytest.raises(EngineError) as caught:
            check_supported(request_with(sampling), info_of(dialect))
        assert (caught.value.kind, caught.value.param) == ("invalid_request", parameter)
        return
    check_supported(request_with(sampling), info_of(dialect))
    assert (parameter in FOUND_HERE[name]) == (word is HERE)
    changed = body_of(dialect, sampling) != body_of(dialect, SamplingParams())
    assert changed == (word is not HERE)


@pytest.mark.parametrize("name", DIALECTS)
def test_no_dialect_has_words_for_what_is_no_parameter(name: str):
    assert set(DIALECTS[name]().words) <= set(PARAMETERS)


@pytest.mark.parametrize("name", DIALECTS)
def test_the_page_names_what_a_dialect_refuses(name: str):
    row = next(line for line in UPSTREAM_PAGE.read_text().splitlines() if line.startswith(f"| `{name}` |"))
    said = {found for found in re.findall(r"`([a-z_]+)`", row.rsplit("|", 2)[1]) if found in PARAMETERS}
    assert said == set(PARAMETERS) - set(DIALECTS[name]().words)


@pytest.mark.parametrize("parameter", PARAMETERS)
def test_an_engine_that_was_never_taught_a_parameter_refuses_it(parameter: str):
    info = EngineInfo(model="m", context_length=99, vocab_size=256, sampling=frozenset(PARAMETERS) - {parameter})
    with pytest.raises(EngineError, match=parameter):
        check_supported(request_with(SamplingParams(**{parameter: PARAMETERS[parameter].example})), info)


def test_the_embedded_core_claims_no_parameter_that_does_not_exist():
    assert set(PARAMETERS) >= HONOURED
