"""Tests of what only a GPU runs, in the sizes of real models: `make test-gpu` on a machine with CUDA."""

import pytest
import torch


@pytest.fixture(scope="session")
def device():
    if not torch.cuda.is_available():
        pytest.fail("These tests need a CUDA device; torch finds none here.")
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    return device
