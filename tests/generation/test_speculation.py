"""Guesses change nothing but the number of steps: ids, texts, endings and log probabilities are those without."""

import copy
import random
from itertools import cycle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_server.engine_protocol.protocol import Constraint
from agent_server.generation.core import drafting
from agent_server.generation.core.constraint import Compiler
from agent_server.generation.core.grammar import GrammarBackend
from agent_server.generation.loading import runner_choice
from agent_server.generation.scheduling import speculation
from agent_server.generation.scheduling.messages import EngineConfig
from agent_server.generation.scheduling.pages import PagedMemory
from agent_server.generation.scheduling.scheduler import Scheduler
from agent_server.generation.scheduling.sequence import Sequence
from agent_server.generation.scheduling.speculation import PromptLookup, Speculation
from tests.generation.harness import Driver, expected, prompts
from tests.generation.tiny_models import PACKED, make_model, make_tokenizer
from tests.slow import slow

NEW = 24
SCHEMA = {"type": "object", "properties": {"kind": {"enum": ["alpha", "beta"]}}, "required": ["kind"]}
ASKED = {
    "greedy": {},
    "sampled": {"temperature": 1.0, "seed": 5},
    "filtered": {"temperature": 0.9, "top_p": 0.8, "top_k": 40, "min_p": 0.01, "seed": 6},
    "penalised": {"temperature": 0.7, "seed": 7, "repetition_penalty": 1.3, "frequency_penalty": 0.5},
    "scored": {"logprobs": 3, "temperature": 0.8, "seed": 8},
    "least": {"ignore_eos": False, "min_tokens": 9, "temperature": 1.5, "seed": 9},
    "stopped": {"stop": ("a", "e"), "min_tokens": 8, "temperature": 1.2, "seed": 10},
    "barred": {"bad_words": ("the", "a"), "logit_bias": {40: 2.0}},
    "constrained": {"constraint": Constraint(kind="json_schema", value=SCHEMA), "ignore_eos": False},
}


class Told:
    """Guesses what is known to come, each token wrong by a chance."""

    def __init__(self, answer, prompt_length, wrong, seed):
        self.answer, self.prompt_length, self.wrong = answer, prompt_length, wrong
        self.chance = random.Random(seed)

    def propose(self, tokens, count):
        at = len(tokens) - self.prompt_length
        return [token if self.chance.random() > self.wrong else 7 for token in self.answer[at : at + count]]

    def learn(self, kept):
        pass


def play(model, asked, *, guesses=0, told=None, wrong=0.3, compiler=None, step=None, **config):
    """Every request's outcome: ids, text, log probabilities and the end; and the driver."""
    driver = Driver(copy.deepcopy(model), compiler=compiler, **{"max_batch": 6, "step_tokens": 24, **config})
    numbers = []
    for index, (prompt, wanted) in enumerate(asked):
        limits = {} if "constraint" in wanted else {"max_tokens": NEW}
        numbers.append(driver.submit(prompt, num_speculative_tokens=guesses, **limits, **wanted))
        if index % 2:
            driver.step()
        driver.core._drain_commands()
        if told is not None:
            for number in numbers:
                if (generation := driver.core.generations.get(number)) is not None:
                    source = Told(told[number - 1]["ids"], generation.sequence.prompt_length, wrong, number)
                    generation.speculation.source = source
    for _ in range(4000):
        if driver.core.idle:
            break
        driver.step()
        if step is not None:
            step(driver)
    driver.assert_clean()
    return [outcome(driver, number) for number in numbers], driver


def outcome(driver, number):
    tokens, end = driver.tokens(number), driver.end(number)
    scores = [token.logprob or 0.0 for token in tokens]
    tops = [[other.id for other in token.alternatives or ()] for token in tokens]
    found = {"ids": driver.ids(number), "text": driver.text(number), "scores": scores, "tops": tops}
    return found | {"reason": end.reason, "stop": end.stop, "tokens": end.usage.completion_tokens}


def assert_same(found, told):
    """Log probabilities may differ where sums do: a guess is computed in a chunk, a token alone by itself."""
    for one, other in zip(found, told, strict=True):
        assert one["scores"] == pytest.approx(other["scores"], abs=1e-3)
        assert {**one, "scores": ()} == {**other, "scores": ()}


def requests(seed, kinds=None):
    chance = random.Random(seed)
    kinds = kinds or chance.sample([*ASKED], 5)
    return list(zip(prompts(len(kinds), seed=seed, longest=60), [ASKED[kind] for kind in kinds], strict=True))


@pytest.fixture(scope="module")
def llama():
    return make_model("llama")


@pytest.fixture(scope="module")
def compiler():
    return Compiler(GrammarBackend(make_tokenizer(), 320, [2]), time_limit=60)


WAYS = {"slab": {"memory": "slab"}, "paged": {"memory": "paged"}, "late": {"memory": "paged", "overlap": True}}


@pytest.fixture(scope="module", params=["late", *slow(["slab", "paged"])])
def way(request):
    return WAYS[request.param]


@pytest.mark.parametrize(("family", "name"), [*zip(PACKED, cycle(WAYS), strict=False)])
def test_guesses_change_no_greedy_token_of_any_family(family, name, monkeypatch):
    monkeypatch.setattr(runner_choice, "GATHERED_PAGE_SIZE", 4)
    model = make_model(family)
    asked = [(prompt, {}) for prompt in prompts(5, seed=3)]
    told = [{"ids": expected(copy.deepcopy(model), prompt, NEW)} for prompt, _ in asked]
    found, driver = play(model, asked, guesses=6, told=told, **WAYS[name])
    assert [each["ids"] for each in found] == [each["ids"] for each in told]
    counters = driver.core.counters
    assert 0 < counters.spec_decode_num_accepted_tokens_total < counters.spec_decode_num_draft_tokens_total


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10_000), wrong=st.sampled_from([0.0, 0.2, 0.6]))
def test_mixed_requests_come_out_as_without(llama, compiler, way, seed, wrong):
    asked = requests(seed)
    told, _ = play(llama, asked, compiler=compiler, **way)
    found, _ = play(llama, asked, compiler=compiler, guesses=5, told=told, wrong=wrong, **way)
    assert_same(found, told)


@pytest.mark.parametrize("kind", ASKED)
def test_each_kind_of_request_keeps_right_guesses(llama, compiler, way, kind):
    asked = requests(1, [kind] * 3)
    told, plain = play(llama, asked, compiler=compiler, run_ahead=False, **way)
    found, driver = play(llama, asked, compiler=compiler, run_ahead=False, guesses=8, told=told, wrong=0.0, **way)
    assert_same(found, told)
    assert driver.core.counters.spec_decode_num_accepted_tokens_total > 0
    assert driver.core.counters.iterations_total < plain.core.counters.iterations_total


def test_what_was_not_kept_is_not_attended_to_nor_found(llama, way):
    """Keys and values behind what counts as computed are spoilt after every step, and the next turn begins with what
    the first one left."""

    def spoil(driver):
        core = driver.core
        memory, cache = core.scheduler.memory, core.runner.cache
        for sequence in core.scheduler.running if core._in_flight is None else ():
            for at in range(sequence.computed, len(sequence.tokens) + 6):
                write(memory, cache, sequence, at)

    asked = [(prompt, {}) for prompt in prompts(3, seed=4, longest=80)]
    told, _ = play(llama, asked, **way)
    found, driver = play(llama, asked, guesses=6, told=told, wrong=0.4, step=spoil, **way)
    assert_same(found, told)
    for (prompt, _), each in zip(asked, told, strict=True):
        again = prompt + each["ids"] + [11, 12]
        number = driver.submit(again, max_tokens=8)
        driver.finish()
        assert driver.ids(number) == expected(llama, again, 8)


def write(memory, cache, sequence, at):
    """Put large numbers where the sequence's token `at` would be."""
    for arenas in (cache.keys, cache.values):
        for arena in arenas:
            if hasattr(memory, "table"):
                table = memory.table(sequence)
                if at // memory.page_size < len(table):
                    arena[table[at // memory.page_size] * memory.page_size + at % memory.page_size] = 50.0
            else:
                slab = memory.slab(sequence)
                if at < slab.size:
                    heads = arena.shape[1]
                    rows = slab.offset * heads + at + slab.size * torch.arange(heads)
                    arena.view(-1, arena.shape[-1])[rows] = 50.0


@pytest.mark.parametrize(("draft", "planned"), [((9, 9, 9), 1), ((9,), 2)])
def test_guesses_without_room_are_left_out_and_nobody_is_sent_back(draft, planned):
    """Two pages of four tokens: a seventh token is to be computed, and one more fits."""
    scheduler = Scheduler(PagedMemory(3, 4), max_running=1, step_tokens=16)
    sequence = Sequence(1, [5, 6, 7, 8, 9, 10], 6, 30)
    scheduler.add(sequence)
    scheduler.commit(scheduler.schedule())
    scheduler.settle(sequence, 11)
    sequence.draft = draft
    plan = scheduler.schedule()
    assert scheduler.preemptions == 0
    assert [chunk.length for chunk in plan.chunks] == ([planned] if planned > 1 else [])
    assert plan.decodes == ([] if planned > 1 else [sequence])
    scheduler.undo(plan)
    assert (sequence.computed, sequence.known, sequence.pending, sequence.prefilling) == (6, 7, 0, False)


def test_a_step_with_guesses_that_fails_ends_no_decoding_request(llama, monkeypatch):
    asked = [(prompt, {}) for prompt in prompts(2, seed=9)]
    told, _ = play(llama, asked)
    failed = []

    def fail(driver):
        if failed or not driver.core.counters.spec_decode_num_drafts_total:
            return
        runner, run = driver.core.runner, driver.core.runner.forward

        def broken(plan, last):
            if any(chunk.draft for chunk in plan.chunks) and not failed:
                failed.append(plan)
                raise RuntimeError("CUDA out of memory. Tried to allocate")
            return run(plan, last)

        monkeypatch.setattr(runner, "forward", broken)

    found, _ = play(llama, asked, guesses=6, told=told, wrong=0.1, step=fail)
    assert failed
    assert_same(found, told)


def test_a_verification_that_fails_keeps_what_was_delivered(llama, monkeypatch):
    asked = [(prompt, {}) for prompt in prompts(2, seed=10)]
    told, _ = play(llama, asked)
    fails = iter([True] * 2)

    def fail(*arguments):
        if next(fails, False):
            raise RuntimeError("no")
        return pick(*arguments)

    pick = drafting._sample_next
    monkeypatch.setattr(drafting, "_sample_next", fail)
    found, _ = play(llama, asked, guesses=6, told=told, wrong=0.1)
    assert next(fails, None) is None
    assert_same(found, told)


def test_models_on_caches_of_their_own_refuse_it():
    driver = Driver(make_model("bloom"), max_batch=2, num_speculative_tokens=4)
    assert "num_speculative_tokens" not in driver.info.sampling
    number = driver.submit([5, 6, 7], max_tokens=4)
    driver.finish()
    assert driver.core.counters.spec_decode_num_drafts_total == 0 and len(driver.ids(number)) == 4


def test_the_operators_setting_is_for_requests_that_do_not_say(llama):
    driver = Driver(copy.deepcopy(llama), max_batch=2, num_speculative_tokens=4)
    loop = [5, 6, 7] * 6
    one, other = driver.submit(loop, max_tokens=4), driver.submit(loop, max_tokens=4, num_speculative_tokens=0)
    driver.core._drain_commands()
    assert driver.core.generations[one].speculation.most == 4
    assert driver.core.generations[other].speculation is None
    driver.modify(one, num_speculative_tokens=2)
    driver.core._drain_commands()
    assert driver.core.generations[one].speculation.most == 2
    driver.finish()


def test_look_up_goes_on_as_the_likest_earlier_place_did():
    look = PromptLookup().propose
    assert look([1, 2, 3, 9, 8, 2, 3, 7, 1, 2, 3], 2) == [9, 8]
    assert PromptLookup().propose([2, 3, 7, 5, 2, 3, 9, 8, 2, 3], 2) == [9, 8], (
        "of several that are as like, the latest"
    )
    assert PromptLookup().propose([1, 2, 3], 4) == []
    assert PromptLookup().propose([8, 1, 2, 3, 4, 1], 2) == [2, 3], "a token that stood in one place alone"
    assert PromptLookup().propose([8, 1, 2, 3, 1, 4, 1], 2) == [], "it stood in two"
    assert PromptLookup().propose([5], 4) == []
    assert PromptLookup().propose([4, 4, 4, 4, 4, 4], 3) == [4, 4, 4], "a loop goes on"
    assert PromptLookup().propose([1, 2, 6, -5, 3, 1, 2], 3) == [6], "a picture's places are no tokens"


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 4), max_size=20),
    st.lists(st.integers(0, 4), min_size=1, max_size=60),
    st.lists(st.integers(0, 4), max_size=30),
)
def test_look_up_remembers_what_it_was_shown(prediction, first, more):
    look = PromptLookup(prediction)
    look.propose(first, 4)
    assert look.propose(first + more, 4) == PromptLookup(prediction).propose(first + more, 4)


def test_a_prediction_is_looked_up_up_to_its_end():
    assert PromptLookup([7, 8, 9, 10]).propose([1, 2, 7, 8], 4) == [9, 10]
    assert PromptLookup([7, 8, 9, 10]).propose([1, 2, 9, 10], 4) == []


def test_a_prediction_saves_steps_and_changes_no_token(llama, way):
    prompt = prompts(1, seed=11)[0]
    steps, answers = [], []
    plain = expected(copy.deepcopy(llama), prompt, NEW)
    wrong = [plain[0], *reversed(plain)]
    asked = [((), {}), (plain, {}), (wrong, {}), (plain, {"num_speculative_tokens": 0}), (plain, {"logprobs": 0})]
    for prediction, more in asked:
        driver = Driver(copy.deepcopy(llama), max_batch=2, **way)
        number = driver.submit(prompt, max_tokens=NEW, prediction=prediction, **more)
        count = 0
        while not driver.over(number):
            driver.step()
            count += 1
        driver.assert_clean()
        steps.append(count)
        answers.append(driver.ids(number))
    assert answers == [plain] * len(asked)
    assert steps[0] == steps[3] and steps[1] == steps[4] < steps[0] / 2 and steps[2] <= steps[0] + 1


def test_guesses_that_did_not_come_are_watched_until_they_do():
    look, text = PromptLookup(), [*range(1, 60), 3]
    while look.propose(text, 2):
        look.learn(0)
        text += [100 + len(text), text[-1] + 2]
    assert look._acceptance[0] < speculation.MIN_ACCEPTANCE < look._acceptance[1], (
        "of one token that matched, not of several"
    )
    text += [99, 20]
    assert look.propose(text, 4) == [], "not worth it any more, but watched"
    text += [21, 22, 23, 24]
    look.propose(text, 4)
    assert look._acceptance[0] > speculation.MIN_ACCEPTANCE, "all four would have come"
    assert look.propose([*text, 98, 50], 4) == [51, 52, 53, 54]


def test_guesses_are_told_apart_by_how_much_matched():
    look = PromptLookup()
    text = [1, 2, 3, 4, 5, 6, 7, 8]
    for tokens, kind in (([3], 0), ([2, 3], 1), ([1, 2, 3], 1), ([1, 2, 3, 4], 2)):
        look.propose([*text, 20, *tokens], 2)
        assert look._match_class == kind
        look = PromptLookup()


def test_drafts_grow_while_they_are_kept_and_are_longer_for_one_alone():
    state = Speculation(16)
    assert (state.count(99), state.count(99, alone=True), state.count(3, alone=True)) == (4, 8, 3)
    state.learn(4, 4)
    assert (state.count(99), state.count(99, alone=True)) == (8, 8)
    state.learn(8, 8)
    state.learn(16, 16)
    assert state.length == 16
    state.learn(16, 9)
    assert state.length == 10
    state.learn(10, 0)
    assert (state.length, Speculation(2).count(99, alone=True)) == (4, 2)


def test_a_draft_model_rests_where_nothing_is_kept():
    state = Speculation(16)
    rests = []
    for _ in range(8):
        state.learn(4, 0)
        rests.append(state.pause)
    assert rests == sorted(rests) and rests[0] >= 1 and rests[-1] == speculation.MAX_PAUSED_STEPS
    state.learn(1, 1)
    assert state.pause == 0 and state.misses == 0
    assert state.propose([1, 2, 3, 4, 1, 2], 9)
    state.learn(4, 0)
    assert state.pause == 0, "what the text before says is watched instead"


def test_more_guesses_than_the_bound_are_a_clear_error():
    with pytest.raises(ValueError, match="num_speculative_tokens"):
        EngineConfig(model="x", num_speculative_tokens=33)
