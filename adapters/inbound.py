"""What every wire's inbound parser returns, and the limits it reads under."""

from __future__ import annotations

from typing import Any

import msgspec
from ag_ui.core import RunAgentInput

from events.options import GenerationOptions


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on one request, checked before anything is built from it.

    body: bytes. messages, tools, parts, context, resume: items per list (parts: per message). string: characters of
    one text. name: characters of an id or a name. schema: bytes of one tool's JSON schema. depth: nesting of the JSON.
    """

    body: int = 16 * 1024 * 1024
    messages: int = 4096
    tools: int = 512
    parts: int = 256
    tool_calls: int = 256
    context: int = 256
    resume: int = 64
    string: int = 8 * 1024 * 1024
    name: int = 512
    schema: int = 256 * 1024
    depth: int = 64


DEFAULT_LIMITS = Limits()


class Inbound(msgspec.Struct, frozen=True, kw_only=True):
    """A request as the house sees it. `extra` is what the wire's own outbound side needs back (flags, echo values)."""

    input: RunAgentInput
    options: GenerationOptions = GenerationOptions()
    stream: bool = True
    extra: Any = None
