"""Decodes sound in the process of `decoder_child` with FFmpeg, in the formats that browsers and telephones record.

The answer is the samples: little-endian int16, one channel, at the requested rate, like those of Whisper's own loader.
"""

from __future__ import annotations

import io
import itertools

import av

FORMATS = "wav,mp3,flac,ogg,matroska,webm,mov,mp4,m4a,3gp,3g2,mj2,aac"
"""FFmpeg's demuxers that may be used. Others open files or URLs that a file names."""
SAMPLE_BYTES = 2


def decode(data: bytes, most: int, rate: int) -> list[bytes] | str:
    """Decode sound of at most `most` seconds to `rate` samples per second."""
    try:
        options = {"format_whitelist": FORMATS, "protocol_whitelist": ""}
        with av.open(io.BytesIO(data), options=options) as container:
            if not container.streams.audio:
                return "has no sound in it"
            to_mono = av.AudioResampler(format="s16", layout="mono", rate=rate)
            pieces: list[bytes] = []
            size = 0
            for frame in itertools.chain(container.decode(audio=0), [None]):  # None flushes the resampler
                for part in to_mono.resample(frame):
                    piece = bytes(part.planes[0])[: part.samples * SAMPLE_BYTES]
                    size += len(piece)
                    if size > most * rate * SAMPLE_BYTES:
                        return f"is longer than {most} seconds"
                    pieces.append(piece)
        return pieces if size else "has no sound in it"
    except MemoryError:
        return "needs too much memory to be decoded"
    except Exception as error:  # FFmpeg's binding raises many kinds for files that are damaged
        return f"is no sound in WAV, MP3, FLAC, Ogg, WebM, MP4 or AAC, or it is damaged ({type(error).__name__})"
