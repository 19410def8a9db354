"""Reads PDFs in the process of `decoder_child`: the text of every page, and pictures of the first pages.

The answer is the length of a JSON array of the pages' texts (four bytes), the array, and for each picture its width,
its height (four bytes each), a digest of 16 bytes and its pixels.
"""

from __future__ import annotations

import json
import struct
from hashlib import blake2b

import pypdfium2

SIDE = 1024
"""Pixels of the longer side of a page's picture: small print of a full page is readable, in about a thousand tokens."""
MOST_TEXT = 8_000_000
"""Limit on the characters of all pages: a file of a few kilobytes can expand to any number."""
LENGTH = struct.Struct("<I")
SIZE = struct.Struct("<II")


def decode(data: bytes, most: int, drawn: int) -> list[bytes] | str:
    """Read a PDF of at most `most` pages, with pictures of the first `drawn`."""
    try:
        document = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        locked = "password" in str(error).lower()
        return "requires a password" if locked else "is damaged or truncated"
    if len(document) > most:
        return f"has {len(document)} pages, but only {most} are left of the limit"
    try:
        texts: list[str] = []
        pictures: list[bytes] = []
        length = 0
        for index in range(len(document)):
            page = document[index]
            raw_text = page.get_textpage().get_text_bounded().replace("\r\n", "\n").strip()
            text = raw_text.encode("utf-8", "replace").decode()  # a PDF may map a glyph to half a pair of surrogates
            length += len(text)
            if length > MOST_TEXT:
                return f"has more than {MOST_TEXT} characters of text"
            texts.append(text)
            if index < drawn:
                scale = SIDE / max(page.get_width(), page.get_height(), 1)
                image = page.render(scale=scale).to_pil().convert("RGB")
                size, pixels = SIZE.pack(*image.size), image.tobytes()
                pictures += [size, blake2b(size + pixels, digest_size=16).digest(), pixels]
            page.close()
        encoded_texts = json.dumps(texts, ensure_ascii=False).encode()  # escapes take six times as long to decode
        return [LENGTH.pack(len(encoded_texts)), encoded_texts, *pictures]
    except MemoryError:
        return "needs too much memory to be decoded"
    except Exception as error:  # pdfium's binding raises several kinds for files that are damaged
        return f"is damaged or truncated ({type(error).__name__})"
