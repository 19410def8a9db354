"""Documents of a conversation → text, and pictures of their pages for a model that sees.

A PDF is read page by page; every other file is text or is refused, whatever its part calls it.
"""

from __future__ import annotations

import asyncio
import codecs
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

from ag_ui.core import ContentPart, DataSource, DocumentPart, ImagePart, Message, TextPart
from pydantic import PrivateAttr

from adapters.body import first_asked
from agent_server.engine_protocol.protocol import Picture
from agent_server.media.decoding import Decoder, Pages
from agent_server.media.fetching import Fetcher, read_source
from agent_server.media.refusal import Refused
from agent_server.settings import MediaLimits

KEPT_BYTES = 64 * 2**20
"""Of what was read, for the turns that follow, which send the same documents again."""
PDF = b"%PDF-"
HEAD = 1024
"""Bytes within which a PDF begins (ISO 32000-1, note 13 of annex H)."""
MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
"""Byte order marks, and how the text behind them is encoded."""
CHARACTER_BYTES = 4


class PagePicture(ImagePart):
    """A page of a document as a picture that is decoded already."""

    source: DataSource = DataSource(value="", mime_type="image/png")
    _picture: Picture = PrivateAttr()

    @classmethod
    def of(cls, picture: Picture) -> PagePicture:
        part = cls()
        part._picture = picture
        return part

    @property
    def picture(self) -> Picture:
        return self._picture


class DocumentText(TextPart):
    """What the model is told of a document's page. said: the page's own words. page: its place, from 0."""

    _said: str = PrivateAttr(default="")
    _page: int = PrivateAttr(default=0)

    @classmethod
    def of(cls, text: str, said: str, page: int) -> DocumentText:
        part = cls(text=text)
        part._said, part._page = said, page
        return part

    @property
    def said(self) -> str:
        return self._said

    @property
    def page(self) -> int:
        return self._page


class Documents:
    """Reads the documents of requests, and keeps what it read for a while, by content."""

    def __init__(self, limits: MediaLimits, fetcher: Fetcher, decoder: Decoder, kept_bytes: int = KEPT_BYTES) -> None:
        self._limits = limits
        self._fetcher = fetcher
        self._decoder = decoder
        self._kept: OrderedDict[tuple[bytes, bool], Pages] = OrderedDict()
        self._room = kept_bytes

    async def read(self, messages: Sequence[Message], *, sees: bool, blank: bool = False) -> list[Message]:
        """The messages with text, and pictures for a model that sees, in place of the documents of users and tools. A
        document that cannot be read stays where a tool told it, or an answer followed it already. blank: a PDF without
        text is taken by whoever sees no pictures, too. Raises Refused, which says which of the users' it was."""
        if not any(isinstance(message.content, list) for message in messages):  # texts alone, as most conversations
            return list(messages)
        total = sum(isinstance(part, DocumentPart) for message in messages for part in _parts(message, "user"))
        asked = first_asked(message.role for message in messages)
        number, pages, read = 0, self._limits.pages, list[Message]()
        for place, message in enumerate(messages):
            parts: list[ContentPart] = []
            for part in _parts(message, "user", "tool"):
                if not isinstance(part, DocumentPart):
                    parts.append(part)
                    continue
                number += message.role == "user"
                try:
                    found = await self._read(part, pages, sees, blank)
                except Refused as reason:
                    if message.role == "tool" or place < asked:
                        parts.append(part)
                        continue
                    raise Refused(f"Document {number} of {total} is not taken: {reason.message}") from reason
                pages -= len(found.texts)
                parts += _told(_name(part), found)
            read.append(message.model_copy(update={"content": parts}) if parts else message)
        return read

    async def _read(self, part: DocumentPart, pages: int, sees: bool, blank: bool) -> Pages:
        data = await read_source(part.source, self._fetcher, self._limits)
        key = await asyncio.to_thread(blake2b, data, digest_size=16)
        name = key.digest(), sees
        found = self._kept.pop(name, None)
        if found is None or len(found.texts) > pages:
            found = await self._decoded(data, pages, sees)
            self._room -= _size(found)
        self._kept[name] = found
        while self._room < 0 and self._kept:
            self._room += _size(self._kept.popitem(last=False)[1])
        if not blank and not found.pictures and not any(found.texts):
            seen = "its pages are not shown as pictures" if sees else "this model sees no pictures"
            raise Refused(f"The PDF has no text on its {len(found.texts)} pages, and {seen}.")
        return found

    async def _decoded(self, data: bytes, pages: int, sees: bool) -> Pages:
        if PDF not in data[:HEAD]:
            # The text of a file that is text.
            encoding = next((name for mark, name in MARKS.items() if data.startswith(mark)), "utf-8")
            try:
                text = data.decode(encoding)
            except UnicodeDecodeError:
                text = "\0"
            if "\0" in text:
                raise Refused("It is neither a PDF nor text in UTF-8 or UTF-16.")
            return Pages([text], [])
        return await self._decoder.pages(data, pages, self._limits.page_pictures if sees else 0)


def _parts(message: Message, *roles: str) -> list[ContentPart]:
    """The parts of a message of one of these roles, if it has a document among them."""
    content = message.content if message.role in roles else None
    parts = content if isinstance(content, list) else []
    return parts if any(isinstance(part, DocumentPart) for part in parts) else []


def _told(name: str, found: Pages) -> list[ContentPart]:
    """What the model is told of a document: each page's text under its number, and then its picture."""
    parts: list[ContentPart] = []
    called = f"Document {name}" if name else "Document"
    for index, text in enumerate(found.texts):
        which = f", page {index + 1} of {len(found.texts)}" if len(found.texts) > 1 else ""
        parts.append(DocumentText.of(f"{called}{which}:\n{text}".rstrip(), text, index))
        if index < len(found.pictures):
            parts.append(PagePicture.of(found.pictures[index]))
    return parts


def _name(part: DocumentPart) -> str:
    """The file's name, as clients put it into a part's metadata."""
    known = part.metadata if isinstance(part.metadata, dict) else {}
    name = known.get("filename") or known.get("name")
    return name if isinstance(name, str) else ""


def _size(pages: Pages) -> int:
    """Bytes that it takes in memory, about."""
    letters = sum(len(text) for text in pages.texts) * CHARACTER_BYTES
    return letters + sum(len(picture.pixels) for picture in pages.pictures)
