"""A core around a tiny model, driven step by step, without threads and without a clock.

Models are on the CPU, or on the device that TEST_DEVICE names (`make test-gpu`).
"""

import os
import sys
from contextlib import contextmanager

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from agent_server.engine_protocol.protocol import Control, Delta, Finished, GenerationRequest
from agent_server.generation.attention.attention import SDPA
from agent_server.generation.loading.loader import assemble
from agent_server.generation.own_caches.delta_rule import NAME, PIECES
from agent_server.generation.scheduling.messages import (
    Cancel,
    EngineConfig,
    Modify,
    Pause,
    RequestFailed,
    Resume,
    Submit,
)
from agent_server.model_files import ModelFiles
from events.options import SamplingParams
from tests.generation.tiny_models import make_tokenizer

DEVICE = torch.device(os.environ.get("TEST_DEVICE", "cpu"))


class Driver:
    """Submits, steps and collects."""

    def __init__(self, model, *, compiler=None, draft_model=None, **config):
        files = ModelFiles(tokenizer=make_tokenizer())
        settings = EngineConfig(**{"model": "tiny", "threads": 1, "flatten": False, **config})
        make_compiler = lambda files, size: compiler  # noqa: E731
        if draft_model is not None:
            draft_model = draft_model.to(DEVICE)
        self._begin(*assemble(settings, model.to(DEVICE), files, DEVICE, make_compiler, draft=draft_model))

    @classmethod
    def around(cls, core, info):
        """A driver over a core that was loaded elsewhere."""
        driver = cls.__new__(cls)
        driver._begin(core, info)
        return driver

    def _begin(self, core, info):
        self.core, self.info = core, info
        self.items = {}
        self.number = 0

    def submit(
        self,
        prompt,
        *,
        tenant="",
        priority=0,
        constraint=None,
        pictures=(),
        sounds=(),
        generated=(),
        thought=None,
        salt="",
        cache_hold=None,
        adapter="",
        progress=False,
        prediction=(),
        **sampling,
    ):
        self.number += 1
        sampling = {"temperature": 0.0, "ignore_eos": True, **sampling}
        request = GenerationRequest(
            request_id=str(self.number),
            prompt_token_ids=tuple(prompt),
            sampling=SamplingParams(**sampling),
            tenant=tenant,
            priority=priority,
            constraint=constraint,
            pictures=tuple(pictures),
            sounds=tuple(sounds),
            generated=tuple(generated),
            cache_hold=cache_hold,
            thought=thought,
            cache_salt=salt,
            adapter=adapter,
            progress=progress,
            prediction=tuple(prediction),
        )
        self.items[self.number] = []
        self.core.inbox.put(Submit(self.number, request))
        return self.number

    def step(self, times=1):
        for _ in range(times):
            for number, item in self.core.step():
                assert not self.over(number), "nothing may follow the end"
                self.items[number].append(item)

    def finish(self, limit=5000):
        """Until nothing is left to do."""
        for _ in range(limit):
            if self.core.idle and self.core.inbox.empty():
                return
            self.step()
        raise AssertionError("the core does not come to rest")

    def cancel(self, number):
        self.core.inbox.put(Cancel(number))

    def pause(self, number):
        self.core.inbox.put(Pause(number))

    def resume(self, number):
        self.core.inbox.put(Resume(number))

    def modify(self, number, **changes):
        self.core.inbox.put(Modify(number, changes))

    def over(self, number):
        return bool(self.items[number]) and isinstance(self.items[number][-1], Finished | RequestFailed)

    def tokens(self, number):
        return [token for item in self.items[number] if isinstance(item, Delta) for token in item.tokens]

    def ids(self, number):
        return [token.id for token in self.tokens(number)]

    def text(self, number):
        return "".join(token.text for token in self.tokens(number))

    def controls(self, number):
        return [item for item in self.items[number] if isinstance(item, Control)]

    def end(self, number):
        assert self.over(number)
        return self.items[number][-1]

    def assert_clean(self):
        """No row, memory or generation is left."""
        core = self.core
        assert core.generations == {}
        assert core.loras is None or not any(core.loras._users.values())
        assert core.scheduler.running == [] and not core.scheduler.paused and not core.scheduler.waiting
        assert sorted(core.scheduler._rows) == list(range(core.scheduler.max_running))
        assert core.scheduler.queue.tenants == {} and core.scheduler.queue.overdue == []
        assert core.scheduler.memory.usage == 0
        leases = core.scheduler.memory.leases
        leases.expire(float("inf"))
        assert len(leases) == leases.tokens == 0
        assert set(core.sampler.occupants) == {-1}


@contextmanager
def transformers_own(model):
    """The model's code as transformers has it, without what the core put in its place."""
    codes = [sys.modules[name] for name in {type(module).__module__ for module in model.modules()}]
    put = [
        (code, name, rule)
        for code in codes
        for name in (NAME, PIECES)
        if hasattr(rule := getattr(code, name, None), "with_single_queries")
    ]
    for code, name, rule in put:
        setattr(code, name, rule.__wrapped__)
    attend = ALL_ATTENTION_FUNCTIONS[SDPA]
    ALL_ATTENTION_FUNCTIONS[SDPA] = getattr(attend, "__wrapped__", attend)
    try:
        yield
    finally:
        ALL_ATTENTION_FUNCTIONS[SDPA] = attend
        for code, name, rule in put:
            setattr(code, name, rule)


def expected(model, prompt, count):
    """What transformers itself generates, greedily."""
    with torch.inference_mode(), transformers_own(model):
        ids = torch.tensor([prompt], device=model.device)
        mask = torch.ones_like(ids)
        out = model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
        )
    return out[0, len(prompt) :].tolist()


def assert_greedy(model, prompt, ids):
    """What transformers itself would generate: each token is the likeliest after those before it, in one forward."""
    with torch.inference_mode(), transformers_own(model):
        logits = model(torch.tensor([prompt + ids], device=model.device), use_cache=False).logits
    assert ids == logits[0, len(prompt) - 1 : -1].argmax(-1).tolist(), f"prompt of {len(prompt)} tokens"


def prompts(count, seed=0, longest=90, vocab=300):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest, (count,), generator=generator).tolist()
    return [torch.randint(4, vocab, (length,), generator=generator).tolist() for length in lengths]
