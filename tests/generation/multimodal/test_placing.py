"""Where a picture's or a sound's tokens go in a prompt, by which keys caches know them, and where chunks may end. Without a model."""

import pytest

from agent_server.generation.multimodal.inputs import (
    MediaInputs,
    MisplacedMedia,
    PlacedPrompt,
    PreparedMedia,
    Span,
    content_key,
    lay_out,
)
from agent_server.generation.scheduling.scheduler import Scheduler
from agent_server.generation.scheduling.sequence import Sequence
from agent_server.generation.scheduling.slabs import SlabMemory

PICTURE, FEATURE, BREAK, SOUND, NEWLINE, TWO, THREE = 900, 901, 902, 903, 10, 11, 12


class Breaks:
    """A tokenizer whose text is letters and runs of up to three line breaks; ids from 900 on are control tokens."""

    RUNS = {NEWLINE: "\n", TWO: "\n\n", THREE: "\n\n\n"}

    def decode(self, ids):
        return "".join(self.RUNS.get(token) or chr(token) for token in ids)

    def encode(self, text):
        ids = []
        while text:
            run = next((token for token in (THREE, TWO, NEWLINE) if text.startswith(self.RUNS[token])), None)
            ids.append(run or ord(text[0]))
            text = text[len(self.RUNS.get(run, "x")) :]
        return ids

    def is_control(self, token):
        return token >= 900


class Item:
    """What stands for a picture: FEATURE is where its features go."""

    def __init__(self, ids, digest=b""):
        self.ids, self.digest = ids, digest
        self.places = [index for index, token in enumerate(ids) if token == FEATURE]


def placed(prompt, *expansions, words=None):
    items = [Item(ids, bytes([number])) for number, ids in enumerate(expansions)]
    return lay_out(prompt, {PICTURE: items}, words or Breaks())[0]


def test_each_placeholder_becomes_its_pictures_tokens():
    layout = placed([65, PICTURE, 66, PICTURE, 67], [FEATURE, FEATURE], [FEATURE, BREAK, FEATURE])
    assert layout.ids == [65, FEATURE, FEATURE, 66, FEATURE, BREAK, FEATURE, 67]
    assert layout.spans == [Span(0, 1, 3, (1, 2)), Span(1, 4, 7, (4, 6))]
    assert [index for index, key in enumerate(layout.keys) if key < 0] == [1, 2, 4, 6]
    assert [key for key in layout.keys if key >= 0] == [65, 66, BREAK, 67]


def test_keys_are_the_contents_and_no_token_nor_the_schedulers_own():
    keys = {content_key(digest, offset) for digest in (b"a", b"b") for offset in range(500)}
    assert len(keys) == 1000
    assert max(keys) < -1
    assert min(keys) >= -(2**63)
    assert content_key(b"a", 1) == content_key(b"a", 1)


def test_text_at_a_pictures_edge_is_tokenised_with_the_text_beside_it():
    """Gemma 3 puts two line breaks around its tokens; in one text they are one token with the line break before."""
    layout = placed([65, NEWLINE, PICTURE, NEWLINE, 66], [TWO, BREAK, FEATURE, BREAK, TWO])
    assert layout.ids == [65, THREE, BREAK, FEATURE, BREAK, THREE, 66]
    assert layout.spans == [Span(0, 2, 5, (3,))]
    assert len(layout.keys) == len(layout.ids)


def test_pictures_side_by_side_share_the_text_between_them():
    layout = placed([PICTURE, PICTURE], [NEWLINE, FEATURE, NEWLINE], [NEWLINE, FEATURE, NEWLINE])
    assert layout.ids == [NEWLINE, FEATURE, TWO, FEATURE, NEWLINE]
    assert [span.places for span in layout.spans] == [(1,), (3,)]


def test_text_that_would_become_a_control_token_stays_as_it_was_tokenised():
    class Joins(Breaks):
        def encode(self, text):
            return [BREAK] if text == "<>" else [ord(letter) for letter in text]

    layout = placed([60, PICTURE], [62, FEATURE], words=Joins())
    assert layout.ids == [60, 62, FEATURE]


@pytest.mark.parametrize("prompt", [[65], [PICTURE, PICTURE]])
def test_a_prompt_without_one_place_for_each_picture_is_refused(prompt):
    with pytest.raises(MisplacedMedia, match=r"places for 1"):
        placed(prompt, [FEATURE])


def test_pictures_and_sounds_stay_in_the_prompts_order():
    first, second, sound = Item([FEATURE], b"1"), Item([FEATURE, FEATURE], b"2"), Item([FEATURE] * 3, b"3")
    given = {PICTURE: [first, second], SOUND: [sound]}
    layout, items = lay_out([65, PICTURE, SOUND, 66, PICTURE], given, Breaks())
    assert items == [first, sound, second]
    assert layout.ids == [65, FEATURE, FEATURE, FEATURE, FEATURE, 66, FEATURE, FEATURE]
    assert [(span.item, span.start, span.end) for span in layout.spans] == [(0, 1, 2), (1, 2, 5), (2, 6, 8)]
    with pytest.raises(MisplacedMedia, match=r"places for 0"):
        lay_out([PICTURE, SOUND], {PICTURE: [first], SOUND: []}, Breaks())


def test_a_chunk_may_end_within_a_sound_of_a_model_that_sees_pictures_whole():
    spans = [Span(0, 10, 20, tuple(range(10, 20))), Span(1, 30, 40, tuple(range(30, 40)))]
    items = [PreparedMedia(kind, b"", (), (), {}) for kind in ("image", "audio")]
    media = MediaInputs(PlacedPrompt([], [], spans), items, bidirectional=True)
    assert media.length(0, 15) == 10
    assert media.length(20, 15) == 15


def inputs(*blocks, bidirectional=True):
    spans = [Span(number, first, last, tuple(range(first, last))) for number, (first, last) in enumerate(blocks)]
    pictures = [PreparedMedia("image", b"", (), (), {}) for _ in blocks]
    return MediaInputs(PlacedPrompt([], [], spans), pictures, bidirectional=bidirectional)


@pytest.mark.parametrize(
    ("start", "length", "wanted"),
    [
        (0, 5, 5),  # before the picture
        (0, 10, 10),  # up to it
        (0, 15, 10),  # into it: stops before
        (10, 5, 10),  # from its beginning: takes all of it
        (10, 0, 0),  # no room
        (10, 10, 10),
        (10, 12, 12),
        (14, 3, 6),  # from within, where the beginning was found in the cache
        (0, 20, 20),
        (0, 28, 24),  # into the second one
        (19, 6, 5),
        (20, 3, 3),
        (34, 100, 100),
    ],
)
def test_no_chunk_ends_within_a_picture_whose_tokens_see_each_other(start, length, wanted):
    media = inputs((10, 20), (24, 34))
    assert media.length(start, length) == wanted
    assert inputs((10, 20), (24, 34), bidirectional=False).length(start, length) == length


def test_a_picture_that_is_too_much_for_the_device_is_not_tried_for_ever():
    """Its chunk cannot be cut, so less budget does not make it shorter."""
    scheduler = Scheduler(SlabMemory(1024, 128), max_running=2, step_tokens=64)
    scheduler.add(Sequence(1, list(range(80)), 80, 90, media=inputs((0, 78))))
    tried = 0
    while (plan := scheduler.schedule()).chunks:
        scheduler.undo(plan)
        tried += 1
        assert tried < 20
        if not scheduler.shrink_after_oom(plan):
            break
    assert plan.chunks and plan.chunks[0].length <= 78


def test_a_picture_in_rows_has_a_block_for_each():
    assert list(Span(0, 0, 8, (1, 2, 4, 5, 7)).blocks()) == [(1, 3), (4, 6), (7, 8)]
