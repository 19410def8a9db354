"""Sound made on the spot."""

import io
import math
import struct
import wave

import av


def wav(rate=16_000, seconds=1.0, channels=1, tone=440):
    """A tone, as 16-bit samples."""
    held = io.BytesIO()
    with wave.open(held, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        samples = (int(8000 * math.sin(2 * math.pi * tone * i / rate)) for i in range(int(rate * seconds)))
        file.writeframes(b"".join(struct.pack("<h", sample) * channels for sample in samples))
    return held.getvalue()


def recorded(container="webm", codec="libopus", **options):
    """The same as a browser's microphone would send it."""
    held = io.BytesIO()
    with av.open(held, "w", format=container) as out, av.open(io.BytesIO(wav(rate=48_000, **options))) as source:
        stream = out.add_stream(codec, rate=48_000, layout="mono")
        for frame in source.decode(audio=0):
            frame.pts = None
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return held.getvalue()
