"""The documents of a conversation → text, and pictures of their pages for a model with vision.

A PDF is read page by page. Any other file is either text or refused, regardless of its declared type.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

from ag_ui.core import ContentPart, DataSource, DocumentPart, ImagePart, Message, TextPart
from pydantic import PrivateAttr

from adapters.body import current_turn_start
from agent_server.bounded import BoundedCache
from agent_server.engine_protocol.protocol import Picture
from agent_server.media.decoding import Decoder, Pages
from agent_server.media.fetching import Fetcher, digest_of, read_source
from agent_server.media.refusal import MediaRefused
from agent_server.settings import MediaLimits

CACHE_BYTES = 64 * 2**20
"""Size of the cache of documents, which a client sends again with each turn."""
PDF = b"%PDF-"
HEAD = 1024
"""Bytes within which a PDF begins (ISO 32000-1, note 13 of annex H)."""
MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
"""Byte order marks, and the encoding of the text after them."""


class PagePicture(ImagePart):
    """A picture of a document's page, which is decoded already."""

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
    """The text of a document's page with its heading. page_text: without the heading. page: its index from 0."""

    _page_text: str = PrivateAttr(default="")
    _page: int = PrivateAttr(default=0)

    @classmethod
    def of(cls, text: str, page_text: str, page: int) -> DocumentText:
        part = cls(text=text)
        part._page_text, part._page = page_text, page
        return part

    @property
    def page_text(self) -> str:
        return self._page_text

    @property
    def page(self) -> int:
        return self._page


class Documents:
    """Reads the documents of requests, with an LRU cache by content. tenant: returns whose request is read; tenants do
    not share entries, since the time that one takes would tell what another has sent."""

    def __init__(
        self, limits: MediaLimits, fetcher: Fetcher, decoder: Decoder, tenant: Callable[[], str] = str
    ) -> None:
        self._limits = limits
        self._fetcher = fetcher
        self._decoder = decoder
        self._tenant = tenant
        self._cache = BoundedCache[tuple[str, bytes, bool], Pages](CACHE_BYTES, lambda key, document: document.size)

    async def read(self, messages: Sequence[Message], *, has_vision: bool, blank: bool = False) -> list[Message]:
        """Replace the documents of users and tools by text, and by pictures for a model with vision. A document that
        cannot be read is left in place if a tool sent it, or if an answer already followed it. has_vision: the model
        accepts pictures. blank: accept a PDF without text even for a model without vision. Raises MediaRefused, which
        names the user's document by its number."""
        if not any(isinstance(message.content, list) for message in messages):  # only text, as in most conversations
            return list(messages)
        total = sum(isinstance(part, DocumentPart) for message in messages for part in _parts(message, "user"))
        turn_start = current_turn_start(message.role for message in messages)
        number, pages, read = 0, self._limits.pages, list[Message]()
        for place, message in enumerate(messages):
            parts: list[ContentPart] = []
            for part in _parts(message, "user", "tool"):
                if not isinstance(part, DocumentPart):
                    parts.append(part)
                    continue
                number += message.role == "user"
                try:
                    document = await self._read(part, pages, has_vision, blank)
                except MediaRefused as reason:
                    if message.role == "tool" or place < turn_start:
                        parts.append(part)
                        continue
                    raise MediaRefused(f"Document {number} of {total} is refused: {reason.message}") from reason
                pages -= len(document.texts)
                parts += _document_parts(part, document)
            read.append(message.model_copy(update={"content": parts}) if parts else message)
        return read

    async def _read(self, part: DocumentPart, pages: int, has_vision: bool, blank: bool) -> Pages:
        data = await read_source(part.source, self._fetcher, self._limits)
        cache_key = self._tenant(), await digest_of(data), has_vision
        document = self._cache.get(cache_key)
        if document is None or len(document.texts) > pages:
            if PDF in data[:HEAD]:
                document = await self._decoder.pages(data, pages, self._limits.page_pictures if has_vision else 0)
            else:
                encoding = next((name for mark, name in MARKS.items() if data.startswith(mark)), "utf-8")
                try:
                    text = data.decode(encoding)
                except UnicodeDecodeError:
                    text = "\0"
                if "\0" in text:
                    raise MediaRefused("It is neither a PDF nor text in UTF-8 or UTF-16.")
                document = Pages([text], [])
            self._cache.put(cache_key, document)
        if not blank and not document.pictures and not any(document.texts):
            reason = "its pages are not sent as pictures" if has_vision else "this model does not accept pictures"
            raise MediaRefused(f"The PDF has no text on its {len(document.texts)} pages, and {reason}.")
        return document


def _parts(message: Message, *roles: str) -> list[ContentPart]:
    """Return the parts of a message of one of these roles, if there is a document among them."""
    content = message.content if message.role in roles else None
    parts = content if isinstance(content, list) else []
    return parts if any(isinstance(part, DocumentPart) for part in parts) else []


def _document_parts(part: DocumentPart, document: Pages) -> list[ContentPart]:
    """Return a document's parts for the model: the text of each page with its number, followed by its picture."""
    parts: list[ContentPart] = []
    metadata = part.metadata if isinstance(part.metadata, dict) else {}
    name = metadata.get("filename") or metadata.get("name")
    title = f"Document {name}" if isinstance(name, str) and name else "Document"
    for index, text in enumerate(document.texts):
        which = f", page {index + 1} of {len(document.texts)}" if len(document.texts) > 1 else ""
        parts.append(DocumentText.of(f"{title}{which}:\n{text}".rstrip(), text, index))
        if index < len(document.pictures):
            parts.append(PagePicture.of(document.pictures[index]))
    return parts
