"""A draft model changes nothing but the number of steps, and what it guesses falls behind nothing."""

import copy
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_server.generation.core.constraint import Compiler
from agent_server.generation.core.grammar import GrammarBackend
from agent_server.generation.loading.draft_model import DRAFT_TOKENS
from agent_server.http.engine_choice import chat_model
from tests.generation.harness import Driver, expected, prompts
from tests.generation.test_speculation import ASKED, assert_same, play, requests
from tests.generation.tiny_models import make_model, make_tokenizer, save
from tests.server import settings as server_settings

NEW = 24
WAYS = {"slab": {"memory": "slab"}, "paged": {"memory": "paged"}, "late": {"memory": "paged", "overlap": True}}


@pytest.fixture(scope="module")
def large():
    return make_model("qwen3")


@pytest.fixture(scope="module")
def other():
    """One that knows nothing of what the large model says."""
    return make_model("qwen2", seed=5, num_hidden_layers=1)


@pytest.fixture(scope="module")
def compiler():
    return Compiler(GrammarBackend(make_tokenizer(), 320, [2]), time_limit=60)


def accepted(driver):
    counters = driver.core.counters
    return counters.spec_decode_num_accepted_tokens_total, counters.spec_decode_num_draft_tokens_total


@pytest.mark.parametrize("way", WAYS)
def test_greedy_tokens_are_the_models_own_whoever_guesses(large, other, way):
    asked = [(prompt, {}) for prompt in prompts(5, seed=3)]
    told = [expected(copy.deepcopy(large), prompt, NEW) for prompt, _ in asked]
    for draft in (large, other):
        found, driver = play(large, asked, guesses=6, draft_model=copy.deepcopy(draft), **WAYS[way])
        assert [each["ids"] for each in found] == told
        kept, proposed = accepted(driver)
        assert kept > 0.9 * proposed > 40 if draft is large else kept < proposed


@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 10_000), way=st.sampled_from([*WAYS]), same=st.booleans())
def test_mixed_requests_come_out_as_without(large, other, compiler, seed, way, same):
    asked = requests(seed)
    told, _ = play(large, asked, compiler=compiler)
    draft = copy.deepcopy(large if same else other)
    found, _ = play(large, asked, guesses=6, compiler=compiler, draft_model=draft, **WAYS[way])
    assert_same(found, told)


def test_samples_are_guessed_with_the_requests_own_random_numbers(large):
    asked = [(prompt, ASKED["filtered"] | {"seed": number}) for number, prompt in enumerate(prompts(4, seed=6))]
    told, _ = play(large, asked)
    found, driver = play(large, asked, guesses=6, draft_model=copy.deepcopy(large))
    assert_same(found, told)
    kept, proposed = accepted(driver)
    assert kept > 0.9 * proposed > 40


def test_a_preempted_paused_or_cancelled_generation_gives_its_room_back(large):
    driver = Driver(copy.deepcopy(large), draft_model=copy.deepcopy(large), max_batch=4, kv_cache_bytes=200_000)
    asked = prompts(4, seed=8, longest=40)
    numbers = [driver.submit(prompt, max_tokens=NEW, num_speculative_tokens=4) for prompt in asked]
    copies = driver.core.draft_model.copies
    driver.step(4)
    assert {*numbers[:2]} <= {*copies}
    driver.pause(numbers[0])
    driver.cancel(numbers[1])
    driver.step(2)
    assert copies and not {*numbers[:2]} & {*copies}
    driver.resume(numbers[0])
    driver.finish()
    driver.step()
    assert not copies and driver.core.draft_model.runner.memory.usage == 0
    for number in (0, 2, 3):
        assert driver.ids(numbers[number]) == expected(copy.deepcopy(large), asked[number], NEW)


def test_a_long_prompt_is_read_between_steps_and_guesses_nothing_till_then(large):
    driver = Driver(copy.deepcopy(large), draft_model=copy.deepcopy(large), max_batch=2, step_tokens=16)
    long = prompts(1, seed=9)[0] * 9
    number = driver.submit(long[:200], max_tokens=40, num_speculative_tokens=4)
    computed = []
    while not driver.core.idle or not driver.core.inbox.empty():
        driver.step()
        draft_copy = driver.core.draft_model.copies.get(number)
        computed.append(0 if draft_copy is None else draft_copy.sequence.computed)
    grown = [later - earlier for earlier, later in itertools.pairwise(computed) if earlier < 200 <= 200]
    assert max(grown) <= 16 + 4
    assert driver.ids(number) == expected(copy.deepcopy(large), long[:200], 40)


def test_a_later_turn_finds_what_the_small_model_read(large):
    driver = Driver(copy.deepcopy(large), draft_model=copy.deepcopy(large), max_batch=2)
    prompt = prompts(1, seed=10)[0] * 2
    first = driver.submit(prompt, max_tokens=12, num_speculative_tokens=4)
    driver.finish()
    driver.step()
    second = driver.submit([*prompt, *driver.ids(first), 5, 6], max_tokens=4, num_speculative_tokens=4)
    seen = []
    admit = driver.core.draft_model.runner.memory.admit
    driver.core.draft_model.runner.memory.admit = lambda *args, **more: seen.append(admit(*args, **more)) or seen[-1]
    driver.finish()
    assert driver.over(second) and seen[0] >= len(prompt)


def test_without_room_for_a_twin_there_are_no_guesses(large, other):
    driver = Driver(copy.deepcopy(large), draft_model=copy.deepcopy(large), max_batch=2)
    driver.core.draft_model.context = 30
    prompt = prompts(1, seed=11)[0][:26]
    number = driver.submit(prompt, max_tokens=NEW, num_speculative_tokens=4)
    driver.finish()
    assert driver.ids(number) == expected(copy.deepcopy(large), prompt, NEW)
    assert accepted(driver)[1] <= 4


def test_a_token_that_the_large_model_lacks_ends_a_draft(large):
    driver = Driver(copy.deepcopy(large), draft_model=copy.deepcopy(large), max_batch=2)
    driver.core.draft_model.vocab_size = 160  # as if the upper half were the small model's alone
    prompt = prompts(1, seed=13)[0]
    number = driver.submit(prompt, max_tokens=NEW, num_speculative_tokens=4)
    driver.step(NEW + 4)
    assert driver.ids(number) == expected(copy.deepcopy(large), prompt, NEW)
    copies = driver.core.draft_model.copies.values()
    assert all(len(each.sequence.tokens) <= each.real + each.target for each in copies)


def test_a_draft_model_that_fails_is_not_asked_again(large, caplog):
    driver = Driver(copy.deepcopy(large), draft_model=copy.deepcopy(large), max_batch=2)
    driver.core.draft_model.runner.model = None
    driver.core.draft_model.runner.flat = None
    prompt = prompts(1, seed=12)[0]
    number = driver.submit(prompt, max_tokens=NEW, num_speculative_tokens=4)
    driver.finish()
    assert driver.ids(number) == expected(copy.deepcopy(large), prompt, NEW)
    assert driver.core.draft_model is None
    assert [record.getMessage()[:42] for record in caplog.records if "draft" in record.getMessage()] == [
        "The draft model failed and is not used aga"
    ]


def test_requests_that_do_not_say_are_guessed_for(large):
    driver = Driver(copy.deepcopy(large), draft_model=copy.deepcopy(large), draft="small", max_batch=2)
    assert driver.core.defaults.num_speculative_tokens == DRAFT_TOKENS
    assert driver.info.details["draft"] == "small"


# loading


@pytest.fixture(scope="module")
def folders(tmp_path_factory, large, other):
    whole = tmp_path_factory.mktemp("models")
    found = {"large": large, "small": other, "stateful": make_model("lfm2")}
    for name, model in found.items():
        (whole / name).mkdir()
        save(model, whole / name)
    (whole / "foreign").mkdir()
    save(other, whole / "foreign")
    tokenizer = (whole / "foreign" / "tokenizer.json").read_text().replace('"A":', '"AA":')
    (whole / "foreign" / "tokenizer.json").write_text(tokenizer)
    return whole


CASES = {
    "small": "",
    "gone": "{}/gone is not a folder with a model.",
    "stateful": "--draft {}/stateful cannot draft tokens: it is decoded on its own cache: ",
    "foreign": "--draft {}/foreign has another tokenizer than {}/large: 36 is 'AA' there and 'A' here; choose a smaller "
    "model of the same family.",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("draft", CASES)
async def test_a_draft_model_is_loaded_beside_the_large_one(draft, folders):
    model = chat_model(server_settings(model=str(folders / "large"), engine=(), draft=str(folders / draft)))
    await model.load()
    try:
        sentence = CASES[draft].replace("{}", str(folders))
        assert model.status.state == ("failed" if sentence else "ready")
        assert model.status.message.startswith(sentence)
    finally:
        await model.close()
