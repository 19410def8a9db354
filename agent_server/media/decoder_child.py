"""Decodes pictures in a process of its own, which may be killed by what it reads. Runs as a script, so that it has
nothing but Pillow: `python decoder_child.py MEMORY`.

Takes frames of eight bytes (the length of the file and the most pixels, little endian) and the file; answers each with
one byte, a length of four bytes, and either (0) width, height (four bytes each), 16 bytes of digest and the pixels, or
(1) a sentence.
"""

from __future__ import annotations

import contextlib
import io
import struct
import sys
import warnings
from hashlib import blake2b
from typing import BinaryIO

from PIL import Image, ImageOps, UnidentifiedImageError

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
REQUEST = struct.Struct("<II")
ANSWER = struct.Struct("<BI")
SIZE = struct.Struct("<II")


class Unusable(Exception):
    """Half a sentence about the picture."""


def decode(data: bytes, most: int) -> Image.Image:
    """Red, green and blue, upright, without metadata, on white where it is transparent; the first frame of several.
    Raises Unusable."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _upright(_opened(data, most))
    except UnidentifiedImageError:
        raise Unusable("is not a PNG, JPEG, WebP or GIF") from None
    except MemoryError:
        raise Unusable("needs too much memory to be decoded") from None
    except Unusable:
        raise
    except Exception as error:  # Pillow raises many kinds for files that are damaged
        raise Unusable(f"is damaged or cut off ({type(error).__name__})") from None


def _opened(data: bytes, most: int) -> Image.Image:
    Image.MAX_IMAGE_PIXELS = None  # held to `most` before anything is decoded
    image = Image.open(io.BytesIO(data), formats=FORMATS)
    width, height = image.size
    if width * height > most:
        raise Unusable(f"has {width} x {height} pixels, and {most} are left for it")
    if width < 1 or height < 1:
        raise Unusable("has no pixels")
    image.load()
    return image


def _upright(image: Image.Image) -> Image.Image:
    turned = ImageOps.exif_transpose(image)
    if turned.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in turned.info:
        clear = turned.convert("RGBA")
        turned = Image.new("RGBA", clear.size, "white")
        turned.alpha_composite(clear)
    return turned.convert("RGB")


def answer(data: bytes, most: int) -> list[bytes]:
    """The pieces of an answer's frame."""
    try:
        image = decode(data, most)
    except Unusable as reason:
        text = str(reason).encode()
        return [ANSWER.pack(1, len(text)), text]
    size, pixels = SIZE.pack(*image.size), image.tobytes()
    digest = blake2b(size + pixels, digest_size=16).digest()
    return [ANSWER.pack(0, len(size) + len(digest) + len(pixels)), size, digest, pixels]


def confine(memory: int) -> None:
    """Little memory, no files, no core dumps; as far as the system has such limits."""
    try:
        import resource
    except ImportError:
        return
    for name, most in (("RLIMIT_AS", memory), ("RLIMIT_FSIZE", 0), ("RLIMIT_CORE", 0)):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            resource.setrlimit(getattr(resource, name), (most, most))


def serve(source: BinaryIO, target: BinaryIO) -> None:
    while len(head := source.read(REQUEST.size)) == REQUEST.size:
        length, most = REQUEST.unpack(head)
        data = source.read(length)
        if len(data) < length:
            return
        for piece in answer(data, most):
            target.write(piece)
        target.flush()


if __name__ == "__main__":
    Image.init()  # plugins are imported before files may not be
    confine(int(sys.argv[1]))
    serve(sys.stdin.buffer, sys.stdout.buffer)
