"""Models that hear give the same tokens as transformers' generate: alone, in batches, in chunks and from the cache."""

import pytest
import torch
from transformers import AutoModelForMultimodalLM

from agent_server.generation.loading.loader import load
from agent_server.generation.scheduling.messages import EngineConfig
from tests.generation.harness import Driver, prompts
from tests.generation.multimodal.hearing_models import FAMILIES, save_hearing, sound

TOKENS = 12


class Hearing:
    """A model's folder, transformers' own model of it, and drivers over cores that were loaded from it."""

    def __init__(self, family, folder):
        self.family = family
        save_hearing(family, folder)
        self.folder = str(folder)
        self.frame = FAMILIES[family].get("frame", ("", ""))
        self.reference = AutoModelForMultimodalLM.from_pretrained(folder).eval()

    def driver(self, **config):
        config = {"memory": "slab", "max_batch": 8, "step_tokens": 16, "flatten": False, **config}
        core, info = load(EngineConfig(model=self.folder, threads=1, **config), lambda status: None, lambda *_: None)
        return Driver.around(core, info)

    def shown(self, driver, *parts):
        """Text as it stands, and None for a sound → ids."""
        reader = driver.core.multimodal.sounds
        first, last = self.frame
        return reader.encode("".join(f"{first}{reader.word}{last}" if part is None else part for part in parts))

    def expected(self, driver, ids, sounds, count=TOKENS):
        """What `generate` says of a prompt with placeholders, and how long the prompt is."""
        reader = driver.core.multimodal.sounds
        prepared = [reader.prepare(each) for each in sounds]
        left = iter(prepared)
        expanded = [each for token in ids for each in (next(left).ids if token == reader.placeholder else [token])]
        row = torch.tensor([expanded])
        named = {
            name: side_by_side([each.tensors[name] for each in prepared])
            for name in (prepared[0].tensors if prepared else ())
        }
        with torch.inference_mode():
            out = self.reference.generate(
                input_ids=row,
                attention_mask=torch.ones_like(row),
                max_new_tokens=count,
                do_sample=False,
                pad_token_id=0,
                **named,
            )
        return out[0, row.shape[1] :].tolist(), row.shape[1]


def side_by_side(tensors):
    """Frames of several lengths are filled up, as processors do; those behind a sound are masked."""
    longest = max(tensor.shape[1] for tensor in tensors)
    return torch.cat([torch.nn.functional.pad(t, (0, 0) * (t.dim() - 2) + (0, longest - t.shape[1])) for t in tensors])


@pytest.fixture(scope="module", params=FAMILIES)
def hearing(request, tmp_path_factory):
    return Hearing(request.param, tmp_path_factory.mktemp("hearing"))


@pytest.fixture(scope="module", params=["slab", "paged"])
def driver(request, hearing):
    """One core for all tests, which find each other's prefixes; that is to change nothing."""
    return hearing.driver(memory=request.param)


def test_a_sound_alone(driver, hearing):
    ids, heard = hearing.shown(driver, "What is this?\n", None, "\nTell me."), sound(1)
    wanted, length = hearing.expected(driver, ids, [heard])
    number = driver.submit(ids, sounds=[heard], max_tokens=TOKENS)
    driver.finish()
    assert driver.ids(number) == wanted
    assert len(set(wanted)) > 1, "a model that says one thing proves nothing"
    assert driver.end(number).usage.prompt_tokens == length > len(ids) + 8
    driver.assert_clean()


def test_what_is_heard_matters(driver, hearing):
    """Same length, same words: other tokens, or the tests above compare nothing."""
    ids = hearing.shown(driver, "Listen: ", None, " so?")
    answers = [tuple(hearing.expected(driver, ids, [sound(seed)])[0]) for seed in range(6)]
    assert len(set(answers)) > 1


def test_the_shortest_sound(driver, hearing):
    ids, heard = hearing.shown(driver, "What is this?\n", None, "\nTell me."), sound(1, 0.1)
    number = driver.submit(ids, sounds=[heard], max_tokens=TOKENS)
    driver.finish()
    assert driver.ids(number) == hearing.expected(driver, ids, [heard])[0]


def test_sounds_and_text_in_one_batch(driver, hearing):
    """Prompts of both kinds come and go while others decode, in steps of 16 tokens, so that sounds are cut."""
    cases = [
        (hearing.shown(driver, "One ", None, " and ", None, " differ"), [sound(2), sound(3, 1.3)]),
        (hearing.shown(driver, "Short", None, "."), [sound(4, 0.3)]),
        (hearing.shown(driver, None, "first"), [sound(5, 3.5)]),
        (prompts(1, seed=4, longest=40, vocab=256)[0], []),
        (prompts(1, seed=5, longest=90, vocab=256)[0], []),
    ]
    numbers = []
    for ids, sounds in cases:
        numbers.append(driver.submit(ids, sounds=sounds, max_tokens=TOKENS))
        driver.step(3)
    driver.finish()
    for number, (ids, sounds) in zip(numbers, cases, strict=True):
        assert driver.ids(number) == hearing.expected(driver, ids, sounds)[0]


def test_the_cache_knows_sounds_by_their_content(driver, hearing):
    """The same sound is found, with what was said of it; another one of the same length is not."""
    begin = "A conversation that is long enough for a page. "
    ids = hearing.shown(driver, begin, None, " and what it is about, at length.")
    first, other = sound(7), sound(8)
    start = driver.core.multimodal.words.encode(begin)
    said = {}
    for name, heard in (("cold", first), ("warm", first), ("other", other)):
        number = driver.submit(ids, sounds=[heard], max_tokens=TOKENS)
        encoded = driver.core.multimodal.encoder.encoded
        driver.finish()
        said[name] = driver.ids(number), driver.end(number).usage
        again = driver.core.multimodal.encoder.encoded - encoded
        assert again == (name != "warm"), "a sound that is found is not encoded again"
    assert said["cold"][0] == said["warm"][0] == hearing.expected(driver, ids, [first])[0]
    assert said["other"][0] == hearing.expected(driver, ids, [other])[0]
    assert said["warm"][1].cached_tokens > len(start) + 4
    assert said["other"][1].cached_tokens <= len(start) + 3


def test_another_turn_finds_the_sound_of_the_one_before(driver, hearing):
    ids, heard = hearing.shown(driver, "Here is something to listen to: ", None, " Now?"), sound(9)
    number = driver.submit(ids, sounds=[heard], max_tokens=TOKENS)
    driver.finish()
    longer = [*ids, *driver.ids(number), *hearing.shown(driver, " And then?")]
    encoded = driver.core.multimodal.encoder.encoded
    again = driver.submit(longer, sounds=[heard], max_tokens=TOKENS)
    driver.finish()
    assert driver.core.multimodal.encoder.encoded == encoded
    assert driver.end(again).usage.cached_tokens > len(ids)
    assert driver.ids(again) == hearing.expected(driver, longer, [heard])[0]


def test_pausing_and_computing_anew_change_nothing(driver, hearing):
    """What a paused generation held is computed again, the generated tokens behind the sound too."""
    ids, heard = hearing.shown(driver, "Pause ", None, " here"), sound(10)
    wanted, _ = hearing.expected(driver, ids, [heard])
    number = driver.submit(ids, sounds=[heard], max_tokens=TOKENS, prompt_logprobs=0)  # not shared: nothing is found
    while len(driver.ids(number)) < 4:
        driver.step()
    driver.pause(number)
    driver.step()
    driver.resume(number)
    driver.finish()
    assert driver.ids(number) == wanted
    driver.assert_clean()


REFUSED = {
    "of another rate": (lambda most: sound(1, 0.5, 8_000), "it has 8000 samples a second, not 16000"),
    "longer than the model hears": (lambda most: sound(1, most + 0.5), "it is longer than the {most} seconds that"),
    "of no length": (lambda most: sound(1, 0.0), "it is shorter than 1/10 of a second"),
    "too short": (lambda most: sound(1, 0.0999), "it is shorter than 1/10 of a second"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_heard_is_that_requests_error(driver, hearing, name):
    most = FAMILIES[hearing.family]["seconds"]
    assert driver.info.sound_seconds == most
    if name == "longer than the model hears" and not most:
        pytest.skip("it hears any length")
    make, reason = REFUSED[name]
    number = driver.submit(hearing.shown(driver, "x", None), sounds=[make(most)])
    driver.finish()
    assert driver.end(number).kind == "invalid_request"
    assert driver.end(number).message.startswith("The model's processor cannot read a sound (")
    assert reason.format(most=most) in driver.end(number).message
    driver.assert_clean()


def test_a_model_that_hears_takes_no_pictures(driver):
    from tests.generation.multimodal.seeing_models import picture

    number = driver.submit(driver.core.multimodal.words.encode("x"), pictures=[picture()])
    driver.finish()
    assert driver.end(number).message == "This model does not accept pictures."
