"""Read the header of a GGUF file: its metadata and the places of its tensors. The package `gguf` takes fifty times as
long, and does not distinguish a truncated file from a damaged one.

The format, little-endian: "GGUF", version, number of tensors, of metadata; the metadata, each a key, a type and a
value; for each tensor its name, sizes (the first varies first), type and offset; the tensors, from the next multiple of
the alignment on. https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from agent_server.model_files.usable_files import UnusableFile, readable

MAGIC = b"GGUF"
VERSIONS = (2, 3)
"""The supported versions. Version 1 had counts of 32 bits, and its files are no longer in use."""
ALIGNMENT = 32
LENGTH = struct.Struct("<Q")
"""The length in bytes that precedes a string."""
STRING, ARRAY = 8, 9
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""The numeric types of metadata, as formats of `struct`."""
BLOCKS = {
    "F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20), "Q5_0": (6, 32, 22),
    "Q5_1": (7, 32, 24), "Q8_0": (8, 32, 34), "Q2_K": (10, 256, 84), "Q3_K": (11, 256, 110), "Q4_K": (12, 256, 144),
    "Q5_K": (13, 256, 176), "Q6_K": (14, 256, 210), "IQ2_XXS": (16, 256, 66), "IQ2_XS": (17, 256, 74),
    "IQ3_XXS": (18, 256, 98), "IQ1_S": (19, 256, 50), "IQ4_NL": (20, 32, 18), "IQ3_S": (21, 256, 110),
    "IQ2_S": (22, 256, 82), "IQ4_XS": (23, 256, 136), "IQ1_M": (29, 256, 56), "BF16": (30, 1, 2),
    "TQ1_0": (34, 256, 54), "TQ2_0": (35, 256, 66), "MXFP4": (39, 32, 17),
}  # fmt: skip
"""Number formats of tensors that can be unpacked: the format's id, the weights of a block and its bytes."""


class TensorPlace(msgspec.Struct, frozen=True):
    """A tensor's place in the file. shape: in torch's order. kind: a key of BLOCKS. start, size: in bytes."""

    shape: tuple[int, ...]
    kind: str
    start: int
    size: int


class GgufHeader(msgspec.Struct, frozen=True):
    metadata: Mapping[str, object]
    tensors: Mapping[str, TensorPlace]


def read_header(path: Path) -> GgufHeader:
    """Read a file's header. Raises UnusableFile if the file is not a complete GGUF file."""
    readable(path)
    with path.open("rb") as stream:
        if stream.read(len(MAGIC)) != MAGIC:
            raise UnusableFile(f"{path} is not a GGUF file; download it again.")
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(path, data).read()


class _Reader:
    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data = path, data
        self.at = len(MAGIC)

    def read(self) -> GgufHeader:
        try:
            [version] = self._take("I")
            if version not in VERSIONS:
                raise UnusableFile(f"{self.path} is of version {version} of the format; 2 and 3 are read.")
            tensors, entries = self._take("QQ")
            metadata: dict[str, object] = {}
            for _ in range(entries):
                name, [kind] = self._text(), self._take("I")
                metadata[name] = self._array() if kind == ARRAY else self._single(kind)
            places = [self._entry() for _ in range(tensors)]
        except struct.error:
            raise UnusableFile(f"{self.path} is cut off within its header; download it again.") from None
        except (KeyError, UnicodeDecodeError, MemoryError, OverflowError):
            raise UnusableFile(f"{self.path} is damaged: its header cannot be read; download it again.") from None
        alignment = metadata.get("general.alignment", ALIGNMENT)
        step = alignment if isinstance(alignment, int) and alignment > 0 else ALIGNMENT
        begin = -(-self.at // step) * step
        kinds = {number: (kind, weights, size) for kind, (number, weights, size) in BLOCKS.items()}
        tensor_places = {}
        for name, shape, number, offset in places:
            if number not in kinds:
                raise UnusableFile(
                    f"{self.path} has the tensor {name} in a number format that is not known here ({number})."
                )
            block_kind, weights, size = kinds[number]
            tensor_places[name] = TensorPlace(shape, block_kind, begin + offset, math.prod(shape) // weights * size)
        end = max((each.start + each.size for each in tensor_places.values()), default=0)
        if not tensor_places:
            raise UnusableFile(f"{self.path} has no tensors; download it again.")
        if end > len(self.data):
            raise UnusableFile(
                f"{self.path} is cut off: its header says {end} bytes, it has {len(self.data)}; download it again."
            )
        placed = tensor_places
        return GgufHeader(metadata, placed)

    def _take(self, form: str) -> tuple[int, ...]:
        form = f"<{form}"
        value = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def _texts(self, count: int) -> list[str]:
        """Read strings in one loop without calls, since a vocabulary has hundreds of thousands of them."""
        data, size, at = self.data, len(self.data), self.at
        read_length = LENGTH.unpack_from
        texts: list[str] = []
        for _ in range(count):
            start = at + LENGTH.size
            at = start + read_length(data, at)[0]
            if at > size:
                raise struct.error
            texts.append(data[start:at].decode())
        self.at = at
        return texts

    def _text(self) -> str:
        return self._texts(1)[0]

    def _single(self, kind: int) -> object:
        return self._text() if kind == STRING else self._take(NUMBERS[kind])[0]

    def _array(self) -> list[Any]:
        kind, count = self._take("IQ")
        if count > len(self.data):
            raise struct.error
        if kind == STRING:
            return self._texts(count)
        if kind == ARRAY:
            return [self._array() for _ in range(count)]
        return list(self._take(f"{count}{NUMBERS[kind]}"))

    def _entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._text()
        [dimensions] = self._take("I")
        if dimensions > 8:
            raise KeyError(dimensions)
        sizes = self._take(f"{dimensions}Q")
        kind, offset = self._take("IQ")
        return name, tuple(reversed(sizes)), kind, offset
