"""The way of CUDA on a CPU: pages of a kernel, and decoding by graphs, for models that see."""

import pytest

from tests.generation.multimodal.seeing_models import picture
from tests.generation.multimodal.test_seeing import TOKENS, Seeing, shown
from tests.generation.test_graphs import replays  # noqa: F401


@pytest.mark.parametrize("family", ["qwen2.5-vl", "gemma3"])
def test_graphs_count_on_behind_a_picture_and_kernels_leave_its_blocks_to_others(family, replays, tmp_path):  # noqa: F811
    seeing = Seeing(family, tmp_path)
    driver = seeing.driver(memory="paged", overlap=True)
    assert driver.info.details["cuda_graphs"] is True
    asked = [(shown(driver, f"Number {n} ", None, " is what?"), picture(n, 40 + 8 * n, 32)) for n in range(3)]
    numbers = [driver.submit(ids, pictures=[seen], max_tokens=TOKENS) for ids, seen in asked]
    driver.finish()
    for number, (ids, seen) in zip(numbers, asked, strict=True):
        assert driver.ids(number) == seeing.expected(driver, ids, [seen])[0]
    assert replays.replayed
