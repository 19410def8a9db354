"""Outputs made of messages with headers, which say where each body goes (see OutputFormat.channels)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from events.parsing.source import Reading

if TYPE_CHECKING:
    from events.parsing.machine import Parser


def read_channels(parser: Parser) -> Reading[None]:
    yield
