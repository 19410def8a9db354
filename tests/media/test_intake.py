"""The pictures of a request: by data, by URL, within what a request may have."""

import base64
import contextvars

import pytest
from ag_ui.core import DataSource, FileSource, ImagePart, UrlSource

from agent_server.media.fetching import from_base64, from_data_url
from agent_server.media.intake import Intake
from agent_server.media.refusal import MediaRefused
from agent_server.settings import MediaLimits
from tests.media.pictures import encoded, gradient

PNG = encoded(gradient())
TEXT = base64.b64encode(PNG).decode()


@pytest.fixture
async def intake():
    made = Intake(MediaLimits(pixels=200, pictures=3, bytes=2000, seconds=20))
    yield made
    await made.close()


def data(text=TEXT):
    return ImagePart(source=DataSource(value=text, mime_type="image/png"))


def url(text):
    return ImagePart(source=UrlSource(value=text))


async def test_pictures_come_in_order_however_they_are_sent(intake):
    small = encoded(gradient(4, 4))
    sent = [data(), url(f"data:image/png;base64,{base64.b64encode(small).decode()}")]
    with intake.hold() as held:
        found = await intake.pictures(sent, held)
        assert intake.used_bytes == 3 * (12 * 8 + 4 * 4)
    assert intake.used_bytes == 0
    assert [(each.width, each.height) for each in found] == [(12, 8), (4, 4)]
    assert found[0].pixels == gradient().tobytes()


async def test_a_picture_is_decoded_once_for_each_tenant(monkeypatch):
    """A client sends the pictures of a conversation again with each turn."""
    tenant = contextvars.ContextVar("tenant", default="ada")
    intake = Intake(MediaLimits(seconds=20), tenant=tenant.get)
    decoded = []

    async def decode(data, pixels, decode=intake._decoder.decode):
        decoded.append((tenant.get(), data))
        return await decode(data, pixels)

    monkeypatch.setattr(intake._decoder, "decode", decode)
    other = encoded(gradient(4, 4))
    with intake.hold() as held:
        first = await intake.pictures([data()], held)
        assert await intake.pictures([data(), data(base64.b64encode(other).decode())], held) != first
        assert await intake.pictures([data()], held) == first
        assert intake.used_bytes == 3 * (3 * 12 * 8 + 4 * 4)  # a request holds its pictures, cached or not
        tenant.set("bob")
        assert await intake.pictures([data()], held) == first
    assert decoded == [("ada", PNG), ("ada", other), ("bob", PNG)]
    await intake.close()


async def test_cached_pictures_are_bounded_by_their_size(monkeypatch):
    monkeypatch.setattr("agent_server.media.intake.CACHE_BYTES", 3 * (12 * 8 + 4 * 4))
    intake = Intake(MediaLimits(seconds=20))
    with intake.hold() as held:
        for size in ((12, 8), (4, 4), (5, 4), (13, 9)):
            await intake.pictures([data(base64.b64encode(encoded(gradient(*size))).decode())], held)
    assert len(intake._cache) == 2 and intake._cache.cost == 3 * (4 * 4 + 5 * 4)
    await intake.close()


REFUSALS = {
    "not base64": ([data("!!!")], "Picture 1 of 1 is refused: The data is not base64"),
    "empty": ([data("")], "The data is empty"),
    "too long": ([data("A" * 4000)], "about 3000 bytes; the limit is 2000"),
    "a file": ([ImagePart(source=FileSource(value="file-1"))], "keeps no uploaded files"),
    "a URL": ([url("https://pictures.example/a.png")], "fetches nothing from URLs"),
    "a broken URL": ([url("data:image/png;base64")], "has no comma"),
    "the third is too much": (
        [data(), data(), data()],
        "Picture 3 of 3 is refused: .* 12 x 8 pixels, but only 8 are left",
    ),
    "too many": ([data()] * 4, "has 4 pictures; the limit is 3"),
    "no picture": ([url("data:text/plain,hello")], "is not a PNG, JPEG, WebP or GIF"),
}


@pytest.mark.parametrize("name", REFUSALS)
async def test_refusals(intake, name):
    parts, sentence = REFUSALS[name]
    with pytest.raises(MediaRefused, match=sentence) as told, intake.hold() as held:
        await intake.pictures(parts, held)
    assert intake.used_bytes == 0
    assert (told.value.kind, told.value.param, told.value.retryable) == ("invalid_request", "messages", False)


@pytest.mark.parametrize(
    "text", [TEXT, TEXT.rstrip("="), f"{TEXT[:40]}\n {TEXT[40:]}", f"data:image/png;base64,{TEXT}"]
)
def test_base64_as_clients_write_it(text):
    assert from_base64(text, MediaLimits()) == PNG


def test_a_data_url_without_base64():
    assert from_data_url("data:,a%20b", MediaLimits()) == b"a b"
    with pytest.raises(MediaRefused, match="the limit is 2"):
        from_data_url("data:,abcd", MediaLimits(bytes=2))
