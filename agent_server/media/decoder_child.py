"""Decodes pictures, documents or sound in a process of its own, which a malicious file may crash. Runs as a script, so
that it imports only the library that it needs: `python decoder_child.py MEMORY KIND`.

A request is twelve bytes (the length of the file and two bounds, little endian) and the file. The answer is one status
byte, a length of four bytes, and either (0) the decoded media or (1) the end of an error sentence, which begins "The
picture".

picture: the first bound is the maximum number of pixels; the answer is width, height (four bytes each), a digest of 16
bytes and the pixels. Other kinds are in `KIND_decoder.py` in the same folder, as `decode(data, bound, bound)`, which
returns the pieces of an answer or the end of an error sentence.
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


class UnusablePicture(Exception):
    """The picture cannot be used. The message completes the sentence "The picture …"."""


def decode(data: bytes, most: int) -> Image.Image:
    """Decode the first frame to upright RGB without metadata, on white where it is transparent. Raises
    UnusablePicture."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            Image.MAX_IMAGE_PIXELS = None  # `most` is checked before anything is decoded
            image = Image.open(io.BytesIO(data), formats=FORMATS)
            width, height = image.size
            if width * height > most:
                raise UnusablePicture(f"has {width} x {height} pixels, but only {most} are left of the limit")
            if width < 1 or height < 1:
                raise UnusablePicture("has no pixels")
            image.load()
            turned = ImageOps.exif_transpose(image)
            if turned.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in turned.info:
                clear = turned.convert("RGBA")
                turned = Image.new("RGBA", clear.size, "white")
                turned.alpha_composite(clear)
            return turned.convert("RGB")
    except UnidentifiedImageError:
        raise UnusablePicture("is not a PNG, JPEG, WebP or GIF") from None
    except MemoryError:
        raise UnusablePicture("needs too much memory to be decoded") from None
    except UnusablePicture:
        raise
    except Exception as error:  # Pillow raises many kinds for files that are damaged
        raise UnusablePicture(f"is damaged or truncated ({type(error).__name__})") from None


Decode = Callable[[bytes, int, int], "list[bytes] | str"]
"""A file and two bounds → the pieces of an answer, or the end of an error sentence."""


def decode_picture(data: bytes, most: int, _: int) -> list[bytes] | str:
    try:
        return framed(decode(data, most))
    except UnusablePicture as reason:
        return str(reason)


def framed(image: Image.Image) -> list[bytes]:
    """Return the size, a digest and the pixels of an RGB picture."""
    size, pixels = SIZE.pack(*image.size), image.tobytes()
    return [size, blake2b(size + pixels, digest_size=16).digest(), pixels]


def answer(result: list[bytes] | str) -> list[bytes]:
    """Return the pieces of an answer's frame."""
    if isinstance(result, str):
        text = result.encode()
        return [ANSWER.pack(1, len(text)), text]
    return [ANSWER.pack(0, sum(len(piece) for piece in result)), *result]


def load(kind: str) -> Decode:
    """Return the decoder of a kind: this module's for pictures, else that of `KIND_decoder.py`."""
    if kind == "picture":
        Image.init()  # import plugins before opening files is forbidden
        return decode_picture
    spec = importlib.util.spec_from_file_location(kind, Path(__file__).with_name(f"{kind}_decoder.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    decode: Decode = module.decode
    return decode


def confine(memory: int) -> None:
    """Limit memory, and forbid writing files and core dumps, as far as the system supports such limits."""
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
    decoder = load(sys.argv[2])
    confine(int(sys.argv[1]))
    serve(decoder, sys.stdin.buffer, sys.stdout.buffer)
