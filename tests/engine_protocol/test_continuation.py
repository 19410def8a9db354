"""A generation that goes on elsewhere from the tokens so far, at every place where it can break off."""

import msgspec
import pytest

from agent_server.engine_protocol.continuation import AnswerEnd, already_ended, as_prompt, may_continue
from agent_server.engine_protocol.detokenizer import ByteVocabulary, OutputText
from agent_server.engine_protocol.protocol import Constraint, Delta, EngineInfo, GenerationRequest
from agent_server.engines.embedded import EmbeddedEngine, EngineConfig
from agent_server.engines.scripted import Script, ScriptedEngine
from agent_server.http.server import BUNDLED
from events.options import SamplingParams
from tests.slow import slow

BYTES = ByteVocabulary()


def request(prompt=(1, 2, 3), generated=(), constraint=None, name="one", **sampling):
    return GenerationRequest(
        request_id=name,
        prompt_token_ids=tuple(prompt),
        generated=tuple(generated),
        sampling=SamplingParams(**sampling),
        constraint=constraint,
    )


async def collect(engine, asked):
    items = [item async for item in engine.generate(asked)]
    return [token for item in items if isinstance(item, Delta) for token in item.tokens], items[-1]


def shown(token):
    """Log probabilities to three places: a prompt computed in one piece differs in the last bits."""
    others = [(other.id, other.text) for other in token.alternatives or ()]
    return token.id, token.text, token.logprob and round(token.logprob, 3) + 0.0, others


async def check_every_seam(engine, asked):
    """The tokens up to any place, and the rest from another generation, are the whole; so are end and usage."""
    whole, end = await collect(engine, asked)
    assert len(whole) > 3
    for seam in range(len(whole) + 1):
        sent = tuple(token.id for token in whole[:seam])
        rest, last = await collect(engine, msgspec.structs.replace(asked, generated=sent))
        assert [shown(token) for token in whole[:seam] + rest] == [shown(token) for token in whole], seam
        assert (last.reason, last.stop) == (end.reason, end.stop), seam
        assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (
            end.usage.prompt_tokens,
            end.usage.completion_tokens,
        ), seam


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"stop": ("two",)},
        {"stop": ("😀",)},
        {"stop_token_ids": (ord("w"),)},
        {"max_tokens": 9},
        {"stop": ("o t", "wo")},
    ],
)
async def test_a_script_goes_on_at_every_place(sampling):
    engine = ScriptedEngine([Script(text="one é two 😀 three")])
    await engine.start()
    await check_every_seam(engine, request(**sampling))


@pytest.fixture(scope="module")
def model():
    return EngineConfig(model=str(BUNDLED), name="demo", device="cpu", max_batch=4, threads=1)


GRAMMAR = Constraint(kind="json_schema", value={"type": "object", "properties": {"a": {"enum": ["yes", "no"]}}, "required": ["a"], "additionalProperties": False})  # fmt: skip


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(request(temperature=1.0, seed=5, max_tokens=40, constraint=GRAMMAR), id="grammar"),
        pytest.param(
            request(
                temperature=0.9, seed=3, max_tokens=16, presence_penalty=1.5, frequency_penalty=0.5, ignore_eos=True
            ),
            id="penalised",
        ),
        *slow(
            [
                request(temperature=0.0, max_tokens=16),
                request(temperature=1.2, seed=7, max_tokens=16, logprobs=2),
                request(temperature=0.0, max_tokens=16, repetition_penalty=1.4, min_tokens=9),
            ]
        ),
    ],
)
async def test_the_embedded_engine_goes_on_at_every_place(model, asked):
    engine = EmbeddedEngine(model, process=False)
    await engine.start()
    try:
        await check_every_seam(engine, msgspec.structs.replace(asked, prompt_token_ids=tuple(range(20, 60))))
    finally:
        await engine.close()


def output_of(asked):
    return OutputText(BYTES, asked.prompt_token_ids, asked.sampling.stop, asked.sampling.min_tokens, asked.generated)


@pytest.mark.parametrize(
    "asked, found",
    [
        (request(), None),
        (request(generated=b"ab"), None),
        (request(generated=b"ab", stop=("b",)), AnswerEnd("stop", "b")),
        (request(generated=b"ab", stop=("b",), min_tokens=2), None),
        (request(generated=b"ab", stop_token_ids=(98,)), AnswerEnd("stop", 98)),
        (request(generated=b"ab", max_tokens=2), AnswerEnd("length")),
        (request(generated=b"abc"), AnswerEnd("stop")),
        (request(generated=b"abc", ignore_eos=True), None),
        (request(generated=b"abc", min_tokens=3), None),
    ],
)
def test_an_answer_that_is_whole_is_seen_to_be(asked, found):
    assert already_ended(asked, output_of(asked), eos={99}) == found


def test_a_stop_string_that_began_in_what_was_sent_still_stops():
    """Nobody can take back what was sent; the rest of the stop string is not sent."""
    output = OutputText(BYTES, (), ("aab",), 0, b"xa")
    assert [token.text for token in output.push(ord("a"))] == []
    assert [token.text for token in output.push(ord("b"))] == ["", ""]
    assert output.stopped == "aab"


def test_as_prompt_takes_the_tokens_off_the_limits():
    made = as_prompt(request(generated=(7, 8), max_tokens=5, min_tokens=1, prompt_logprobs=1))
    assert (made.prompt_token_ids, made.generated) == ((1, 2, 3, 7, 8), ())
    assert (made.sampling.max_tokens, made.sampling.min_tokens, made.sampling.prompt_logprobs) == (3, 0, None)
    assert as_prompt(request()) == request()


@pytest.mark.parametrize(
    "sampling, exact, plain",
    [
        ({"temperature": 0.0, "seed": 1}, True, True),
        ({"temperature": 0.7}, True, True),
        ({"temperature": 0.7, "seed": 1}, True, False),
        ({"temperature": 0.0, "presence_penalty": 1.0}, True, False),
        ({"temperature": 0.0, "repetition_penalty": 1.2}, True, True),
    ],
)
def test_what_may_go_on_where(sampling, exact, plain):
    def info(continues):
        return EngineInfo(model="m", context_length=9, vocab_size=9, sampling=frozenset(), continues=continues)

    asked = request(generated=(1,), **sampling)
    assert [may_continue(asked, info(each)) for each in ("exact", "plain", "no")] == [exact, plain, False]
    bound = msgspec.structs.replace(asked, constraint=GRAMMAR)
    assert [may_continue(bound, info(each)) for each in ("exact", "plain", "no")] == [True, False, False]
