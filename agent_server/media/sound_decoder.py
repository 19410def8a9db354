"""Reads sound in the process of `decoder_child`: whatever of it a browser or a telephone records, by FFmpeg.

Answers with samples: little-endian int16, one channel, RATE of them a second, as Whisper's own reader makes them.
"""

from __future__ import annotations

import io
import itertools

import av

RATE = 16_000
"""Samples a second, which speech models are trained on."""
FORMATS = "wav,mp3,flac,ogg,matroska,webm,mov,mp4,m4a,3gp,3g2,mj2,aac"
"""FFmpeg's demuxers that may read a file. Others open what the file names, on this machine or elsewhere."""
SAMPLE_BYTES = 2


def decode(data: bytes, most: int, _: int) -> list[bytes] | str:
    """Sound of at most so many seconds."""
    try:
        return _samples(data, most * RATE * SAMPLE_BYTES)
    except MemoryError:
        return "needs too much memory to be decoded"
    except Exception as error:  # FFmpeg's binding raises many kinds for files that are damaged
        return f"is no sound in WAV, MP3, FLAC, Ogg, WebM, MP4 or AAC, or it is damaged ({type(error).__name__})"


def _samples(data: bytes, most: int) -> list[bytes] | str:
    options = {"format_whitelist": FORMATS, "protocol_whitelist": ""}
    with av.open(io.BytesIO(data), options=options) as container:
        if not container.streams.audio:
            return "has no sound in it"
        to_mono = av.AudioResampler(format="s16", layout="mono", rate=RATE)
        pieces: list[bytes] = []
        size = 0
        for frame in itertools.chain(container.decode(audio=0), [None]):  # None: what the resampler has left
            for part in to_mono.resample(frame):
                piece = bytes(part.planes[0])[: part.samples * SAMPLE_BYTES]
                size += len(piece)
                if size > most:
                    return f"is longer than {most // RATE // SAMPLE_BYTES} seconds"
                pieces.append(piece)
    return pieces if size else "has no sound in it"
