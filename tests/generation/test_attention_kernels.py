"""The choice of a kernel: what is wrong is never taken, what is missing is said, the first of the right ones wins."""

import pytest
import torch

from agent_server.generation.attention.batches import LayerShape, attend_gathered
from agent_server.generation.attention.library_kernels import VarlenKernel
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

    def refuses(self, layer, dtype):
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
    return Cuda()


def offer(monkeypatch, *makers):
    monkeypatch.setattr(attention_kernels, "candidates", lambda device: makers)


def test_a_cpu_has_none():
    assert choose(CPU, torch.float32, [PLAIN], slow := []) is None and slow == []


def test_a_kernel_that_is_wrong_for_several_sequences_is_not_taken(cuda, monkeypatch):
    def wrong():
        return Wrong()

    def missing():
        raise ModuleNotFoundError("No module named 'triton'\nand where it was looked for")

    offer(monkeypatch, missing, wrong)
    slow = []
    assert choose(cuda, torch.float32, [PLAIN], slow) is None
    (line,) = slow
    assert "missing: ModuleNotFoundError: No module named 'triton'; wrong: it gives other results" in line
    assert "looked for" not in line and "\n" not in line


def test_the_first_right_one_is_taken_and_no_other_is_made(cuda, monkeypatch):
    def unwanted():
        raise AssertionError("an earlier kernel is right")

    offer(monkeypatch, Wrong, Gathered, unwanted)
    assert choose(cuda, torch.float32, [PLAIN], slow := []).name == "gathered" and slow == []


def test_a_gpu_that_is_too_old_is_said(cuda, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    slow = []
    assert choose(cuda, torch.float16, [PLAIN], slow) is None
    assert "older than compute capability 8.0" in slow[0]


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
