"""What every engine must do, whatever is behind it: one suite, run by each file that has an `engine` to give.

A subclass gives `target`, a fixture of the module. What an engine says that it cannot do must be refused, and is
checked to be; nothing is skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import jsonschema
import msgspec
import pytest
from ag_ui.core import RunAgentInput

from agent_server.engine_protocol.protocol import (
    Constraint,
    Delta,
    Engine,
    EngineError,
    EngineItem,
    Finished,
    GenerationRequest,
    Token,
)
from agent_server.http.server import BUNDLED
from agent_server.models.prompting.constraints import plan_constraint
from agent_server.models.prompting.control_tokens import ControlTokens
from agent_server.models.prompting.prompt import PromptBuilder
from agent_server.settings import OutputSettings
from events.options import GenerationOptions, SamplingParams, ToolChoice
from tests.contract import reference

WEATHER = {
    "type": "object",
    "properties": {
        "location": {"type": "string", "minLength": 2, "maxLength": 20},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["location", "days", "unit"],
    "additionalProperties": False,
}
FREED_SECONDS = 5.0
SHAPES = [
    Constraint(kind="regex", value="[0-9]{3}-[a-f]{2}"),
    Constraint(kind="choice", value=["forty-two", "forty-three"]),
    Constraint(kind="json_schema", value=WEATHER),
    Constraint(kind="ebnf", value='root ::= "a" [0-9] "b"'),
    Constraint(kind="regex", value="🦉{3}"),
]


@dataclass
class Target:
    """running: how many generations whatever is behind the engine is at. exact: whether ids come from the engine
    itself, not from text. model: whether a model answers; False where what was generated before is replayed. says_end:
    whether the end of sequence comes as a token, with no text. lacks: sampling parameters that must be refused.
    tolerance: how far log probabilities may be from the model's own."""

    engine: Engine
    running: Callable[[], Awaitable[float]]
    exact: bool = True
    model: bool = True
    says_end: bool = True
    lacks: frozenset[str] = frozenset()
    tolerance: float = 2e-3


@dataclass
class Answer:
    """A whole stream, checked for its form."""

    items: list[EngineItem]

    @property
    def tokens(self) -> list[Token]:
        return [token for item in self.items if isinstance(item, Delta) for token in item.tokens]

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.tokens]

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.tokens)

    @property
    def end(self) -> Finished:
        assert isinstance(self.items[-1], Finished)
        return self.items[-1]


_numbers = iter(range(1 << 40))


def asked(prompt: tuple[int, ...], constraint: Constraint | None = None, **sampling: Any) -> GenerationRequest:
    sampling = {"temperature": 0.0, "max_tokens": 48, **sampling}
    return GenerationRequest(
        request_id=f"contract-{next(_numbers)}",
        prompt_token_ids=prompt,
        sampling=SamplingParams(**sampling),
        constraint=constraint,
    )


async def answer(engine: Engine, request: GenerationRequest) -> Answer:
    items = [item async for item in engine.generate(request)]
    assert [isinstance(item, Finished) for item in items].count(True) == 1, "one last item"
    found = Answer(items)
    assert found.end.usage.prompt_tokens == len(request.prompt_token_ids)
    assert found.end.timings.total >= (found.end.timings.first_token or 0) >= 0
    return found


async def refusal(engine: Engine, request: GenerationRequest) -> EngineError:
    with pytest.raises(EngineError) as raised:
        await answer(engine, request)
    assert raised.value.message and "\n" not in raised.value.message
    return raised.value


async def eventually(condition: Callable[[], Awaitable[bool]], seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not await condition():
                await asyncio.sleep(0.02)
            return True
    return False


class Contract:
    """The suite. Test order does not matter; every test leaves the engine idle."""

    # what is generated

    @pytest.mark.parametrize("text", reference.ASKED)
    async def test_greedy_ids_are_those_of_generate(self, target: Target, text: str) -> None:
        prompt = reference.prompt(text)
        found = await answer(target.engine, asked(prompt))
        wanted = reference.greedy(prompt, 48)
        shown = wanted[:-1] if wanted[-1] in reference.files().stop_token_ids else wanted
        assert found.text == reference.decode(shown)
        assert found.end.reason == ("stop" if shown != wanted else "length")
        assert found.end.stop is None
        if target.exact:
            assert found.ids == (wanted if target.says_end else shown)
            assert found.end.usage.completion_tokens == len(found.ids)

    async def test_many_at_once_are_each_as_if_alone(self, target: Target) -> None:
        prompts = [reference.prompt(f"{text} {number}") for number in range(3) for text in reference.ASKED]
        answers = await asyncio.gather(*(answer(target.engine, asked(each, max_tokens=24)) for each in prompts))
        for prompt, found in zip(prompts, answers, strict=True):
            shown = [n for n in reference.greedy(prompt, 24) if n not in reference.files().stop_token_ids]
            assert found.text == reference.decode(shown)

    async def test_a_limit_ends_it(self, target: Target) -> None:
        prompt = reference.prompt()
        found = await answer(target.engine, asked(prompt, max_tokens=5))
        assert (found.end.reason, found.end.stop) == ("length", None)
        assert found.text == reference.decode(reference.greedy(prompt, 5))
        assert len(found.ids) == found.end.usage.completion_tokens == 5

    async def test_the_end_of_sequence_can_be_ignored(self, target: Target) -> None:
        prompt = reference.prompt()
        request = asked(prompt, max_tokens=60, ignore_eos=True)
        if "ignore_eos" in target.lacks:
            assert (await refusal(target.engine, request)).param == "ignore_eos"
            return
        found = await answer(target.engine, request)
        passed, banned = reference.greedy(prompt, 60, ignore_eos=True), reference.without_end(prompt, 60)
        assert found.ids in (passed, banned), "the end is passed over, or never chosen"
        assert found.end.reason == "length"

    # what ends it

    @pytest.mark.parametrize("stop", [("is a",), ("zzz", "nice to", "greeting"), ("This ",), ("</think>",)])
    async def test_a_stop_string_is_not_sent(self, target: Target, stop: tuple[str, ...]) -> None:
        prompt = reference.prompt()
        whole = reference.decode(reference.greedy(prompt, 48))
        places = {whole.find(text): text for text in stop if text in whole}
        assert places, "the model must say one of them"
        found = await answer(target.engine, asked(prompt, stop=stop))
        assert found.text == whole[: min(places)]
        assert (found.end.reason, found.end.stop) == ("stop", places[min(places)])

    async def test_a_stop_token_ends_it(self, target: Target) -> None:
        prompt = reference.prompt()
        wanted = reference.greedy(prompt, 48)
        stop = wanted[6]
        request = asked(prompt, stop_token_ids=(stop,))
        if "stop_token_ids" in target.lacks:
            assert (await refusal(target.engine, request)).param == "stop_token_ids"
            return
        found = await answer(target.engine, request)
        place = wanted.index(stop)
        assert found.text == reference.decode(wanted[:place])
        assert (found.end.reason, found.end.stop) == ("stop", stop)

    async def test_min_tokens_keeps_the_end_away(self, target: Target) -> None:
        prompt = reference.prompt()
        usual = len(reference.greedy(prompt, 48))
        request = asked(prompt, min_tokens=usual + 8, max_tokens=usual + 20)
        if "min_tokens" in target.lacks:
            assert (await refusal(target.engine, request)).param == "min_tokens"
            return
        found = await answer(target.engine, request)
        if not target.model:
            return
        ends = set(reference.files().stop_token_ids)
        assert len(found.ids) >= usual + 8
        assert not ends & set(found.ids[: usual + 8])

    # what is said about it

    @pytest.mark.parametrize("count", [0, 1, 5, 20])
    async def test_log_probabilities_are_the_models(self, target: Target, count: int) -> None:
        prompt = reference.prompt("What can you do?")
        request = asked(prompt, logprobs=count, max_tokens=4)
        if "logprobs" not in target.engine.info.sampling:
            assert (await refusal(target.engine, request)).param == "logprobs"
            return
        found = await answer(target.engine, request)
        for place, token in enumerate(found.tokens):
            assert token.logprob is not None and token.alternatives is not None
            assert len(token.alternatives) == count
            if not target.model:
                continue
            table = reference.logprobs([*prompt, *found.ids[:place]])
            assert token.logprob == pytest.approx(float(table[token.id]), abs=target.tolerance)
            top = table.topk(max(count, 1))
            assert [each.logprob for each in token.alternatives] == pytest.approx(
                [float(value) for value in top.values[:count]], abs=target.tolerance
            )
            for each in token.alternatives:
                assert float(table[each.id]) == pytest.approx(each.logprob, abs=target.tolerance)
                assert each.text == reference.decode([each.id])

    async def test_nothing_is_said_that_was_not_asked_for(self, target: Target) -> None:
        found = await answer(target.engine, asked(reference.prompt(), max_tokens=3))
        assert all(token.logprob is None and token.alternatives is None for token in found.tokens)

    # how tokens are chosen

    async def test_a_seed_decides(self, target: Target) -> None:
        wild = {"temperature": 1.7, "max_tokens": 40, "ignore_eos": "ignore_eos" not in target.lacks}
        prompt = reference.endless()  # of a greeting's answer the model is too sure
        first, again, other = [
            (await answer(target.engine, asked(prompt, seed=seed, **wild))).text for seed in (7, 7, 8)
        ]
        assert first == again
        assert (first != other) == target.model

    async def test_seeds_of_64_bits_are_seeds(self, target: Target) -> None:
        wild = {"temperature": 1.7, "max_tokens": 12}
        first, again = [
            (await answer(target.engine, asked(reference.prompt(), seed=2**64 - 1, **wild))).text for _ in range(2)
        ]
        assert first == again

    async def test_bias_and_penalties_arrive(self, target: Target) -> None:
        prompt = reference.prompt()
        cases: list[tuple[dict[str, Any], list[int]]] = [
            ({"repetition_penalty": 1.8}, reference.greedy(prompt, 16, repetition_penalty=1.8)),
            ({"frequency_penalty": 1.5}, reference.penalised(prompt, 16, frequency=1.5, presence=0.0)),
            ({"presence_penalty": 1.5}, reference.penalised(prompt, 16, frequency=0.0, presence=1.5)),
            ({"logit_bias": {100: 100.0}}, [100] * 16),
        ]
        for options, wanted in cases:
            request = asked(prompt, max_tokens=16, **options)
            if (name := next(iter(options))) in target.lacks:
                assert (await refusal(target.engine, request)).param == name
            elif target.model and target.exact:
                assert (await answer(target.engine, request)).ids == wanted

    # grammars

    async def test_a_required_call_is_valid(self, target: Target) -> None:
        """With weights that never learned this tool, and at a temperature that would break any unforced call."""
        tools = [{"name": "forecast", "description": "The weather ahead", "parameters": WEATHER}]
        input = RunAgentInput.model_validate(
            {
                "threadId": "t",
                "runId": "r",
                "messages": [{"id": "u", "role": "user", "content": "What is the weather in Oslo?"}],
                "tools": tools,
                "state": {},
                "context": [],
                "forwardedProps": {},
            }
        )
        builder = PromptBuilder.load(BUNDLED)
        options = GenerationOptions(tool_choice=ToolChoice("required"))
        built = builder.build(input, options)
        plan = plan_constraint(built, builder.control_ids, input, options, OutputSettings(), target.engine.info)
        if not target.engine.info.supports_constraints:
            with pytest.raises(EngineError) as raised:
                await plan
            assert raised.value.param == "tool_choice"
            return
        constraint = (await plan).constraint
        request = asked(built.token_ids, constraint, max_tokens=400, temperature=1.3, seed=5)
        found = await answer(target.engine, request)
        assert found.end.reason == "stop"
        body = found.text.partition("<tool_call>")[2].partition("</tool_call>")[0]
        call = json.loads(body)
        assert call["name"] == "forecast"
        jsonschema.validate(call["arguments"], WEATHER)
        controls = set(ControlTokens(reference.files().tokenizer).ids.values())
        inside = found.ids[found.ids.index(reference.encode("<tool_call>")[0]) + 1 :]
        inside = inside[: inside.index(reference.encode("</tool_call>")[0])]
        assert not controls & set(inside), "no control token within a call"

    @pytest.mark.parametrize("constraint", SHAPES, ids=lambda each: f"{each.kind}-{str(each.value)[:12]}")
    async def test_other_shapes_hold(self, target: Target, constraint: Constraint) -> None:
        request = asked(reference.prompt(), constraint, max_tokens=300, temperature=1.3, seed=3)
        if not target.engine.info.supports_constraints:
            assert (await refusal(target.engine, request)).kind == "invalid_request"
            return
        found = await answer(target.engine, request)
        assert found.end.reason == "stop"
        assert fits(constraint, found.text)

    async def test_a_grammar_that_is_none_is_the_requests_fault(self, target: Target) -> None:
        request = asked(reference.prompt(), Constraint(kind="lark", value="start: nowhere"), max_tokens=4)
        assert (await refusal(target.engine, request)).kind == "invalid_request"

    # what goes wrong

    # what another engine began

    @pytest.mark.parametrize("stop", [(), ("nice to",)])
    async def test_it_goes_on_from_tokens_so_far(self, target: Target, stop: tuple[str, ...]) -> None:
        """Greedy, so that the rest is known; also from all of them, of which only the end is left to say."""
        if target.engine.info.continues == "no":
            assert not target.exact, "an engine that gives ids can take them"
            return
        request = asked(
            reference.prompt(), stop=stop, logprobs=0 if "logprobs" in target.engine.info.sampling else None
        )
        whole = await answer(target.engine, request)
        for seam in sorted({1, 5, len(whole.ids) - 1, len(whole.ids)}):
            changes = {"request_id": f"{request.request_id}.{seam}", "generated": tuple(whole.ids[:seam])}
            rest = await answer(target.engine, msgspec.structs.replace(request, **changes))
            assert whole.ids[:seam] + rest.ids == whole.ids
            assert "".join(token.text for token in whole.tokens[:seam]) + rest.text == whole.text
            assert (rest.end.reason, rest.end.stop) == (whole.end.reason, whole.end.stop)
            assert rest.end.usage.completion_tokens == whole.end.usage.completion_tokens

    async def test_closing_frees_the_slot(self, target: Target) -> None:
        assert await eventually(lambda: _at(target, 0), 5), "what ran before this test still runs"
        stream = target.engine.generate(asked(reference.endless(), max_tokens=3000))
        await anext(stream)
        assert await eventually(lambda: _at(target, 1), 5)
        await stream.aclose()
        assert await eventually(lambda: _at(target, 0), FREED_SECONDS)
        assert await eventually(lambda: _metric_at(target, 0), FREED_SECONDS)

    async def test_a_cancelled_reader_frees_the_slot_too(self, target: Target) -> None:
        assert await eventually(lambda: _at(target, 0), 5), "what ran before this test still runs"
        reading = asyncio.create_task(answer(target.engine, asked(reference.endless(), max_tokens=3000)))
        assert await eventually(lambda: _at(target, 1), 5)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        assert await eventually(lambda: _at(target, 0), FREED_SECONDS)

    async def test_a_prompt_that_is_too_long_is_refused(self, target: Target) -> None:
        for prompt, options, param in (
            ((100,) * (target.engine.info.context_length + 5), {"max_tokens": 1}, "prompt"),
            ((100,) * 20, {"max_tokens": target.engine.info.context_length}, "max_tokens"),
        ):
            error = await refusal(target.engine, asked(prompt, **options))
            assert (error.kind, error.param, error.retryable) == ("context_length_exceeded", param, False)

    async def test_bad_requests_are_refused(self, target: Target) -> None:
        size = target.engine.info.vocab_size
        for prompt in ((), (5, size + 7), (5, -1)):
            error = await refusal(target.engine, asked(prompt))
            assert (error.kind, error.retryable) == ("invalid_request", False)

    async def test_an_id_in_use_is_refused(self, target: Target) -> None:
        request = asked(reference.endless(), max_tokens=3000)
        stream = target.engine.generate(request)
        await anext(stream)
        assert "already running" in (await refusal(target.engine, request)).message
        await stream.aclose()

    async def test_what_is_not_supported_is_refused(self, target: Target) -> None:
        if "prompt_logprobs" not in target.engine.info.sampling:
            request = asked(reference.prompt(), prompt_logprobs=1, max_tokens=2)
            assert (await refusal(target.engine, request)).param == "prompt_logprobs"
        stream = target.engine.generate(request := asked(reference.endless(), max_tokens=3000))
        await anext(stream)
        assert await target.engine.pause(request.request_id) == target.engine.info.supports_pause
        await stream.aclose()
        assert not await target.engine.pause("unknown")
        assert not await target.engine.modify("unknown", {"temperature": 0.5})


async def _metric_at(target: Target, count: int) -> bool:
    return target.engine.metrics()["num_requests_running"] == count


async def _at(target: Target, count: float) -> bool:
    return await target.running() == count


def fits(constraint: Constraint, text: str) -> bool:
    import re

    match constraint.kind:
        case "regex":
            return re.fullmatch(constraint.value, text) is not None
        case "choice":
            return text in constraint.value
        case "json_schema":
            jsonschema.validate(json.loads(text), constraint.value)
            return True
    return re.fullmatch("a[0-9]b", text) is not None
