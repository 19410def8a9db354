"""Pictures made on the spot, good ones and hostile ones."""

import io
import struct
import zlib

from PIL import Image


def encoded(image, kind="PNG", **options):
    held = io.BytesIO()
    image.save(held, kind, **options)
    return held.getvalue()


def gradient(width=12, height=8):
    """Every pixel another colour."""
    image = Image.new("RGB", (width, height))
    image.putdata([(20 * x % 256, 30 * y % 256, (x * y) % 256) for y in range(height) for x in range(width)])
    return image


def png(width, height, body=b"", *chunks):
    """A PNG with this header, whatever follows."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    inner = b"".join(chunk(kind, data) for kind, data in chunks)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + inner
        + chunk(b"IDAT", zlib.compress(body, 1))
        + chunk(b"IEND", b"")
    )
