"""Grammars in the core: beside neighbours that have none, refused, complete, and with the end that the request says."""

import json

import jsonschema
import pytest

from agent_server.engine_protocol.protocol import Constraint
from agent_server.generation.scheduling.messages import RequestFailed
from tests.generation.harness import Driver, prompts
from tests.generation.tiny_models import make_model, make_tokenizer

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
JSON = Constraint(kind="json_schema", value=SCHEMA)
END = make_tokenizer().token_to_id("<|im_end|>")


def run(driver, limit=20000):
    """Until nothing is left; a grammar may be compiled meanwhile."""
    for _ in range(limit):
        if driver.core.idle and driver.core.inbox.empty() and not driver.core.generations:
            return
        driver.step()
    raise AssertionError("the core does not come to rest")


def test_neighbours_get_the_tokens_that_they_get_alone(compiler):
    asked = prompts(5, seed=4, longest=40)
    alone = Driver(make_model("llama"), compiler=compiler)
    numbers = [alone.submit(prompt, max_tokens=40, temperature=1.0, seed=7) for prompt in asked]
    run(alone)
    mixed = Driver(make_model("llama"), compiler=compiler)
    free, bound = [], []
    for prompt in asked:
        free.append(mixed.submit(prompt, max_tokens=40, temperature=1.0, seed=7))
        bound.append(mixed.submit(prompt, max_tokens=200, temperature=1.0, seed=9, constraint=JSON))
    run(mixed)
    assert [mixed.ids(number) for number in free] == [alone.ids(number) for number in numbers]
    for number in bound:
        assert mixed.end(number).reason == "stop"
        jsonschema.validate(json.loads(mixed.text(number)), SCHEMA)
    mixed.assert_clean()


def test_a_complete_answer_ends_without_another_token(compiler):
    driver = Driver(make_model("llama"), compiler=compiler)
    number = driver.submit([9, 10, 11], max_tokens=50, constraint=Constraint(kind="choice", value=["yes", "no"]))
    run(driver)
    assert driver.text(number) in ("yes", "no")
    assert driver.end(number).reason == "stop"
    assert driver.end(number).usage.completion_tokens == len(driver.ids(number))


def test_a_stop_token_of_the_request_may_end_where_the_grammar_may(compiler):
    """A request's own end is allowed exactly where an answer may end: behind an `a`, not within the `bb`."""
    ends = make_tokenizer().token_to_id("<|im_start|>")
    driver = Driver(make_model("llama"), compiler=compiler)
    wanted = Constraint(kind="regex", value="(a|bb)+")
    bias = {ends: 100.0}
    number = driver.submit(
        [9, 10, 11], max_tokens=50, constraint=wanted, stop_token_ids=(ends,), logit_bias=bias, ignore_eos=True
    )
    run(driver)
    assert driver.end(number).stop == ends
    assert driver.text(number).removesuffix("<|im_start|>") in ("a", "bb")


@pytest.mark.parametrize(
    "wanted",
    [
        Constraint(kind="json_schema", value={"not": {"type": "string"}}),
        Constraint(kind="regex", value="(unclosed"),
        Constraint(kind="lark", value="no grammar at all"),
        Constraint(kind="regex", value="x" * 600_000),
        Constraint(kind="structural_tag", value={"format": {"type": "nothing"}}),
        Constraint(kind="ebnf", value="root ::= ("),
    ],
    ids=["keyword", "regex", "lark", "size", "tag", "ebnf"],
)
def test_a_grammar_that_cannot_be_is_that_requests_error(compiler, wanted):
    driver = Driver(make_model("llama"), compiler=compiler)
    good = driver.submit([9, 10, 11], max_tokens=5)
    bad = driver.submit([9, 10, 12], max_tokens=5, constraint=wanted)
    run(driver)
    assert driver.end(good).reason == "length"
    assert isinstance(driver.end(bad), RequestFailed) and driver.end(bad).kind == "invalid_request"
    assert len(driver.end(bad).message) < 400
    driver.assert_clean()


def test_the_second_use_is_not_compiled_again(compiler):
    driver = Driver(make_model("llama"), compiler=compiler)
    for _ in range(3):
        driver.submit([9, 10, 11], max_tokens=60, constraint=JSON)
        run(driver)
    assert compiler.counts["grammar_compile_seconds_count"] == 1
    assert compiler.counts["grammar_cache_hits_total"] == 2
    assert driver.core.metrics()["grammar_cache_queries_total"] == 3


def test_a_prompt_is_computed_while_its_grammar_is_compiled(compiler):
    """All but the last token; the first token waits for the grammar."""
    held = []
    compiler.compile = lambda constraint, done: held.append((constraint, done))
    driver = Driver(make_model("llama"), compiler=compiler)
    number = driver.submit(list(range(4, 40)), max_tokens=60, constraint=JSON)
    driver.step(5)
    (sequence,) = driver.core.scheduler.running
    assert sequence.computed == 35 and driver.tokens(number) == []
    constraint, done = held[0]
    done(compiler.backend.compile(constraint), None)
    run(driver)
    jsonschema.validate(json.loads(driver.text(number)), SCHEMA)


def test_pausing_while_compiling(compiler):
    held = []
    compiler.compile = lambda constraint, done: held.append((constraint, done))
    driver = Driver(make_model("llama"), compiler=compiler)
    number = driver.submit([9, 10, 11], max_tokens=60, constraint=JSON)
    driver.step(2)
    driver.pause(number)
    driver.step(2)
    constraint, done = held[0]
    done(compiler.backend.compile(constraint), None)
    driver.step(3)
    assert [control.action for control in driver.controls(number)] == ["paused"] and driver.tokens(number) == []
    driver.resume(number)
    run(driver)
    jsonschema.validate(json.loads(driver.text(number)), SCHEMA)


def test_ebnf_and_lark(compiler):
    driver = Driver(make_model("llama"), compiler=compiler)
    ebnf = driver.submit([9], max_tokens=40, constraint=Constraint(kind="ebnf", value='root ::= "a" [b-d] "e"'))
    lark = driver.submit([9], max_tokens=40, constraint=Constraint(kind="lark", value='start: "a" /[b-d]/ "e"'))
    run(driver)
    assert all(driver.text(n)[::2] == "ae" and driver.text(n)[1] in "bcd" for n in (ebnf, lark))
