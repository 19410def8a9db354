"""Recordings, good ones and hostile ones, as the child process reads them."""

import struct

import pytest

from agent_server.media.decoding import Decoder
from agent_server.media.refusal import MediaRefused
from agent_server.settings import MediaLimits
from tests.media.recordings import recorded, wav

RATE = 16_000


@pytest.fixture
async def decoder():
    made = Decoder(MediaLimits(seconds=30))
    yield made
    await made.close()


async def test_what_was_recorded_is_what_comes(decoder):
    data = wav(seconds=0.5)
    samples = await decoder.sound(data, 2)
    assert samples == data[44:]


@pytest.mark.parametrize("container", ["webm", "ogg", "mp4", "flac", "mp3", "stereo of another rate"])
async def test_what_browsers_and_telephones_record(decoder, container):
    codecs = {"webm": "libopus", "ogg": "libopus", "mp4": "aac", "flac": "flac", "mp3": "libmp3lame"}
    data = recorded(container, codecs[container]) if container in codecs else wav(44_100, channels=2)
    samples = [value for (value,) in struct.iter_unpack("<h", await decoder.sound(data, 2))]
    assert abs(len(samples) - RATE) < RATE // 10
    assert max(samples[RATE // 4 : RATE // 2]) == pytest.approx(8000, rel=0.15)


HOSTILE = {
    "no sound": (b"<html>" * 50, "is no sound in WAV, MP3"),
    "a list of files": (b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n", "is no sound in WAV, MP3"),
    "another list of files": (b"ffconcat version 1.0\nfile /etc/passwd\n", "is no sound in WAV, MP3"),
    "cut off": (wav()[:30], "is no sound in WAV, MP3|has no sound in it"),
    "a head alone": (wav()[:44], "has no sound in it|is no sound"),
    "too long": (wav(8000, seconds=3), "is longer than 2 seconds"),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_recordings_get_a_sentence(decoder, name):
    data, sentence = HOSTILE[name]
    with pytest.raises(MediaRefused, match=f"^The recording .*({sentence})"):
        await decoder.sound(data, 2)
