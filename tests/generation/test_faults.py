"""Steps that fail: nothing wrong is found later, too little memory makes steps smaller, a lost device ends the worker."""

import copy
from queue import SimpleQueue

import pytest
import torch

from agent_server.engine_protocol.protocol import EngineError, EngineInfo, GenerationRequest
from agent_server.generation.core.generation import HONOURED
from agent_server.generation.faults import DeviceLost, first_line, out_of_memory, raise_if_lost
from agent_server.generation.process import worker
from agent_server.generation.scheduling import scheduler
from agent_server.generation.scheduling.messages import (
    EngineConfig,
    Ready,
    Replies,
    RequestFailed,
    Submit,
    WorkerFailed,
)
from events.options import SamplingParams
from tests.generation.harness import Driver, expected, prompts
from tests.generation.tiny_models import make_model

PROMPT = [5, 6, 7, 8, 9] * 9
COUNT = 12


@pytest.fixture(scope="module")
def model():
    return make_model("llama")


@pytest.fixture(params=["slab", "paged", "paged-overlap"])
def driver(request, model):
    return make(model, request.param)


def make(model, kind="paged", **options):
    options = {"max_batch": 8, "step_tokens": 64, "overlap": kind == "paged-overlap", **options}
    return Driver(copy.deepcopy(model), memory=kind.removesuffix("-overlap"), **options)


def failing(driver, when, error):
    """From here on the model raises `error` for a step of so many tokens as `when` says."""
    forward = driver.core.runner.model.forward
    raised = []

    def fail(*given, **named):
        if when(named["input_ids"].shape[1]):
            raised.append(named["input_ids"].shape[1])
            raise type(error)(*error.args)
        return forward(*given, **named)

    driver.core.runner.model.forward = fail
    return raised


def once():
    left = [True]
    return lambda tokens: bool(left and left.pop())


def test_nothing_of_a_prompt_that_failed_is_found_later(driver, model):
    failing(driver, once(), RuntimeError("as if"))
    first = driver.submit(PROMPT, max_tokens=COUNT)
    driver.finish()
    assert driver.end(first).kind == "internal"
    again = driver.submit(PROMPT, max_tokens=COUNT)
    driver.finish()
    assert driver.end(again).usage.cached_tokens == 0
    assert driver.ids(again) == expected(model, PROMPT, COUNT)
    driver.assert_clean()


def test_what_was_computed_before_a_later_chunk_failed_is_found_and_right(model):
    """And what lay behind it is not, even after its memory went to others."""
    for kind in ("slab", "paged"):
        driver = make(model, kind, step_tokens=40)
        prompt = (PROMPT * 3)[:100]
        count = iter((False, True, False))
        failing(driver, lambda tokens, count=count: next(count, False), RuntimeError("as if"))
        driver.submit(prompt, max_tokens=COUNT)
        driver.finish()
        again = driver.submit(prompt, max_tokens=COUNT)
        driver.finish()
        assert driver.ids(again) == expected(model, prompt, COUNT)
        assert driver.end(again).usage.cached_tokens <= 40


def test_out_of_memory_at_a_prompt_is_tried_again_in_smaller_pieces(driver, model):
    raised = failing(driver, lambda tokens: tokens > 24, torch.OutOfMemoryError("CUDA out of memory. Tried"))
    asked = prompts(5, seed=4, longest=90)
    numbers = [driver.submit(prompt, max_tokens=COUNT) for prompt in asked]
    driver.finish()
    assert raised and driver.core.scheduler.preemptions > 0
    for number, prompt in zip(numbers, asked, strict=True):
        assert driver.ids(number) == expected(model, prompt, COUNT)
    driver.assert_clean()


def test_out_of_memory_while_decoding_sends_sequences_back(driver, model):
    asked = [[n + 5] * 3 for n in range(6)]
    numbers = [driver.submit(prompt, max_tokens=COUNT) for prompt in asked]
    driver.step(3)
    raised = failing(driver, lambda tokens: tokens in (5, 6), torch.OutOfMemoryError("CUDA out of memory."))
    driver.finish()
    assert raised
    assert [driver.ids(number) for number in numbers] == [expected(model, prompt, COUNT) for prompt in asked]
    driver.assert_clean()


def test_out_of_memory_in_the_sampler_is_tried_again_too(driver, model, monkeypatch):
    sample, fails = driver.core.sampler.sample, [True]

    def exhausted(*given):
        if fails and fails.pop(0):
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return sample(*given)

    monkeypatch.setattr(driver.core.sampler, "sample", exhausted)
    numbers = [driver.submit(prompt, max_tokens=COUNT) for prompt in (PROMPT, [7, 8])]
    driver.finish()
    assert [driver.ids(n) for n in numbers] == [expected(model, prompt, COUNT) for prompt in (PROMPT, [7, 8])]
    driver.assert_clean()


def test_what_does_not_fit_alone_and_in_pieces_ends_with_a_reason(driver):
    failing(driver, lambda tokens: True, MemoryError())
    number = driver.submit(PROMPT, max_tokens=COUNT)
    driver.finish()
    assert driver.end(number).kind == "out_of_memory" and "even alone" in driver.end(number).message
    driver.assert_clean()


def test_after_a_while_more_is_tried_again(model, monkeypatch):
    monkeypatch.setattr(scheduler, "GROW_BACK_STEPS", 4)
    driver = make(model, max_batch=8)
    failing(driver, once(), MemoryError())
    numbers = [driver.submit([n + 5] * 3, max_tokens=40) for n in range(8)]
    driver.step()
    most = []
    for _ in range(60):
        driver.step()
        most.append(len(driver.core.scheduler.running))
    assert most[1] == 4 and max(most) == 8
    driver.finish()
    assert all(len(driver.ids(number)) == 40 for number in numbers)


@pytest.mark.parametrize("error", [KeyError("no_such_state"), AttributeError("seen"), TypeError("given")])
def test_whatever_a_models_code_raises_is_the_requests_error(driver, model, error):
    failing(driver, once(), error)
    number = driver.submit(PROMPT, max_tokens=COUNT)
    driver.finish()
    assert driver.end(number).kind == "internal"
    again = driver.submit(PROMPT, max_tokens=COUNT)
    driver.finish()
    assert driver.ids(again) == expected(model, PROMPT, COUNT)


LOST = torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nCompile with more")


def test_a_lost_device_with_nothing_in_flight_ends_the_worker_and_its_runs(model, monkeypatch):
    driver = make(model, max_batch=1)
    failing(driver, lambda tokens: True, LOST)
    info = EngineInfo(model="tiny", context_length=8, vocab_size=8, sampling=HONOURED)
    monkeypatch.setattr(worker, "load", lambda *_: (driver.core, info))
    inbox, said = SimpleQueue(), []
    for number in (1, 2):
        request = GenerationRequest(request_id=str(number), prompt_token_ids=(5, 6), sampling=SamplingParams())
        inbox.put(Submit(number, request))
    worker.work(EngineConfig(model="tiny"), inbox, said.append)  # it returns: the process ends
    assert isinstance(said[0], Ready) and isinstance(said[-1], WorkerFailed)
    ends = {number: item for report in said if isinstance(report, Replies) for number, item in report.items}
    sentence = "The device failed: CUDA error: an illegal memory access was encountered. The engine is being restarted."
    assert ends == {number: RequestFailed("internal", sentence, True) for number in (1, 2)}


@pytest.mark.parametrize(
    ("error", "answer", "lost"),
    [
        (LOST, None, True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"), LOST, True),
        (RuntimeError("shapes do not match"), None, False),
        (torch.OutOfMemoryError("CUDA out of memory."), LOST, False),
        (torch.AcceleratorError("CUDA error: out of memory"), LOST, False),
    ],
)
def test_a_device_is_asked_whether_it_still_works(error, answer, lost, monkeypatch):
    def synchronize(device):
        if answer is not None:
            raise answer

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    if not lost:
        assert raise_if_lost(error, torch.device("cuda:0")) is None
        assert out_of_memory(error) == ("out of memory" in str(error))
        return
    with pytest.raises(DeviceLost, match="illegal memory access was encountered"):
        raise_if_lost(error, torch.device("cuda:0"))


def test_the_first_line_of_an_error_without_one():
    assert first_line(EngineError("internal", "")) == "EngineError"
