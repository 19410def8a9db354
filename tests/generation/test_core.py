"""The core: control of running generations, endings, errors that stay with their request, nothing left behind."""

import random
import threading

import pytest
import torch

from agent_server.engine_protocol.protocol import Constraint, Control, Delta, Finished, Progress
from agent_server.generation.core.constraint import Compiler, ConstraintError
from agent_server.generation.scheduling.messages import RequestFailed
from tests.generation.harness import DEVICE, Driver, expected, prompts
from tests.generation.tiny_models import make_model

PROMPT = [5, 6, 7, 8, 9]


@pytest.fixture(scope="module")
def model():
    return make_model("llama")


@pytest.fixture(params=["slab", "paged", "paged-overlap", "separate"])
def driver(request, model, fresh):
    return fresh(request.param)


@pytest.fixture
def fresh(model, monkeypatch):
    """Makes drivers over one model, by the kind of their memory."""

    def make(kind="slab", **options):
        import copy

        own = copy.deepcopy(model)
        if kind == "separate":
            from agent_server.generation.loading import runner_choice
            from agent_server.generation.loading.probe import UnpackableModel

            def unfit(model):
                raise UnpackableModel("the test says so")

            monkeypatch.setattr(runner_choice, "fit", unfit)
        memory = {"paged-overlap": "paged", "separate": "auto"}.get(kind, kind)
        options = {"max_batch": 8, "step_tokens": 32, "overlap": kind == "paged-overlap", **options}
        return Driver(own, memory=memory, **options)

    return make


SAMPLED = {"temperature": 1.0, "top_p": 0.95, "top_k": 100, "seed": 11, "max_tokens": 20, "logprobs": 1}


def alone(driver, prompt=PROMPT, **sampling):
    number = driver.submit(prompt, **sampling)
    driver.finish()
    return driver.ids(number)


def test_the_same_seed_gives_the_same_tokens_alone_and_among_31_others(fresh):
    wanted = alone(fresh(), **SAMPLED)
    crowd = fresh(max_batch=32)
    others = [crowd.submit(p, temperature=0.9, seed=n, max_tokens=5 + n) for n, p in enumerate(prompts(16))]
    crowd.step(3)
    number = crowd.submit(PROMPT, **SAMPLED)
    others += [crowd.submit(p, temperature=0.7, top_k=3, max_tokens=8) for p in prompts(15, seed=1)]
    crowd.finish()
    assert crowd.ids(number) == wanted
    assert len(set(wanted)) > 5
    crowd.assert_clean()


def test_other_seeds_give_other_tokens(driver):
    assert alone(driver, **SAMPLED) != alone(driver, **{**SAMPLED, "seed": 12})
    assert alone(driver, **{**SAMPLED, "seed": None}) != alone(driver, **{**SAMPLED, "seed": None})


def test_pause_and_resume_change_nothing_but_the_time(driver):
    """Penalties, seed and text go on where they were, though the row went to somebody else."""
    sampling = {**SAMPLED, "frequency_penalty": 0.5, "repetition_penalty": 1.1}
    wanted = alone(driver, **sampling)
    number = driver.submit(PROMPT, **sampling)
    driver.step(6)
    driver.pause(number)
    driver.step()
    seen = len(driver.ids(number))
    assert 0 < seen < 20
    assert driver.items[number][-1] == Control(action="paused", position=seen)
    others = [driver.submit(p, temperature=1.0, max_tokens=4, presence_penalty=1.0) for p in prompts(9, longest=20)]
    driver.finish()
    assert all(driver.over(other) for other in others)
    assert len(driver.ids(number)) == seen, "nothing comes while it is paused"
    driver.resume(number)
    driver.finish()
    assert driver.ids(number) == wanted
    assert [c.action for c in driver.controls(number)] == ["paused", "resumed"]
    driver.assert_clean()


def test_a_modification_counts_from_the_very_next_token(driver, model):
    number = driver.submit(PROMPT, temperature=1.5, seed=1, max_tokens=30)
    driver.step(6)
    driver.modify(number, temperature=0.0, max_tokens=12)
    driver.finish()
    control = driver.controls(number)[0]
    ids = driver.ids(number)
    assert control.action == "modified"
    before = sum(len(item.tokens) for item in driver.items[number][: driver.items[number].index(control)])
    assert control.position == before
    assert len(ids) == 12
    assert ids[before:] == expected(model, PROMPT + ids[:before], 12 - before)


def test_a_limit_below_what_is_there_ends_it_at_once(driver):
    number = driver.submit(PROMPT, max_tokens=50)
    driver.step(10)
    driver.modify(number, max_tokens=2)
    driver.step()
    assert driver.end(number).reason == "length"
    driver.finish()
    driver.assert_clean()


def test_cancelling_frees_the_row_within_a_step_in_every_state(driver):
    running = [driver.submit([n + 4] * 40, max_tokens=100) for n in range(8)]
    driver.step(12)
    waiting = driver.submit(PROMPT, max_tokens=100)
    paused = running.pop()
    driver.pause(paused)
    driver.step()
    for number in (*running, waiting, paused):
        driver.cancel(number)
    driver.step()
    driver.assert_clean()
    assert not any(driver.over(number) for number in running), "nobody listens: no last word"


def test_stop_strings_stop_tokens_and_the_end_of_sequence(driver):
    greedy = driver.submit(PROMPT, max_tokens=20)
    driver.finish()
    ids, text = driver.ids(greedy), driver.text(greedy)
    stop = text[6:9]
    cut = driver.submit(PROMPT, max_tokens=20, stop=(stop,))
    token = next(t for i, t in enumerate(ids[3:], 3) if t not in ids[:i])
    stopped = driver.submit(PROMPT, max_tokens=20, stop_token_ids=(token,))
    driver.finish()
    assert driver.text(cut) == text[: text.index(stop)]
    assert (driver.end(cut).reason, driver.end(cut).stop) == ("stop", stop)
    assert driver.ids(stopped) == ids[: ids.index(token) + 1]
    assert driver.tokens(stopped)[-1].text == ""
    assert (driver.end(stopped).reason, driver.end(stopped).stop) == ("stop", token)


def test_minimum_length_and_ignored_ends(fresh):
    driver = fresh()
    ids = alone(driver, max_tokens=20)
    driver.core.defaults = type(driver.core.defaults)(eos=frozenset({ids[4]}), temperature=0.0)
    early = ids.index(ids[4]) + 1
    ended = driver.submit(PROMPT, max_tokens=20, ignore_eos=False)
    longer = driver.submit(PROMPT, max_tokens=20, ignore_eos=False, min_tokens=early + 2)
    ignoring = driver.submit(PROMPT, max_tokens=20, ignore_eos=True)
    driver.finish()
    assert (len(driver.ids(ended)), driver.end(ended).reason, driver.end(ended).stop) == (early, "stop", None)
    assert len(driver.ids(longer)) >= early + 2 and ids[4] not in driver.ids(longer)[: early + 2]
    assert driver.ids(ignoring) == ids


def test_alternatives_are_spelled(driver):
    number = driver.submit(PROMPT, max_tokens=3, logprobs=3)
    driver.finish()
    for token in driver.tokens(number):
        assert [a.logprob for a in token.alternatives] == sorted((a.logprob for a in token.alternatives), reverse=True)
        assert token.id == token.alternatives[0].id and token.logprob == token.alternatives[0].logprob
    assert len(driver.tokens(number)[0].alternatives) == 3


UNFIT = {
    "too long": ({"prompt": [5] * 1024}, "context_length_exceeded"),
    "a million tokens": ({"prompt": PROMPT, "max_tokens": 1_000_000}, "context_length_exceeded"),
    "empty": ({"prompt": []}, "invalid_request"),
    "a token that is none": ({"prompt": [5, 320]}, "invalid_request"),
    "a bias for a token that is none": ({"prompt": PROMPT, "logit_bias": {999: 1.0}}, "invalid_request"),
    "a grammar without grammars": (
        {"prompt": PROMPT, "constraint": Constraint(kind="regex", value="a")},
        "invalid_request",
    ),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_does_not_fit_is_that_requests_error_alone(name, driver, model):
    other = driver.submit(PROMPT, max_tokens=10)
    driver.step(2)
    asked, kind = UNFIT[name]
    number = driver.submit(**asked)
    driver.finish()
    assert isinstance(driver.end(number), RequestFailed) and driver.end(number).kind == kind
    assert driver.ids(other) == expected(model, PROMPT, 10)
    driver.assert_clean()


def test_what_the_memory_cannot_hold_is_refused_at_once(fresh, model):
    driver = fresh("slab", kv_cache_bytes=128 * 2 * 2 * 2 * 12 * 4)
    number = driver.submit([5] * 400)
    driver.step()
    assert driver.end(number).kind == "out_of_memory"
    assert driver.info.details["kv_cache_tokens"] == 128
    capped = driver.submit(PROMPT, max_tokens=500)
    driver.finish()
    room = 128 if DEVICE.type == "cpu" else 96  # a page of 32 is no sequence's
    assert len(driver.ids(capped)) == room - len(PROMPT), "it goes on for as long as there is room"
    assert driver.end(capped).reason == "length"


def test_a_full_queue_is_overload_and_says_that_a_retry_may_help(fresh):
    driver = fresh(max_batch=2, max_queued=1)
    numbers = [driver.submit(PROMPT, max_tokens=5) for _ in range(5)]
    driver.step()
    refused = [n for n in numbers if driver.over(n)]
    assert refused == numbers[3:]
    assert all((driver.end(n).kind, driver.end(n).retryable) == ("overloaded", True) for n in refused)
    driver.finish()
    assert all(driver.end(n).reason == "length" for n in numbers[:3])


def test_a_step_that_fails_ends_the_prompts_in_it_and_nobody_else(driver, model):
    other = driver.submit(PROMPT, max_tokens=12)
    driver.step(3)
    forward = driver.core.runner.forward
    poison = [200] * 5

    def failing(plan, last):
        if any(200 in chunk.tokens() for chunk in plan.chunks):
            raise torch.OutOfMemoryError("as if")
        return forward(plan, last)

    driver.core.runner.forward = failing
    number = driver.submit(poison, max_tokens=5)
    driver.finish()
    assert driver.end(number).kind == "out_of_memory"
    assert driver.ids(other) == expected(model, PROMPT, 12)
    driver.assert_clean()


def test_metrics_by_the_names_that_operators_know(driver):
    numbers = [driver.submit([n + 4] * 10, max_tokens=4) for n in range(9)]
    driver.step(2)
    metrics = driver.core.metrics()
    assert (metrics["num_requests_running"], metrics["num_requests_waiting"]) == (8, 1)
    assert metrics["kv_cache_usage_perc"] > 0
    driver.finish()
    metrics = driver.core.metrics()
    assert metrics["num_requests_running"] == metrics["kv_cache_usage_perc"] == 0
    assert (metrics["prompt_tokens_total"], metrics["generation_tokens_total"]) == (90, 36)
    assert metrics["time_to_first_token_seconds_count"] == len(numbers)
    assert metrics["prefix_cache_queries_total"] == 90


@pytest.mark.parametrize("kind", ["slab", "paged", "paged-overlap"])
def test_nothing_is_left_after_random_operations(fresh, kind):
    """10,000 submits, cancels, pauses, modifications and resumes over all kinds of memory."""
    chance = random.Random(kind)
    driver = fresh(kind, max_batch=4, step_tokens=24, max_queued=16, kv_cache_bytes=2048 * 2 * 2 * 2 * 12 * 4)
    forward = driver.core.runner._model_forward

    def cheap(ids, positions, batch, ends):
        return torch.nn.functional.one_hot(ids[ends] * 7 % 316 + 4, 320).float() * 9

    driver.core.runner._model_forward = cheap
    live = []
    for _ in range(10_000):
        action = chance.choice(["submit", "submit", "cancel", "pause", "resume", "modify"])
        if action == "submit":
            prompt = [5] * chance.randrange(1, 90) + [chance.randrange(4, 300)]
            shared = {"tenant": chance.choice("ab"), "priority": chance.randrange(3)}
            live.append(driver.submit(prompt, max_tokens=chance.randrange(1, 40), logprobs=1, **shared))
        elif live:
            number = chance.choice(live)
            if action == "modify":
                changes = [{"max_tokens": 3}, {"temperature": 1.0}, {"frequency_penalty": 0.5}, {"stop": ["a"]}]
                driver.modify(number, **chance.choice(changes))
            else:
                getattr(driver, action)(number)
            if action == "cancel":
                live.remove(number)
        driver.step(chance.randrange(2))
    assert forward is not None
    for number in live:
        driver.resume(number)
        if chance.random() < 0.5:
            driver.cancel(number)
    driver.finish()
    driver.assert_clean()
    for number, items in driver.items.items():
        ends = [item for item in items if isinstance(item, Finished | RequestFailed)]
        assert len(ends) <= 1 and (not ends or items[-1] is ends[0])
        if ends and isinstance(ends[0], Finished):
            assert ends[0].usage.completion_tokens == len(driver.ids(number))


class Letters:
    """A grammar that allows the ids of a list, in turn, and then the end; its backend counts what it is asked."""

    def __init__(self, ids):
        self.ids, self.at = ids, 0

    def matcher(self):
        return Letters(self.ids)

    def accept(self, token):
        allowed = self.at < len(self.ids) and token == self.ids[self.at]
        self.at += allowed
        return allowed

    def rollback(self, count):
        self.at -= count

    @property
    def finished(self):
        return self.at == len(self.ids)

    accepting = finished
    error = None
    forced = ()


class Backend:
    ends = (2,)

    def __init__(self):
        self.fills = []

    def compile(self, constraint):
        if constraint.value == "broken":
            raise ConstraintError("This grammar is broken.")
        return Letters(constraint.value)

    def fill(self, matchers, bits):
        self.fills.append(len(matchers))
        bits.zero_()
        for row, matcher in enumerate(matchers):
            token = matcher.ids[matcher.at] if not matcher.finished else 2
            bits[row, token // 32] = 1 << (token % 32) if token % 32 < 31 else -(1 << 31)


def settle(driver):
    """Compiling happens in another thread; wait for its answer."""
    for _ in range(2000):
        if not any(generation.sequence.blocked for generation in driver.core.generations.values()):
            return
        driver.core.wait(0.01)


@pytest.mark.parametrize("kind", ["slab", "paged-overlap"])
def test_constrained_rows_follow_their_grammar_among_free_ones(model, kind):
    import copy

    backend = Backend()
    memory = {"paged-overlap": "paged"}.get(kind, kind)
    driver = Driver(
        copy.deepcopy(model), compiler=Compiler(backend), memory=memory, overlap=kind != "slab", max_batch=4
    )
    driver.core.defaults = type(driver.core.defaults)(eos=frozenset({2}))
    free = driver.submit(PROMPT, max_tokens=20)
    driver.step(4)
    bound = [
        driver.submit([n + 9] * 6, temperature=1.0, ignore_eos=False, max_tokens=30,
                      constraint=Constraint(kind="choice", value=[50 + n, 63, 95, 60]))
        for n in range(2)
    ]  # fmt: skip
    broken = driver.submit(PROMPT, constraint=Constraint(kind="choice", value="broken"))
    driver.step()
    settle(driver)
    driver.step(2)
    driver.pause(bound[0])
    driver.step(2)
    driver.resume(bound[0])
    driver.finish()
    for n, number in enumerate(bound):
        assert driver.ids(number) == [50 + n, 63, 95, 60], "a complete answer ends"
        assert driver.end(number).reason == "stop"
    assert driver.end(broken).message == "This grammar is broken."
    assert driver.ids(free) == expected(model, PROMPT, 20)
    assert max(backend.fills) == 2, "both masks were filled in one go"
    driver.assert_clean()


def test_a_grammar_that_takes_too_long_is_refused():
    release, answers = threading.Event(), []

    class Slow(Backend):
        def compile(self, constraint):
            release.wait(10)
            return Letters([])

    compiler = Compiler(Slow(), time_limit=0.05)
    told = threading.Event()
    compiler.compile(Constraint(kind="regex", value="a"), lambda grammar, error: (answers.append(error), told.set()))
    assert told.wait(10)
    release.set()
    compiler.close()
    assert answers == ["The grammar takes too long to compile."]


def test_a_grammar_too_large_is_refused_and_a_known_one_is_not_compiled_again():
    backend, seen = Backend(), []
    compiled = threading.Event()
    compiler = Compiler(backend)
    huge = Constraint(kind="regex", value="a" * 600_000)
    compiler.compile(huge, lambda grammar, error: seen.append(error))
    assert "the limit is" in seen[0]
    known = Constraint(kind="choice", value=[1])
    compiler.compile(known, lambda grammar, error: (seen.append(grammar), compiled.set()))
    assert compiled.wait(10)
    backend.compile = None
    compiler.compile(known, lambda grammar, error: seen.append(grammar))
    assert seen[1] is seen[2]
    compiler.close()


def test_grammars_are_cached_up_to_the_size_of_their_constraints():
    compiler = Compiler(Backend())
    done = threading.Semaphore(0)
    for number in range(4):
        constraint = Constraint(kind="choice", value=[f"{number}" * 400_000])
        compiler.compile(constraint, lambda grammar, error: done.release())
        assert done.acquire(timeout=10)
    compiler.close()
    assert len(compiler._cache) == 2


def test_an_empty_delta_is_never_sent(driver):
    number = driver.submit(PROMPT, max_tokens=20, stop=("zzzzzz",))
    driver.finish()
    assert all(item.tokens for item in driver.items[number] if isinstance(item, Delta))


def test_what_is_cached_is_found_with_the_same_salt_alone(driver):
    said = {salt: list(range(4, 200)) for salt in ("", "one", "two")}
    cached = []
    for salt in ("", "", "one", "two", "one", ""):
        number = driver.submit(said[salt], salt=salt, max_tokens=2)
        driver.finish()
        cached.append(driver.end(number).usage.cached_tokens > 0)
        said[salt] = [*said[salt], *driver.ids(number), 5]
    assert cached == [False, True, False, False, True, True]


def told(driver, number):
    items = driver.items[number]
    reports = [item for item in items if isinstance(item, Progress)]
    assert all(isinstance(item, Progress) for item in items[: len(reports)]), "in front of the first token"
    return [(item.total, item.cached, item.processed) for item in reports]


def test_a_prompt_says_how_far_it_is(driver):
    prompt = [20 + index % 60 for index in range(75)]
    first = driver.submit(prompt, max_tokens=3, progress=True)
    silent = driver.submit([7, *prompt], max_tokens=3)
    driver.finish()
    reports = told(driver, first)
    assert reports[0] == (75, 0, 0) and reports[-1] == (75, 0, 75)
    # A GPU may be done with several chunks before it is asked.
    assert len(reports) >= (2 if driver.core.scheduler.chunked is False or DEVICE.type == "cuda" else 4)
    assert reports == sorted(set(reports)) and not told(driver, silent)
    again = driver.submit(prompt, max_tokens=3, progress=True)
    driver.finish()
    reports = told(driver, again)
    assert reports[0][1] == reports[0][2] == driver.end(again).usage.cached_tokens
    assert reports[-1][2] == 75 and not driver.core.progress
    assert driver.ids(again) == driver.ids(first)


def test_a_prompt_that_is_computed_again_does_not_go_back(fresh):
    driver = fresh("paged")
    number = driver.submit([20 + index % 60 for index in range(75)], max_tokens=2, progress=True)
    driver.step(3)
    driver.core.scheduler.preempt(driver.core.generations[number].sequence)
    driver.finish()
    reports = told(driver, number)
    assert [processed for _, _, processed in reports] == sorted({processed for _, _, processed in reports})
    assert reports[-1] == (75, 0, 75)
