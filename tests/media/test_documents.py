"""Documents of a conversation, and what the model gets of them."""

import base64
import codecs

import pytest
from ag_ui.core import DataSource, DocumentPart, TextPart, ToolMessage, UserMessage

from agent_server.media import document_decoder
from agent_server.media.documents import DocumentText, PagePicture
from agent_server.media.intake import Intake
from agent_server.media.refusal import MediaRefused
from agent_server.settings import MediaLimits
from tests.media.papers import pdf

LIMITS = MediaLimits(pages=3, page_pictures=1, bytes=20_000, seconds=20)


@pytest.fixture
async def intake():
    made = Intake(LIMITS)
    yield made
    await made.close()


def document(data, name="", mime="application/pdf"):
    source = DataSource(value=base64.b64encode(data).decode(), mime_type=mime)
    return DocumentPart(source=source, metadata={"filename": name} if name else None)


def asked(*parts):
    return UserMessage(id="m1", content=[TextPart(text="Read this."), *parts])


def test_texts_that_are_not_ascii_are_not_escaped():
    """The event loop decodes them, and an escape takes six times as long as the letter."""
    answer = document_decoder.decode(pdf(r"\351" * 10), 1, 0)
    assert answer[1].decode() == '["ØØØØØØØØØØ"]'


async def test_a_pdf_is_its_pages_text(intake):
    given = asked(document(pdf("First things", "Last things"), "report.pdf"))
    [found] = await intake.documents([given], has_vision=False)
    assert [part.text for part in found.content] == [
        "Read this.",
        "Document report.pdf, page 1 of 2:\nFirst things",
        "Document report.pdf, page 2 of 2:\nLast things",
    ]
    assert isinstance(given.content[1], DocumentPart), "what is stored stays as it was sent"


async def test_a_model_that_sees_gets_the_first_pages_as_pictures_behind_their_text(intake):
    [found] = await intake.documents([asked(document(pdf("First", "Last")))], has_vision=True)
    assert [part.type for part in found.content] == ["text", "text", "image", "text"]
    page = found.content[2]
    assert isinstance(page, PagePicture)
    assert (page.picture.width, page.picture.height) == (1024, 683)
    assert len(set(page.picture.pixels)) > 2, "something is drawn"
    with intake.hold() as held:
        assert await intake.pictures([page], held) == (page.picture,)
        assert intake.used_bytes == 1024 * 683 * 3


async def test_a_page_counts_among_the_pixels_of_a_request():
    intake = Intake(MediaLimits(pixels=1000, seconds=20))
    try:
        [found] = await intake.documents([asked(document(pdf("Page")))], has_vision=True)
        with pytest.raises(MediaRefused, match="699392 pixels, but only 1000 are left"), intake.hold() as held:
            await intake.pictures([found.content[2]], held)
    finally:
        await intake.close()


TEXTS = {
    "utf-8": "Grüße\n".encode(),
    "utf-8 with a mark": codecs.BOM_UTF8 + "Grüße\n".encode(),
    "utf-16": "Grüße\n".encode("utf-16"),
}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("mime", ["text/plain", "application/pdf", "application/octet-stream"])
async def test_text_is_text_whatever_it_is_called(intake, name, mime):
    [found] = await intake.documents([asked(document(TEXTS[name], "notes.md", mime))], has_vision=False)
    assert found.content[1] == DocumentText.of("Document notes.md:\nGrüße", "Grüße\n", 0)


REFUSED = {
    "neither": (b"PK\3\4\0\0\xff", "neither a PDF nor text in UTF-8 or UTF-16"),
    "text with a null": (b"a\0b", "neither a PDF nor text"),
    "cut off": (pdf("x")[:40], "is damaged or truncated"),
    "a header and nothing": (b"%PDF-1.7\n" + bytes(2000), "is damaged or truncated"),
    "a password": (pdf("x", encrypted=True), "requires a password"),
    "more pages than are taken": (pdf("x", listed=4), "has 4 pages, but only 2 are left of the limit"),
    "pages without text": (pdf("", ""), "has no text on its 2 pages, and this model does not accept pictures"),
    "too large": (b"a" * 20_001, "the limit is 20000"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_refusals_name_the_document(intake, name):
    data, sentence = REFUSED[name]
    good = document(pdf("Fine"))
    with pytest.raises(MediaRefused, match=f"^Document 2 of 2 is refused: .*{sentence}") as told:
        await intake.documents([asked(good, document(data))], has_vision=False)
    assert (told.value.kind, told.value.param) == ("invalid_request", "messages")


async def test_a_scan_is_shown_to_a_model_that_sees(intake):
    [found] = await intake.documents([asked(document(pdf("")))], has_vision=True)
    assert [part.type for part in found.content] == ["text", "text", "image"]


async def test_what_a_tool_returned_and_cannot_be_read_stays_for_the_prompt_to_leave_out(intake):
    result = ToolMessage(id="m2", tool_call_id="c", content=[document(b"\0\0"), document(b"a table")])
    [found] = await intake.documents([result], has_vision=False)
    assert found.content == [result.content[0], DocumentText.of("Document:\na table", "a table", 0)]


async def test_the_same_document_is_read_once(intake, monkeypatch):
    given = [asked(document(pdf("Once")))]
    first = await intake.documents(given, has_vision=False)

    async def never(*_):
        raise AssertionError("read again")

    monkeypatch.setattr(intake._decoder, "pages", never)
    assert await intake.documents(given, has_vision=False) == first


async def test_what_is_kept_is_bounded(intake):
    intake._documents._cache._limit = 100
    await intake.documents([asked(document(b"a" * 20), document(b"b" * 20))], has_vision=False)
    assert len(intake._documents._cache) == 1


async def test_a_document_that_is_read_again_takes_its_room_once(intake, monkeypatch):
    one, two = document(b"a" * 20), document(b"b" * 30)
    await intake.documents([asked(two)], has_vision=False)
    monkeypatch.setattr(intake._documents, "_limits", MediaLimits(pages=1))
    for _ in range(3):  # the second has no page left, so that it is not taken from the cache
        await intake.documents([asked(one, two)], has_vision=False)
    alone = Intake(MediaLimits())
    await alone.documents([asked(one, two)], has_vision=False)
    assert intake._documents._cache.cost == alone._documents._cache.cost
    await alone.close()


async def test_more_than_all_may_hold_is_refused_and_given_back():
    intake = Intake(MediaLimits(held_bytes=2 * 10**6, seconds=20))
    try:
        [found] = await intake.documents([asked(document(pdf("Page")))], has_vision=True)
        with pytest.raises(Exception, match="Other requests use the memory") as told, intake.hold() as held:
            await intake.pictures([found.content[2]], held)
        assert (told.value.kind, told.value.retryable, intake.used_bytes) == ("overloaded", True, 0)
    finally:
        await intake.close()
