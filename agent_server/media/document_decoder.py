"""Reads PDFs in the process of `decoder_child`: the text of every page, and pictures of the first ones.

Answers with the length of a JSON array of the pages' texts (four bytes), the array, and for every picture its width,
its height (four bytes each), 16 bytes of digest and its pixels.
"""

from __future__ import annotations

import json
import struct
from hashlib import blake2b

import pypdfium2

SIDE = 1024
"""Pixels of the longer side of a page's picture: small print of a full page can be read, in about a thousand tokens."""
MOST_TEXT = 8_000_000
"""Characters of all pages; a file of a few kilobytes can say that it has any number."""
LENGTH = struct.Struct("<I")
SIZE = struct.Struct("<II")


def decode(data: bytes, most: int, drawn: int) -> list[bytes] | str:
    """A PDF of at most so many pages, with pictures of the first `drawn` of them."""
    try:
        document = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        locked = "password" in str(error).lower()
        return "asks for a password" if locked else "is damaged or cut off"
    if len(document) > most:
        return f"has {len(document)} pages, and {most} are left for it"
    try:
        texts: list[str] = []
        pictures: list[bytes] = []
        length = 0
        for index in range(len(document)):
            page = document[index]
            found = page.get_textpage().get_text_bounded().replace("\r\n", "\n").strip()
            text = found.encode("utf-8", "replace").decode()  # a PDF may map a glyph to half a pair of surrogates
            length += len(text)
            if length > MOST_TEXT:
                return f"has more than {MOST_TEXT} characters of text"
            texts.append(text)
            if index < drawn:
                pictures += _drawn(page)
            page.close()
        written = json.dumps(texts).encode()
        return [LENGTH.pack(len(written)), written, *pictures]
    except MemoryError:
        return "needs too much memory to be decoded"
    except Exception as error:  # pdfium's binding raises several kinds for files that are damaged
        return f"is damaged or cut off ({type(error).__name__})"


def _drawn(page: pypdfium2.PdfPage) -> list[bytes]:
    scale = SIDE / max(page.get_width(), page.get_height(), 1)
    image = page.render(scale=scale).to_pil().convert("RGB")
    size, pixels = SIZE.pack(*image.size), image.tobytes()
    return [size, blake2b(size + pixels, digest_size=16).digest(), pixels]
