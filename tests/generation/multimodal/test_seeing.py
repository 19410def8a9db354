"""Models that see: the tokens of transformers' own `generate`, alone, among others, in chunks and from the cache."""

import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText

from agent_server.generation.loading.loader import load
from agent_server.generation.scheduling.messages import EngineConfig, RequestFailed
from tests.generation.harness import Driver, prompts
from tests.generation.multimodal.seeing_models import FAMILIES, picture, save_seeing

TOKENS = 12


class Seeing:
    """A model's folder, transformers' own model of it, and drivers over cores that were loaded from it."""

    def __init__(self, family, folder):
        self.family = family
        save_seeing(family, folder)
        self.folder = str(folder)
        self.reference = AutoModelForImageTextToText.from_pretrained(folder).eval()

    def driver(self, **config):
        config = {"memory": "slab", "max_batch": 8, "step_tokens": 16, "flatten": False, **config}
        self.loaded = load(EngineConfig(model=self.folder, threads=1, **config), lambda status: None, lambda *_: None)
        return Driver.around(*self.loaded)

    def expected(self, driver, ids, pictures, count=TOKENS, text=True):
        """What `generate` says of a prompt with placeholders, whose text is tokenised as a whole,
        unless its ids are not those of a text. It must not end with a
        picture: `generate` counts on from the last place of one, where M-RoPE counts on from the largest."""
        multimodal = driver.core.multimodal
        reader = multimodal.pictures
        prepared = [reader.prepare(each) for each in pictures]
        whole = reader.decode(list(ids))
        for each in prepared:
            whole = whole.replace(reader.word, reader.decode(list(each.ids)).replace(reader.word, "\0"), 1)
        row = torch.tensor(
            [reader.encode(whole.replace("\0", reader.word)) if text else expanded(reader, ids, prepared)]
        )
        kinds = (row == multimodal.pictures.feature).int()
        named = {name: side_by_side([each.tensors[name] for each in prepared]) for name in prepared[0].tensors}
        named |= {"mm_token_type_ids": kinds} if "qwen" in self.family else {}
        named |= {"token_type_ids": kinds} if self.family == "gemma3" else {}
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
    """Pixels of several sizes are filled up, as processors do."""
    if tensors[0].dim() == 4:
        height, width = (max(tensor.shape[dim] for tensor in tensors) for dim in (2, 3))
        tensors = [torch.nn.functional.pad(t, (0, width - t.shape[3], 0, height - t.shape[2])) for t in tensors]
    return torch.cat(tensors)


def expanded(reader, ids, prepared):
    left = iter(prepared)
    return [each for token in ids for each in (next(left).ids if token == reader.placeholder else [token])]


@pytest.fixture(scope="module", params=FAMILIES)
def seeing(request, tmp_path_factory):
    return Seeing(request.param, tmp_path_factory.mktemp("seeing"))


@pytest.fixture(scope="module", params=["slab", "paged"])
def driver(request, seeing):
    """One core for all tests, which find each other's prefixes; that is to change nothing."""
    return seeing.driver(memory=request.param)


def shown(driver, *parts):
    """Text as it stands, and None for a picture → ids."""
    reader = driver.core.multimodal.pictures
    return reader.encode("".join(reader.word if part is None else part for part in parts))


def test_a_picture_alone(driver, seeing):
    ids, seen = shown(driver, "What is in this?\n", None, "\nTell me."), picture(1)
    wanted, length = seeing.expected(driver, ids, [seen])
    number = driver.submit(ids, pictures=[seen], max_tokens=TOKENS)
    driver.finish()
    assert driver.ids(number) == wanted
    assert len(set(wanted)) > 2, "a model that says one thing proves nothing"
    assert driver.end(number).usage.prompt_tokens == length
    driver.assert_clean()


def test_what_the_picture_shows_matters(driver, seeing):
    """Same size, same words: other tokens, or the tests above compare nothing."""
    ids = shown(driver, "Look: ", None, " so?")
    answers = [tuple(seeing.expected(driver, ids, [picture(seed)])[0]) for seed in range(6)]
    assert len(set(answers)) > 1


def test_pictures_and_text_in_one_batch(driver, seeing):
    """Prompts of both kinds come and go while others decode, in steps of 16 tokens, so that pictures are cut."""
    cases = [
        (shown(driver, "One ", None, " and ", None, " differ"), [picture(2), picture(3, 56, 24)]),
        (shown(driver, "Wide", None, "."), [picture(4, 64, 16)]),
        (shown(driver, None, "first"), [picture(5, 24, 24)]),
        (prompts(1, seed=4, longest=40, vocab=256)[0], []),
        (prompts(1, seed=5, longest=90, vocab=256)[0], []),
    ]
    numbers = []
    for ids, pictures in cases:
        numbers.append(driver.submit(ids, pictures=pictures, max_tokens=TOKENS))
        driver.step(3)
    driver.finish()
    for number, (ids, pictures) in zip(numbers, cases, strict=True):
        assert driver.ids(number) == answer(seeing, driver, ids, pictures)


def answer(seeing, driver, ids, pictures):
    if pictures:
        return seeing.expected(driver, ids, pictures)[0]
    row = torch.tensor([ids])
    with torch.inference_mode():
        out = seeing.reference.generate(
            input_ids=row, attention_mask=torch.ones_like(row), max_new_tokens=TOKENS, do_sample=False, pad_token_id=0
        )
    return out[0, len(ids) :].tolist()


def test_the_cache_knows_pictures_by_their_content(driver, seeing):
    """The same picture is found, with what was said of it; another one of the same size is not."""
    ids = shown(driver, "A conversation that is long enough for a page. ", None, " and what it is about, at length.")
    first, other = picture(7), picture(8)
    start = driver.core.multimodal.pictures.encode("A conversation that is long enough for a page. ")
    said = {}
    for name, seen in (("cold", first), ("warm", first), ("other", other)):
        number = driver.submit(ids, pictures=[seen], max_tokens=TOKENS)
        encoded = driver.core.multimodal.encoder.encoded
        driver.finish()
        said[name] = driver.ids(number), driver.end(number).usage
        again = driver.core.multimodal.encoder.encoded - encoded
        assert again == (name != "warm"), "a picture that is found is not encoded again"
    assert said["cold"][0] == said["warm"][0] == seeing.expected(driver, ids, [first])[0]
    assert said["other"][0] == seeing.expected(driver, ids, [other])[0]
    assert said["warm"][1].cached_tokens > len(start) + 4
    assert said["other"][1].cached_tokens <= len(start) + 3


def test_another_turn_finds_the_picture_of_the_one_before(driver, seeing):
    ids, seen = shown(driver, "Here is something to look at closely: ", None, " Now?"), picture(9)
    number = driver.submit(ids, pictures=[seen], max_tokens=TOKENS)
    driver.finish()
    said = driver.ids(number)
    longer = [*ids, *said, *shown(driver, " And then?")]
    encoded = driver.core.multimodal.encoder.encoded
    again = driver.submit(longer, pictures=[seen], max_tokens=TOKENS)
    driver.finish()
    assert driver.core.multimodal.encoder.encoded == encoded
    assert driver.end(again).usage.cached_tokens > len(ids)
    assert driver.ids(again) == seeing.expected(driver, longer, [seen], text=False)[0], "random tokens are no text"


def test_pausing_and_computing_anew_change_nothing(driver, seeing):
    """What a paused generation held is computed again, the generated tokens behind the picture too."""
    ids, seen = shown(driver, "Pause ", None, " here"), picture(10)
    wanted, _ = seeing.expected(driver, ids, [seen])
    number = driver.submit(ids, pictures=[seen], max_tokens=TOKENS, prompt_logprobs=0)  # not shared: nothing is found
    while len(driver.ids(number)) < 4:
        driver.step()
    driver.pause(number)
    driver.step()
    driver.resume(number)
    driver.finish()
    assert driver.ids(number) == wanted
    driver.assert_clean()


def test_an_answer_that_another_engine_began_goes_on(driver, seeing):
    ids, seen = shown(driver, "Continue ", None, " here"), picture(11)
    wanted, _ = seeing.expected(driver, ids, [seen])
    number = driver.submit(ids, pictures=[seen], max_tokens=TOKENS, generated=wanted[:5])
    driver.finish()
    assert driver.ids(number) == wanted[5:]


def test_penalties_do_not_stumble_over_pictures(driver, seeing):
    ids, seen = shown(driver, "Repeat ", None, " repeat"), picture(12)
    number = driver.submit(ids, pictures=[seen], max_tokens=TOKENS, repetition_penalty=1.3, frequency_penalty=0.2)
    driver.finish()
    assert len(driver.ids(number)) == TOKENS


def test_a_prompt_that_does_not_fit_with_its_picture_is_that_requests_error(driver, seeing):
    room = driver.info.context_length
    ids = shown(driver, "a" * (room - 6), None)
    number = driver.submit(ids, pictures=[picture(13)], max_tokens=1)
    driver.finish()
    failure = driver.end(number)
    assert isinstance(failure, RequestFailed)
    assert failure.kind == "context_length_exceeded"
    driver.assert_clean()


def test_an_answer_that_fits_beside_a_placeholder_is_reduced_to_what_the_picture_leaves(driver, seeing):
    room = driver.info.context_length
    ids = shown(driver, "a" * (room - 120), None)
    number = driver.submit(ids, pictures=[picture(13)], max_tokens=room - len(ids), ignore_eos=True)
    driver.finish()
    end = driver.end(number)
    assert (end.reason, end.usage.prompt_tokens + end.usage.completion_tokens) == ("length", room)
    assert 0 < end.usage.completion_tokens < room - len(ids)
    driver.assert_clean()


def test_cancelled_while_its_picture_is_prepared(driver, seeing):
    number = driver.submit(shown(driver, "x", None), pictures=[picture(14)])
    driver.cancel(number)
    driver.finish()
    assert driver.items[number] == []
    driver.assert_clean()


def test_paused_while_its_picture_is_prepared(driver, seeing):
    ids, seen = shown(driver, "wait", None, "."), picture(15)
    number = driver.submit(ids, pictures=[seen], max_tokens=TOKENS)
    driver.pause(number)
    driver.finish()
    assert driver.ids(number) == []
    driver.resume(number)
    driver.finish()
    assert driver.ids(number) == seeing.expected(driver, ids, [seen])[0]


def test_a_reader_that_fails_is_that_requests_error(driver, seeing, monkeypatch):
    def broken(image):
        raise ValueError("too thin")

    monkeypatch.setattr(driver.core.multimodal.pictures, "_read", broken)
    number = driver.submit(shown(driver, "x", None), pictures=[picture(16)])
    driver.finish()
    assert driver.end(number).kind == "invalid_request"
    assert "too thin" in driver.end(number).message


def test_the_picture_is_read_as_it_is(driver):
    """Rows and colours are not mixed up on the way."""
    taken = []
    reader = driver.core.multimodal.pictures
    read, reader._read = reader._read, lambda image: taken.append(image) or read(image)
    seen = picture(17, 40, 24)
    try:
        reader.prepare(seen)
    finally:
        reader._read = read
    assert taken[0].size == (40, 24)
    assert taken[0].tobytes() == seen.pixels == Image.frombytes("RGB", (40, 24), seen.pixels).tobytes()
