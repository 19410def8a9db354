"""`/v1/responses/compact`: a conversation made short, as the client's own messages and one sealed summary.

The answer is what OpenAI documents: all messages of the user, followed by a single `compaction` item. Instructions
among the items (`system`, `developer`) are kept as well, since nothing else would tell the model of them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ag_ui.core import (
    DataSource,
    DocumentPart,
    ImagePart,
    Message,
    RunAgentInput,
    SystemMessage,
    TextPart,
    UserMessage,
)

from adapters.body import read_object, wrong
from adapters.client_history import NewId
from adapters.frame_json import json_bytes
from adapters.inbound import DEFAULT_LIMITS, Inbound, Limits
from adapters.openai_responses.items import COMPACTION, Items, Opened
from adapters.openai_responses.responses_fields import FIELDS
from adapters.openai_responses.responses_inbound import read_values
from adapters.openai_responses.responses_outbound import usage_object
from adapters.request_fields import STRING, Field, honoured, read_fields
from events.options import GenerationOptions
from events.sampling import SamplingParams
from events.vocabulary import TokenUsage

COMPACT_FIELDS: dict[str, Field] = {
    name: FIELDS[name]
    for name in (
        "model", "input", "previous_response_id", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
        "service_tier", "image",
    )
} | {"instructions": honoured("told to the model that summarises, and not kept", STRING)}  # fmt: skip
KEPT_ROLES = ("user", "system", "developer")


def parse_compact(
    body: bytes,
    *,
    new_id: NewId,
    limits: Limits = DEFAULT_LIMITS,
    media: Iterable[str] = (),
    items: Items = MappingProxyType({}),
    opened: Opened,
) -> Inbound:
    """The conversation that is to be made short; `with_history` puts a previous response's before it. Raises
    RequestError."""
    values = read_fields(read_object(body, limits, shape=dict), COMPACT_FIELDS)
    values.setdefault("input", None)
    if values["input"] is None and values.get("previous_response_id") is None:
        raise wrong("input", "is required where there is no previous_response_id")
    values["store"] = False
    return read_values(values, new_id=new_id, limits=limits, media=tuple(media), items=items, opened=opened)


def summary_run(model: str | None, instructions: str, text: str, tokens: int, new_id: NewId) -> Inbound:
    """A run that summarises: no tools, no thoughts, nothing kept. tokens: the longest summary."""
    messages: list[Message] = [
        SystemMessage(id=new_id("msg"), content=instructions),
        UserMessage(id=new_id("msg"), content=text),
    ]
    run = RunAgentInput(
        thread_id=new_id("thread"), run_id=new_id("run"), messages=messages, tools=[], context=[], state={},
        forwarded_props={},
    )  # fmt: skip
    sampling = SamplingParams(temperature=0.0, max_tokens=tokens)
    return Inbound(
        input=run, options=GenerationOptions(model=model, sampling=sampling, thinking=False, store=False), stream=False
    )


def kept(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """The messages that stay as they are, as items; those that stand for an earlier summary do not."""
    return [
        {"type": "message", "id": message.id, "status": "completed", "role": message.role, "content": _parts(message)}
        for message in messages
        if message.role in KEPT_ROLES and not (message.id or "").startswith(f"{COMPACTION}_")
    ]


def _parts(message: Message) -> list[dict[str, object]]:
    content: Any = message.content
    if isinstance(content, str):
        return [{"type": "input_text", "text": content}]
    return [_part(part) for part in content or ()]


def _part(part: object) -> dict[str, object]:
    if isinstance(part, TextPart):
        return {"type": "input_text", "text": part.text}
    if isinstance(part, ImagePart):
        return {"type": "input_image", "detail": "auto", "image_url": _address(part.source)}
    if isinstance(part, DocumentPart):
        named: Mapping[str, object] = part.metadata if isinstance(part.metadata, dict) else {}
        field = "file_data" if isinstance(part.source, DataSource) else "file_url"
        return {"type": "input_file", field: _address(part.source), **named}
    raise wrong("input", f"holds {getattr(part, 'type', 'unknown')} content, which cannot be kept")


def _address(source: Any) -> str:
    return f"data:{source.mime_type};base64,{source.value}" if isinstance(source, DataSource) else str(source.value)


def compacted_body(
    id: str, created: int, messages: Sequence[Message], sealed: str, usage: Iterable[TokenUsage]
) -> bytes:
    """id: of the answer, `resp_...`. sealed: the summary, which this server alone can read."""
    item = {"type": "compaction", "id": f"{COMPACTION}_{id.removeprefix('resp_')}", "encrypted_content": sealed}
    return json_bytes(
        {
            "id": id,
            "object": "response.compaction",
            "created_at": created,
            "output": [*kept(messages), item],
            "usage": usage_object(usage),
        }
    )
