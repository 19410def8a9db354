"""Pictures that mean well and pictures that do not."""

import asyncio
import signal
import sys
import zlib
from contextvars import ContextVar
from pathlib import Path

import pytest
from PIL import Image

from agent_server.media import decoding
from agent_server.media.decoding import Decoder
from agent_server.media.refusal import MediaRefused
from agent_server.settings import MediaLimits
from tests.media.pictures import encoded, gradient, png

MOST = 1_000_000


@pytest.fixture
async def decoder():
    made = Decoder(MediaLimits(seconds=20))
    yield made
    await made.close()


def pixels(picture):
    return Image.frombytes("RGB", (picture.width, picture.height), picture.pixels)


async def test_what_is_drawn_is_what_comes(decoder):
    """One process for them all; the digest is of the pixels, whatever they came in."""
    image = gradient()
    png_ = await decoder.decode(encoded(image), MOST)
    webp = await decoder.decode(encoded(image, "WEBP", lossless=True), MOST)
    other = await decoder.decode(encoded(gradient(8, 12)), MOST)
    assert pixels(png_).tobytes() == image.tobytes()
    assert png_ == webp
    assert other.digest != png_.digest
    assert len(decoder.pictures._idle) == 1


async def test_a_tenant_with_many_files_delays_another_by_a_few(monkeypatch):
    """Tenants get a process in turn: the other's file is not behind all that came before it."""
    monkeypatch.setattr(decoding, "PROCESSES", 1)
    tenant = ContextVar("tenant")
    decoder = Decoder(MediaLimits(seconds=20), tenant=tenant.get)
    finished, data = [], encoded(gradient())

    async def decode(name):
        tenant.set(name)
        await decoder.decode(data, MOST)
        finished.append(name)

    given_up = asyncio.create_task(decode("a"))
    async with asyncio.TaskGroup() as group:
        for name in "aaaaaaaa":
            group.create_task(decode(name))
        await asyncio.sleep(0)
        group.create_task(decode("b"))
        await asyncio.sleep(0)
        given_up.cancel()
    await decoder.close()
    assert finished.index("b") <= 2
    assert len(finished) == 9


async def test_it_stands_upright_and_its_metadata_is_gone(decoder):
    image = gradient()
    exif = Image.Exif()
    exif[0x0112] = 6  # taken with the camera turned
    exif[0x010E] = "taken at home"
    turned = pixels(await decoder.decode(encoded(image, exif=exif), MOST))
    assert turned.size == (8, 12)
    assert turned.tobytes() == image.transpose(Image.Transpose.ROTATE_270).tobytes()


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
async def test_what_is_transparent_is_white(decoder, mode):
    image = Image.new("RGBA", (4, 4), (255, 0, 0, 255))
    image.paste((0, 0, 0, 0), (0, 0, 2, 4))
    found = pixels(await decoder.decode(encoded(image.convert(mode)), MOST))
    assert found.getpixel((0, 0)) == (255, 255, 255)
    assert found.getpixel((3, 0)) != (255, 255, 255)


async def test_of_several_frames_the_first(decoder):
    frames = [Image.new("RGB", (5, 5), colour) for colour in ("red", "blue")]
    gif = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert pixels(await decoder.decode(gif, MOST)).getpixel((2, 2)) == (255, 0, 0)


HOSTILE = {
    "no picture": (b"<html>", "is not a PNG, JPEG, WebP or GIF"),
    "a vector graphic": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "is not a PNG, JPEG, WebP or GIF"),
    "a program for a printer": (
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        "is not a PNG, JPEG, WebP or GIF",
    ),
    "another format of Pillow's": (encoded(gradient(), "TIFF"), "is not a PNG, JPEG, WebP or GIF"),
    "more pixels than allowed": (png(60_000, 60_000), "has 60000 x 60000 pixels"),
    "one line of too many pixels": (png(2**31 - 1, 1), "pixels"),
    "cut off": (encoded(gradient(200, 200))[:300], "is damaged or truncated"),
    "a header and nothing": (png(900, 900), "is damaged or truncated"),
    "text that unpacks to gigabytes": (
        png(9, 9, b"", (b"zTXt", b"a\0\0" + zlib.compress(bytes(2**27)))),
        "is damaged or truncated",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_pictures_get_a_sentence_and_the_next_one_its_pixels(decoder, name):
    data, sentence = HOSTILE[name]
    with pytest.raises(MediaRefused, match=f"^The picture .*{sentence}"):
        await decoder.decode(data, MOST)
    assert (await decoder.decode(encoded(gradient()), MOST)).width == 12


async def test_a_picture_that_needs_more_memory_than_the_process_has():
    """Within the pixels that are allowed, but the process has room for its libraries alone."""
    small = Decoder(MediaLimits(seconds=20), memory=192 * 2**20)
    try:
        with pytest.raises(MediaRefused, match=r"too much memory|died of it"):
            await small.decode(png(5000, 5000, bytes(5000 * (1 + 3 * 5000))), 10**9)
    finally:
        await small.close()


async def test_a_decoder_that_dies_is_replaced(decoder):
    await decoder.decode(encoded(gradient()), MOST)
    (process,) = decoder.pictures._idle
    process.kill()
    await process.wait()
    assert (await decoder.decode(encoded(gradient()), MOST)).height == 8


async def test_a_decoder_that_dies_of_a_picture_is_that_pictures_refusal(decoder, monkeypatch):
    await decoder.decode(encoded(gradient()), MOST)
    (process,) = decoder.pictures._idle
    process.send_signal(signal.SIGSTOP)  # or it may have answered before it dies
    monkeypatch.setattr(process.stdin, "drain", _killing(process))
    with pytest.raises(MediaRefused, match="it crashed the decoder"):
        await decoder.decode(encoded(gradient()), MOST)
    assert decoder.pictures._idle == []


def _killing(process):
    async def drain():
        process.kill()
        await process.wait()

    return drain


async def test_one_that_takes_too_long_is_ended(monkeypatch):
    decoder = Decoder(MediaLimits(seconds=0.05))
    process = await decoder.pictures._take()
    decoder.pictures._idle.append(process)

    async def never():
        await asyncio.Event().wait()

    monkeypatch.setattr(process.stdin, "drain", never)
    with pytest.raises(MediaRefused, match=r"could not be decoded within 0\.05 seconds"):
        await decoder.decode(encoded(gradient()), MOST)
    assert process.returncode is not None


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_the_process_has_nothing_of_the_servers_environment(decoder, monkeypatch):
    monkeypatch.setenv("AGENT_SERVER_API_KEYS", "secret")
    process = await decoder.pictures._take()
    assert b"secret" not in await asyncio.to_thread(Path(f"/proc/{process.pid}/environ").read_bytes)
    decoder.pictures._idle.append(process)
