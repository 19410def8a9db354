"""The choice of a kernel: what is wrong is never taken, what is missing is said, the fastest of the right ones wins."""

import logging
import sys
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from agent_server.generation.attention import library_kernels
from agent_server.generation.attention.attention import Call
from agent_server.generation.attention.kv_cache import LayerShape
from agent_server.generation.attention.library_kernels import FlashAttention, FlashInfer, VarlenKernel
from agent_server.generation.attention.paged_batch import attend_gathered
from agent_server.generation.loading import attention_kernels
from agent_server.generation.loading.attention_kernels import choose, difference
from tests.generation.test_graphs import Reference, reference_kernel

CPU = torch.device("cpu")
PLAIN = LayerShape(kv_heads=2, key_dim=16, value_dim=16)


class Cuda:
    """As far as the choice asks for a device; tensors are on the CPU."""

    type = "cuda"


class Gathered:
    """Right by definition; pages of 16."""

    name, page_size = "gathered", 16

    def refuses(self, layer, dtype, kept=None):
        return None

    def write(self, call, places, keys, values, scales=None):
        keys.index_copy_(0, places, call.keys)
        values.index_copy_(0, places, call.values)

    def attend(self, paging, keys, values, call, scales=None):
        return attend_gathered(paging, keys, values, call)


class Wrong(Gathered):
    """A kernel that is wrong where sequences decode together, as torch's own was."""

    name = "wrong"

    def attend(self, paging, keys, values, call, scales=None):
        out = attend_gathered(paging, keys, values, call)
        return out if paging.single < 2 else out.roll(1, 0)


@pytest.fixture
def cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    fault = attention_kernels._fault
    monkeypatch.setattr(attention_kernels, "_fault", lambda kernel, device, *rest: fault(kernel, CPU, *rest))
    fastest = attention_kernels._fastest
    monkeypatch.setattr(attention_kernels, "_fastest", lambda kernels, device, *rest: fastest(kernels, CPU, *rest))
    return Cuda()


def offer(monkeypatch, *makers):
    monkeypatch.setattr(attention_kernels, "candidates", lambda device: makers)


def test_a_cpu_has_none():
    assert choose(CPU, torch.float32, [PLAIN]) is None


def test_a_kernel_that_is_wrong_for_several_sequences_is_not_taken(cuda, monkeypatch, caplog):
    def wrong():
        return Wrong()

    def missing():
        raise ModuleNotFoundError("No module named 'triton'\nand where it was looked for")

    offer(monkeypatch, missing, wrong)
    with caplog.at_level(logging.WARNING):
        assert choose(cuda, torch.float32, [PLAIN]) is None
    (line,) = [record.getMessage() for record in caplog.records]
    assert "missing: ModuleNotFoundError: No module named 'triton'; wrong: it gives other results" in line
    assert "looked for" not in line and "\n" not in line


class Timed(Gathered):
    """Right, and so many seconds a call by the clock of the tests."""

    def __init__(self, name, seconds):
        self.name, self.seconds = name, seconds


@pytest.fixture
def clock(monkeypatch):
    """Calls are timed by what a kernel says of itself."""
    measured = []

    def seconds(work):
        work()
        measured.append(work.func.__self__)
        return measured[-1].seconds

    monkeypatch.setattr(attention_kernels, "measured", seconds)
    return measured


def test_the_fastest_of_the_right_ones_is_taken(cuda, monkeypatch, clock):
    offer(monkeypatch, lambda: Timed("slow", 2.0), lambda: Wrong(), lambda: Timed("fast", 1.0))
    assert choose(cuda, torch.float32, [PLAIN]).name == "fast"
    assert [kernel.name for kernel in clock] == ["slow", "fast"]


def test_what_cannot_be_captured_is_not_taken(cuda, monkeypatch, caplog):
    def measured(work):
        if work.func.__self__.name == "waits":
            raise RuntimeError("operation not permitted when stream is capturing")
        return 1.0

    monkeypatch.setattr(attention_kernels, "measured", measured)
    offer(monkeypatch, lambda: Timed("waits", 0.1), lambda: Timed("right", 1.0))
    with caplog.at_level(logging.INFO):
        assert choose(cuda, torch.float32, [PLAIN]).name == "right"
    assert "waits is not used: it cannot be captured" in caplog.text


# libraries that may be installed


def flash_attn_library(error=0.0):
    """flash-attn 2 by its documentation: the two functions that are called."""

    def attended(q, k_cache, v_cache, lengths, starts, tables, causal, window_size, scale, softcap):
        assert causal and window_size in ((-1, -1), (19, 0)) and softcap == 0.0
        paging = paging_of(lengths, starts, tables)
        call = Call(q, q, q, scale, {"sliding_window": None if window_size[0] < 0 else window_size[0] + 1})
        return attend_gathered(paging, k_cache, v_cache, call) + error

    def flash_attn_with_kvcache(
        q, k_cache, v_cache, k=None, v=None, *, cache_seqlens, block_table, softmax_scale, causal, window_size, softcap
    ):
        assert q.dim() == 4 and q.shape[1] == 1 and k is v is None
        starts = list(range(len(q) + 1))
        given = cache_seqlens.tolist(), starts, block_table, causal, window_size, softmax_scale, softcap
        return attended(q[:, 0], k_cache, v_cache, *given)[:, None]

    def flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, *,
        softmax_scale, causal, window_size, softcap, block_table,
    ):  # fmt: skip
        lengths, starts = cu_seqlens_k.diff().tolist(), cu_seqlens_q.tolist()
        assert starts[0] == cu_seqlens_k[0] == 0 and max(lengths) <= max_seqlen_k and starts[-1] == len(q)
        return attended(q, k, v, lengths, starts, block_table, causal, window_size, softmax_scale, softcap)

    return SimpleNamespace(
        flash_attn_with_kvcache=flash_attn_with_kvcache, flash_attn_varlen_func=flash_attn_varlen_func
    )


def flashinfer_library(error=0.0):
    """`flashinfer.decode`, as far as it is called."""

    def trtllm_batch_decode_with_kv_cache(
        query, kv_cache, workspace_buffer, block_tables, seq_lens, max_seq_len, *,
        bmm1_scale, bmm2_scale, window_left, kv_layout,
    ):  # fmt: skip
        assert kv_layout == "NHD" and bmm2_scale == 1.0 and not workspace_buffer.any()
        assert int(seq_lens.max()) <= max_seq_len and len(query) == len(block_tables)
        paging = paging_of(seq_lens.tolist(), list(range(len(query) + 1)), block_tables)
        call = Call(query, query, query, bmm1_scale, {"sliding_window": None if window_left < 0 else window_left + 1})
        return attend_gathered(paging, *kv_cache, call) + error

    return SimpleNamespace(trtllm_batch_decode_with_kv_cache=trtllm_batch_decode_with_kv_cache)


def paging_of(lengths, starts, tables):
    spans = [(length - (last - first), length) for length, (first, last) in zip(lengths, pairwise(starts), strict=True)]
    return SimpleNamespace(tables=tables, spans=spans, blocks={})


LIBRARIES = {
    "flash_attn": {"flash_attn": flash_attn_library},
    "flashinfer": {"flashinfer": lambda error: SimpleNamespace(), "flashinfer.decode": flashinfer_library},
}


@pytest.fixture
def installed(cuda, monkeypatch):
    """Puts a library where it would be installed, beside a kernel of the project's own that takes a second."""

    def install(name, error=0.0, seconds=0.5):
        for module, make in LIBRARIES[name].items():
            monkeypatch.setitem(sys.modules, module, make(error))
        monkeypatch.setattr(library_kernels, "WORKSPACE", 16)
        kernel = getattr(attention_kernels, {"flash_attn": "FlashAttention", "flashinfer": "FlashInfer"}[name])
        monkeypatch.setattr(kernel, "seconds", seconds, raising=False)

    monkeypatch.setattr(attention_kernels, "TritonKernel", lambda processors: Timed("triton", 1.0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=8))
    monkeypatch.setattr(library_kernels, "HALVES", (torch.float32,))  # what a CPU computes here
    own = attention_kernels.FlashInfer
    monkeypatch.setattr(attention_kernels, "FlashInfer", lambda chunks, device: own(chunks, CPU))
    monkeypatch.setattr(own, "seconds", 0.5, raising=False)
    return install


@pytest.mark.parametrize("layer", [PLAIN, LayerShape(kv_heads=2, key_dim=16, value_dim=16, window=20)])
@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_that_is_right_and_faster_is_taken(name, layer, installed, clock):
    installed(name)
    assert choose(Cuda(), torch.float32, [layer]).name == name
    assert "triton" in {kernel.name for kernel in clock}


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_that_is_wrong_is_never_taken_and_the_log_says_so(name, installed, clock, caplog):
    installed(name, error=0.1)
    with caplog.at_level(logging.INFO):
        assert choose(Cuda(), torch.float32, [PLAIN]).name == "triton"
    assert f"Attention by {name} is not used: it gives other results than gathered pages (by 0.1)." in caplog.messages


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_that_is_slower_is_not_taken(name, installed, clock, monkeypatch):
    installed(name)
    monkeypatch.setattr(attention_kernels, "TritonKernel", lambda processors: Timed("triton", 0.25))
    assert choose(Cuda(), torch.float32, [PLAIN]).name == "triton"


def test_without_libraries_the_log_names_none(installed, clock, caplog):
    with caplog.at_level(logging.INFO):
        assert choose(Cuda(), torch.float32, [PLAIN]).name == "triton"
    assert not any(f"by {name}" in caplog.text for name in LIBRARIES) and not [
        r for r in caplog.records if r.levelno >= logging.WARNING
    ]


@pytest.mark.parametrize(
    ("layer", "kept", "reason"),
    [
        (LayerShape(kv_heads=2, key_dim=64, value_dim=64, sinks=True), None, "sinks"),
        (LayerShape(kv_heads=2, key_dim=192, value_dim=128), None, "192 and 128"),
        (LayerShape(kv_heads=2, key_dim=64, value_dim=64), torch.float8_e4m3fn, "float8"),
    ],
)
def test_libraries_say_what_they_do_not_serve(layer, kept, reason):
    for kernel in (FlashAttention, FlashInfer):
        made = kernel.__new__(kernel)
        assert reason in made.refuses(layer, torch.bfloat16, kept)


def test_a_gpu_that_is_too_old_is_said(cuda, monkeypatch, caplog):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with caplog.at_level(logging.WARNING):
        assert choose(cuda, torch.float16, [PLAIN]) is None
    assert "older than compute capability 8.0" in caplog.text


@pytest.mark.parametrize("window", [None, 20])
def test_torchs_kernel_is_called_as_it_is_right(window):
    """The reference refuses the calls that torch's kernel gets wrong."""
    layer = LayerShape(kv_heads=2, key_dim=16, value_dim=16, window=window)
    for lengths, chunk in attention_kernels.TRIED:
        assert difference(Reference(reference_kernel), CPU, torch.float32, layer, lengths, chunk) < 1e-5


def test_torchs_kernel_says_what_it_lacks():
    def of_torch_2_12(query, key, value, *, window_size, enable_gqa, seqused_k, block_table):
        raise AssertionError

    with pytest.raises(NotImplementedError, match="has no num_splits"):
        VarlenKernel(of_torch_2_12)
    kernel = VarlenKernel(reference_kernel)
    capped = LayerShape(kv_heads=2, key_dim=64, value_dim=64, softcap=30.0)
    unequal = LayerShape(kv_heads=2, key_dim=192, value_dim=128)
    assert "soft caps" in kernel.refuses(capped, torch.bfloat16)
    assert "192 and 128" in kernel.refuses(unequal, torch.bfloat16)
    assert "float32" in kernel.refuses(PLAIN, torch.float32)
    assert kernel.refuses(LayerShape(kv_heads=2, key_dim=128, value_dim=128), torch.bfloat16) is None
