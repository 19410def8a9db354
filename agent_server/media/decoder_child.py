"""Decodes pictures, documents or sound in a process of its own, which may be killed by what it reads. Runs as a script,
so that it has nothing but the library that it needs: `python decoder_child.py MEMORY KIND`.

Takes frames of twelve bytes (the length of the file and two bounds, little endian) and the file; answers each with one
byte, a length of four bytes, and either (0) what was decoded or (1) half a sentence.

picture: the first bound is the most pixels; width, height (four bytes each), 16 bytes of digest and the pixels come.
Other kinds are in `KIND_decoder.py` beside this file, as `decode(data, bound, bound)`, which returns the pieces of an
answer, or the half sentence.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import struct
import sys
import warnings
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

from PIL import Image, ImageOps, UnidentifiedImageError

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
REQUEST = struct.Struct("<III")
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
            Image.MAX_IMAGE_PIXELS = None  # held to `most` before anything is decoded
            image = Image.open(io.BytesIO(data), formats=FORMATS)
            width, height = image.size
            if width * height > most:
                raise Unusable(f"has {width} x {height} pixels, and {most} are left for it")
            if width < 1 or height < 1:
                raise Unusable("has no pixels")
            image.load()
            turned = ImageOps.exif_transpose(image)
            if turned.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in turned.info:
                clear = turned.convert("RGBA")
                turned = Image.new("RGBA", clear.size, "white")
                turned.alpha_composite(clear)
            return turned.convert("RGB")
    except UnidentifiedImageError:
        raise Unusable("is not a PNG, JPEG, WebP or GIF") from None
    except MemoryError:
        raise Unusable("needs too much memory to be decoded") from None
    except Unusable:
        raise
    except Exception as error:  # Pillow raises many kinds for files that are damaged
        raise Unusable(f"is damaged or cut off ({type(error).__name__})") from None


Decode = Callable[[bytes, int, int], "list[bytes] | str"]
"""A file and two bounds → the pieces of an answer, or half a sentence."""


def decode_picture(data: bytes, most: int, _: int) -> list[bytes] | str:
    try:
        return framed(decode(data, most))
    except Unusable as reason:
        return str(reason)


def framed(image: Image.Image) -> list[bytes]:
    """The size, a digest and the pixels of a picture in red, green and blue."""
    size, pixels = SIZE.pack(*image.size), image.tobytes()
    return [size, blake2b(size + pixels, digest_size=16).digest(), pixels]


def answer(found: list[bytes] | str) -> list[bytes]:
    """The pieces of an answer's frame."""
    if isinstance(found, str):
        text = found.encode()
        return [ANSWER.pack(1, len(text)), text]
    return [ANSWER.pack(0, sum(len(piece) for piece in found)), *found]


def load(kind: str) -> Decode:
    """What decodes a kind: for pictures this module, for others the one beside it."""
    if kind == "picture":
        Image.init()  # plugins are imported before files may not be
        return decode_picture
    spec = importlib.util.spec_from_file_location(kind, Path(__file__).with_name(f"{kind}_decoder.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    decode: Decode = module.decode
    return decode


def confine(memory: int) -> None:
    """Little memory, no files, no core dumps; as far as the system has such limits."""
    try:
        import resource
    except ImportError:
        return
    for name, most in (("RLIMIT_AS", memory), ("RLIMIT_FSIZE", 0), ("RLIMIT_CORE", 0)):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            resource.setrlimit(getattr(resource, name), (most, most))


def serve(decode: Decode, source: BinaryIO, target: BinaryIO) -> None:
    while len(head := source.read(REQUEST.size)) == REQUEST.size:
        length, *bounds = REQUEST.unpack(head)
        data = source.read(length)
        if len(data) < length:
            return
        for piece in answer(decode(data, *bounds)):
            target.write(piece)
        target.flush()


if __name__ == "__main__":
    chosen = load(sys.argv[2])
    confine(int(sys.argv[1]))
    serve(chosen, sys.stdin.buffer, sys.stdout.buffer)
