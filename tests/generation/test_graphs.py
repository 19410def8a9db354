"""Decoding by graphs, without a GPU: the kernel is a reference by its documentation, and a graph is the captured
function, run again on its static tensors. What is left is the bookkeeping, which is ours."""

import copy
import logging
import math
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from agent_server.generation.execution import graphs, runner
from agent_server.generation.execution.graphs import CudaCapture
from agent_server.generation.loading import attention_kernels
from agent_server.generation.scheduling.pages import PagedMemory
from tests.generation.harness import Driver, expected, prompts
from tests.generation.tiny_models import make_model

COUNT = 24
PAGE = 8


def reference_kernel(
    query,
    key,
    value,
    cu_seq_q,
    cu_seq_k,
    max_q,
    max_k,
    *,
    scale,
    window_size,
    enable_gqa,
    seqused_k,
    block_table,
    num_splits=None,
):
    """`varlen_attn` with a block table, sequence by sequence, from the tensors alone."""
    out = torch.full_like(query, math.nan)  # what is computed for tokens of no sequence must not matter
    groups = query.shape[1] // key.shape[2]
    assert enable_gqa == (groups > 1) and block_table.dtype == seqused_k.dtype == cu_seq_q.dtype == torch.int32
    assert int(seqused_k.max()) <= max_k and int(cu_seq_q.diff().max()) <= max_q
    assert num_splits == 1 or (max_q == 1 and window_size == (-1, -1)), "what else it does is wrong"
    for index, used in enumerate(seqused_k.tolist()):
        first, last = cu_seq_q[index : index + 2].tolist()
        keys, values = (
            pool[block_table[index]].flatten(0, 1)[:used].repeat_interleave(groups, 1) for pool in (key, value)
        )
        places = torch.arange(used - (last - first), used)[:, None]
        seen = (torch.arange(used) <= places) & ((window_size[0] < 0) | (torch.arange(used) >= places - window_size[0]))
        scores = torch.einsum("qhd,khd->hqk", query[first:last], keys) * scale
        weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
        out[first:last] = torch.einsum("hqk,khd->qhd", weights, values)
    return out


class Reference(attention_kernels.VarlenKernel):
    """torch's kernel, but for numbers and head sizes that a CPU's tests use."""

    page_size = PAGE

    def refuses(self, layer, dtype):
        return super().refuses(replace(layer, key_dim=8, value_dim=8), torch.bfloat16)


class Replays:
    """A capture as CUDA's: runs once when captured, and again on the same tensors with every replay. `replayed` has how
    many logits each replay made: as many as the bucket, and MAX_CHUNKS more where it has room for chunks."""

    def __init__(self):
        self.captured, self.replayed = 0, []

    def __call__(self, function):
        self.captured += 1
        rows = len(function())

        def replay():
            self.replayed.append(rows)
            function()

        return replay

    def seconds(self, replay):
        return 1.0


@pytest.fixture
def replays(monkeypatch):
    """The way of CUDA on a CPU: pages of a kernel, and graphs."""
    made = Replays()
    kernel = Reference(reference_kernel)
    monkeypatch.setattr(
        attention_kernels,
        "choose",
        lambda device, dtype, layers, slow: None if any(kernel.refuses(each, dtype) for each in layers) else kernel,
    )
    capture = runner.PackedRunner.capture
    monkeypatch.setattr(
        runner.PackedRunner, "capture", lambda *given, **named: capture(*given, **named, how=lambda: made)
    )
    return made


def drive(model, asked, **options):
    driver = Driver(copy.deepcopy(model), memory="paged", max_batch=6, step_tokens=32, **options)
    numbers = []
    for prompt in asked:
        numbers.append(driver.submit(prompt, max_tokens=COUNT))
        driver.step()
    driver.finish()
    driver.assert_clean()
    return driver, [driver.ids(number) for number in numbers]


def test_the_buckets():
    assert graphs.buckets(1) == [1]
    assert graphs.buckets(6) == [1, 2, 4, 6]
    assert graphs.buckets(33) == [1, 2, 4, 8, 16, 24, 32, 33]
    assert graphs.mixed_buckets(1) == [1]
    assert graphs.mixed_buckets(6) == [1, 4, 6]
    assert graphs.mixed_buckets(64) == [1, 4, 16, 64]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("family", ["llama", "llama-tied", "qwen3", "mistral-window"])
def test_replayed_steps_give_the_models_own_tokens(family, overlap, replays):
    """Batches that grow and shrink through the buckets, pages that are shared, taken away and given to others."""
    model = make_model(family)
    asked = prompts(9, seed=3, longest=40)
    asked += [asked[0] * 2 + [7], asked[0] * 2 + [8]]
    size = 34 * PAGE * 2 * 2 * (16 if family == "qwen3" else 12) * 4 * (2 if family == "llama-tied" else 1)
    driver, found = drive(model, asked, overlap=overlap, kv_cache_bytes=size * 2)
    assert found == [expected(model, prompt, COUNT) for prompt in asked]
    assert driver.info.details["cuda_graphs"] is True
    assert driver.core.scheduler.preemptions > 0, "the memory was to be too small"
    assert replays.captured == 4 + 3
    assert {1, 2, 4, 6} < set(replays.replayed) <= {1, 2, 4, 6, 9, 12, 14}, "with chunks they are 1, 4 and 6 and 8 more"
    assert {9, 12, 14} & set(replays.replayed)


def test_a_long_prompt_beside_decoding_is_computed_by_graphs_in_chunks(replays):
    """Each step in which others decode has one chunk of bounded length, and is replayed; a prompt alone is not cut."""
    model = make_model("qwen3")
    driver = Driver(copy.deepcopy(model), memory="paged", max_batch=6, step_tokens=200, chunk_tokens=16)
    short, long = prompts(3, seed=5, longest=12), list(range(10, 250))
    numbers = [driver.submit(prompt, max_tokens=COUNT) for prompt in short]
    driver.step()
    assert replays.replayed == [], "40 tokens beside nobody: one step, which has more than a graph's 16"
    driver.step(2)
    assert replays.replayed == [4, 4]
    before, numbers = driver.core.scheduler.running[0].computed, [*numbers, driver.submit(long, max_tokens=COUNT)]
    driver.step(15)
    assert replays.replayed[2:] == [4 + graphs.MAX_CHUNKS] * 15, "240 tokens, 16 a step"
    assert driver.core.scheduler.running[0].computed == before + 15, "nobody waited"
    driver.step()
    assert replays.replayed[-1] == 4
    driver.finish()
    assert [driver.ids(number) for number in numbers] == [expected(model, prompt, COUNT) for prompt in [*short, long]]


def test_what_a_graph_has_no_place_for_is_run_as_it_is(replays):
    """Prompts that are scored or guessed from, and more chunks than places."""
    model = make_model("llama")
    driver = Driver(copy.deepcopy(model), memory="paged", max_batch=10, step_tokens=64)
    scored = driver.submit([5, 6, 7] * 5, max_tokens=2, prompt_logprobs=1)
    driver.finish()
    assert replays.replayed == [1], "the step behind the prompt"
    many = [driver.submit([5, 6, number], max_tokens=2) for number in range(10, 20)]
    driver.step()
    assert replays.replayed == [1]
    driver.finish()
    guessing = driver.submit([5, 6, 7, 8] * 6, max_tokens=8, num_speculative_tokens=4, logit_bias={5: 100.0})
    driver.finish()
    assert driver.ids(guessing) == [5] * 8 and driver.core.counters.spec_decode_num_drafts_total
    assert len(driver.end(scored).prompt_logprobs) == 15
    assert [driver.ids(n) for n in many] == [expected(model, [5, 6, number], 2) for number in range(10, 20)]


@pytest.mark.parametrize(
    ("alone", "cost", "tokens"),
    [
        (1.0, 0.0, 1024),
        (1.0, 0.2 / 512, 512),
        (1.0, 0.2 / 511, 256),
        (1.0, 1 / 400, 64),
        (1.0, 1.0, 64),
        (0.001, 8e-6, 1024),
        (0.001, 16e-6, 512),
    ],
)
def test_chunks_are_as_long_as_hardly_makes_a_step_longer(alone, cost, tokens):
    """By the seconds of a replay: `alone` if no tokens are computed beside it, and each token `cost` more. A step of
    less than ten milliseconds is short, however much of it is the chunk."""
    seen = []

    class Timed(Replays):
        def seconds(self, replay):
            replay()
            return alone + cost * (seen[-1] - 1)

    def forward(ids, positions, wanted, batch):
        seen.append(len(ids))
        return torch.zeros(len(ids) if wanted is None else len(wanted), 7)

    last = torch.zeros(4, dtype=torch.int64)
    made = graphs.StepGraphs(forward, PagedMemory(9, PAGE), lambda paging: paging, last=last, width=8, capture=Timed())
    assert made.warm(lambda share: None, [], chunk_tokens=0, step_tokens=4096)
    assert made.chunk_tokens == tokens
    assert {layout.tokens for layout in made._captured} == {0, 64, tokens}, "those that were only tried are gone"


def test_steps_with_chunks_that_cannot_be_captured_are_said_and_decoding_still_is(replays, monkeypatch, caplog):
    captured = Replays.__call__

    def failing(self, function):
        if self.captured == 4:
            raise RuntimeError("operation not permitted when stream is capturing")
        return captured(self, function)

    monkeypatch.setattr(Replays, "__call__", failing)
    model = make_model("llama")
    asked = prompts(3, longest=20)
    with caplog.at_level(logging.WARNING):
        driver, found = drive(model, asked)
    assert "Steps with prompts cannot be captured in CUDA graphs" in caplog.text
    assert driver.info.details["cuda_graphs"] is True and set(replays.replayed) <= {1, 2, 4, 6}
    assert driver.info.details["slow"] == [
        "Steps with prompts cannot be captured in CUDA graphs and are slower: operation not permitted when stream is "
        "capturing."
    ]
    assert found == [expected(model, prompt, COUNT) for prompt in asked]


def test_seeds_and_control_are_the_same_by_graphs(replays):
    model = make_model("llama")
    sampling = {"temperature": 1.0, "top_p": 0.9, "seed": 5, "max_tokens": 20, "logprobs": 1}

    def run(cuda_graphs):
        driver = Driver(copy.deepcopy(model), memory="paged", max_batch=4, cuda_graphs=cuda_graphs)
        number = driver.submit([5, 6, 7], **sampling)
        others = [driver.submit(prompt, max_tokens=9) for prompt in prompts(3, longest=20)]
        driver.step(6)
        driver.pause(number)
        driver.step(3)
        driver.resume(number)
        driver.finish()
        return [driver.ids(n) for n in (number, *others)]

    with_graphs = run(True)
    assert replays.replayed
    count = len(replays.replayed)
    assert run(False) == with_graphs
    assert len(replays.replayed) == count, "the switch is off"


def test_a_rows_pages_are_copied_only_when_they_change(replays, monkeypatch):
    copied = []
    send = graphs.send
    monkeypatch.setattr(
        graphs, "send", lambda values, dtype, device: (copied.append(dtype), send(values, dtype, device))[1]
    )
    driver = Driver(make_model("llama"), memory="paged", max_batch=2)
    number = driver.submit([5] * 3, max_tokens=2 * PAGE)
    driver.finish()
    assert len(driver.ids(number)) == 2 * PAGE
    steps, tables = copied.count(torch.int64), copied.count(torch.int32)
    assert steps == len(replays.replayed) == 2 * PAGE
    assert tables == 3, "once when it began, and once for each page more"


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    ("fault", "kind"), [(torch.OutOfMemoryError, "out_of_memory"), (RuntimeError, "internal")], ids=["memory", "fault"]
)
def test_a_replay_that_fails_ends_the_prompts_in_it_and_nobody_else(fault, kind, overlap, replays, monkeypatch):
    """What others have of a broken step is computed again."""
    model = make_model("llama")
    driver = Driver(copy.deepcopy(model), memory="paged", max_batch=6, overlap=overlap, chunk_tokens=16)
    others = [driver.submit(prompt, max_tokens=COUNT) for prompt in prompts(3, longest=12)]
    driver.step(5)
    replay, poisoned = graphs.StepGraphs.replay, 0

    def failing(self, plan):
        nonlocal poisoned
        found = replay(self, plan)
        if found is not None and any(chunk.sequence.tokens[:5] == [200] * 5 for chunk in plan.chunks):
            poisoned += 1
            found.fill_(math.nan)
            raise fault("as if")
        return found

    monkeypatch.setattr(graphs.StepGraphs, "replay", failing)
    number = driver.submit([200] * 5, max_tokens=5)
    driver.finish()
    assert poisoned and driver.end(number).kind == kind
    assert [driver.ids(other) for other in others] == [expected(model, p, COUNT) for p in prompts(3, longest=12)]
    driver.assert_clean()


def test_a_capture_that_fails_is_said_and_decoding_goes_on(replays, monkeypatch, caplog):
    def failing(self, function):
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    monkeypatch.setattr(Replays, "__call__", failing)
    model = make_model("llama")
    asked = prompts(3, longest=20)
    with caplog.at_level(logging.WARNING):
        driver, found = drive(model, asked)
    assert "operation not permitted when stream is capturing" in caplog.text and "and more" not in caplog.text
    assert driver.info.details["cuda_graphs"] is False
    (sentence,) = driver.info.details["slow"]
    assert sentence.startswith("Decoding cannot be captured in CUDA graphs and is slower: operation not permitted")
    assert found == [expected(model, prompt, COUNT) for prompt in asked]


def test_a_failed_capture_restores_the_current_stream(monkeypatch):
    """torch.cuda.graph leaves its stream current, and the allocator and the generator in the capture, where ending an
    invalid capture raises, as it does here."""

    class Stream:
        device, device_index = torch.device("cpu"), 0

        def wait_stream(self, other):
            pass

    streams = [Stream()]

    class Graph:
        def __init__(self, graph, *, pool, stream, capture_error_mode):
            self.stream, self.pool = stream, pool

        def __enter__(self):
            used.append((self.stream, self.pool))
            streams.append(self.stream)

        def __exit__(self, kind, *rest):
            if kind is not None:
                raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
            streams.pop()

    class Generator:
        """Of CUDA: a CPU's has no state that graphs share."""

        state = "capturing"

        def __init__(self, device=None):
            self.seed = 5 if device is None else 0

        def initial_seed(self):
            return self.seed

        def manual_seed(self, seed):
            self.seed = seed
            return self

        def graphsafe_get_state(self):
            return "fresh", self.seed

        def graphsafe_set_state(self, state):
            self.state = state

    used, calls, ended = [], [], []
    generator = Generator()
    monkeypatch.setattr(torch, "Generator", Generator)
    monkeypatch.setattr(torch.cuda, "default_generators", (generator,))
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", lambda *given: ended.append(given), raising=False)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: streams[-1])
    monkeypatch.setattr(torch.cuda, "set_stream", streams.append)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: None))
    monkeypatch.setattr(torch.cuda, "graph", Graph)
    capture, before = CudaCapture(), streams[-1]

    def failing():
        calls.append(None)
        if len(calls) == 3:
            raise ValueError("a wait in a capture")

    with pytest.raises(RuntimeError, match="previous error during capture"):
        capture(failing)
    assert torch.cuda.current_stream() is before
    assert ended == [(0, used[0][1])]
    assert generator.state == ("fresh", 5)
    capture(lambda: None)
    assert used[1][0] is not used[0][0] and used[1][1] is not used[0][1]


def test_layers_that_the_kernel_does_not_serve_are_not_captured(replays):
    """A soft cap takes the gathered path, which asks the host where everything is."""
    model = make_model("gemma2")
    asked = prompts(3, longest=20)
    driver, found = drive(model, asked)
    assert driver.info.details["cuda_graphs"] is False and not replays.captured
    assert found == [expected(model, prompt, COUNT) for prompt in asked]
