"""Bad words, allowed tokens and budgets of reasoning: by the core's own tokens, alone, among others and one step ahead."""

import copy
import itertools

import pytest
import torch
from transformers import NoBadWordsLogitsProcessor

from agent_server.engine_protocol.detokenizer import ByteVocabulary, TokenizerVocabulary
from agent_server.engine_protocol.protocol import Thought
from agent_server.generation.sampling.penalties import ThoughtBudget, bad_words
from agent_server.generation.scheduling.messages import RequestFailed
from tests.generation.harness import Driver
from tests.generation.tiny_models import make_model, make_tokenizer

PROMPT = [5, 6, 7, 8, 9]
COUNT = 30


@pytest.fixture(scope="module")
def model():
    return make_model("llama")


@pytest.fixture(params=["slab", "paged", "paged-overlap"])
def driver(request, model):
    kind = request.param
    return Driver(copy.deepcopy(model), memory=kind.removesuffix("-overlap"), max_batch=4, overlap="overlap" in kind)


def run(driver, **options):
    number = driver.submit(PROMPT, max_tokens=COUNT, **options)
    other = driver.submit([9, 8, 7], max_tokens=COUNT)
    driver.finish()
    assert driver.ids(other) == alone(driver)
    return driver.ids(number)


def alone(driver):
    number = driver.submit([9, 8, 7], max_tokens=COUNT)
    driver.finish()
    return driver.ids(number)


def test_a_bad_word_does_not_come(driver, model):
    vocabulary = TokenizerVocabulary(make_tokenizer())
    free = run(driver)
    words = sorted({vocabulary.spell(token) for token in free} - {"\ufffd"})[:2]
    forbidden = [[*word.before, word.last] for word in bad_words(words, vocabulary)]
    processor = NoBadWordsLogitsProcessor(forbidden, eos_token_id=None)
    ids = list(PROMPT)
    with torch.inference_mode():
        for _ in range(COUNT):
            logits = model(torch.tensor([ids])).logits[:, -1].float()
            ids.append(int(processor(torch.tensor([ids]), logits).argmax()))
    found = run(driver, bad_words=tuple(words))
    assert found == ids[len(PROMPT) :] != free


def test_a_bad_word_of_several_tokens_may_begin(driver):
    free = run(driver)
    vocabulary = driver.core.vocabulary
    spelled = list(map(vocabulary.spell, free))
    text = next(a + b for a, b in itertools.pairwise(spelled) if a != b and "\ufffd" not in a + b)
    written = {(*word.before, word.last) for word in bad_words([text], vocabulary)}
    assert any(len(ids) > 1 for ids in written)
    found = run(driver, bad_words=(text,))
    for ids in written:
        assert all(tuple(found[at : at + len(ids)]) != ids for at in range(COUNT))


def test_only_allowed_tokens_come(driver):
    allowed = (11, 50, 200)
    assert set(run(driver, allowed_token_ids=allowed, temperature=1.0, seed=3)) == set(allowed)
    assert set(run(driver, allowed_token_ids=(11,), bad_words=(driver.core.vocabulary.spell(11),))) == {11}


def test_an_allowed_token_outside_of_the_vocabulary_is_refused(driver):
    number = driver.submit(PROMPT, allowed_token_ids=(5000,))
    driver.finish()
    end = driver.end(number)
    assert isinstance(end, RequestFailed) and "5000" in end.message


def thought_of(driver, start, end, *, opened, close):
    spell = driver.core.vocabulary.spell
    return Thought(opened=opened, start=(spell(start),), end=(spell(end),), close="".join(map(spell, close)))


@pytest.mark.parametrize("budget", [0, 1, 2, 7])
def test_reasoning_ends_with_its_budget(driver, budget):
    free = run(driver)
    start, end, close = 40, 41, [10, 41, 10]
    assert not {start, end} & set(free)
    thought = thought_of(driver, start, end, opened=True, close=close)
    found = run(driver, thinking_token_budget=budget, thought=thought)
    close = driver.core.vocabulary.encode(thought.close)
    assert found[: budget + len(close)] == free[:budget] + close
    assert found[budget + len(close) :].count(end) == 0


def test_reasoning_that_ends_by_itself_is_left_alone(driver):
    free = run(driver)
    vocabulary = driver.core.vocabulary
    end = next(token for token in free[:9] if vocabulary.encode(vocabulary.spell(token)) == [token])
    thought = thought_of(driver, 40, end, opened=True, close=[40, end])
    assert run(driver, thinking_token_budget=9, thought=thought) == free


def test_reasoning_counts_from_where_the_answer_opens_it(driver):
    free = run(driver)
    first = free.index(free[3])
    thought = thought_of(driver, free[3], 41, opened=False, close=[41])
    found = run(driver, thinking_token_budget=4, thought=thought)
    assert found[: first + 6] == [*free[: first + 5], 41]


def test_a_budget_may_be_set_while_it_thinks(driver):
    thought = thought_of(driver, 40, 41, opened=True, close=[41])
    number = driver.submit(PROMPT, max_tokens=COUNT, thought=thought)
    driver.step(4)
    driver.modify(number, thinking_token_budget=2)
    driver.finish()
    assert 2 < driver.ids(number).index(41) < 8


def test_a_marker_that_is_one_token_is_known_by_its_id_alone():
    vocabulary = ByteVocabulary()
    thought = Thought(opened=True, start=("<think>",), end=("</think>",), close="</think>")
    budget = ThoughtBudget(thought, 20, vocabulary, ())
    for token in b"</think>":
        budget.push(token)
    assert budget.count == 8 and budget.near is False
    budget.push(vocabulary.specials["</think>"])
    budget.push(1)
    assert budget.count == 9


def test_a_marker_of_text_is_found_across_tokens_once():
    vocabulary = ByteVocabulary(())
    thought = Thought(opened=False, start=("ab",), end=("abc",), close="abc")
    budget = ThoughtBudget(thought, 3, vocabulary, ())
    for token in b"xabyyy":
        budget.push(token)
    assert (budget.count, budget.forced) == (3, ord("a"))
    for token in b"abc":
        budget.push(token)
    assert budget.forced is None


def test_closing_begins_anew_where_another_token_came():
    vocabulary = ByteVocabulary(())
    budget = ThoughtBudget(Thought(opened=True, start=(), end=("END",), close="END"), 0, vocabulary, ())
    for token in b"Ex":
        budget.push(token)
    assert budget.forced == ord("E")
