"""`GET /v1/models`: the available models and their capabilities.

Anthropic's clients, which send an `anthropic-version` header, get a list in Anthropic's form.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import msgspec

from adapters.errors import RequestError
from adapters.sse import json_bytes


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """A model that a request's `model` can name.

    created: seconds since the epoch. context_length: tokens of prompt and answer together. capabilities: whether each
    of "tools", "reasoning", "structured_outputs", "logprobs" and so on is supported.
    """

    id: str
    created: int
    context_length: int | None = None
    vocabulary: int | None = None
    capabilities: dict[str, bool] = {}
    modalities: tuple[str, ...] = ("text",)
    root: str | None = None
    description: str | None = None
    status: str = "ready"


def model_object(card: ModelCard) -> dict[str, object]:
    """Return OpenAI's model object, with the extra fields of vLLM and OpenRouter."""
    fields: dict[str, object] = {
        "id": card.id,
        "object": "model",
        "created": card.created,
        "owned_by": "agent-server",
        "root": card.root or card.id,
        "context_length": card.context_length,
        "max_model_len": card.context_length,
        "vocab_size": card.vocabulary,
        "architecture": {"input_modalities": list(card.modalities), "output_modalities": ["text"]},
        "capabilities": card.capabilities,
        "status": card.status,
        "description": card.description,
    }
    return {name: value for name, value in fields.items() if value is not None}


def model_list(cards: Iterable[ModelCard]) -> bytes:
    return json_bytes({"object": "list", "data": [model_object(card) for card in cards]})


def no_such_model(name: str) -> RequestError:
    message = f"There is no model {name[:100]!r}. GET /v1/models lists the available models."
    return RequestError("not_found", message, param="model", code="model_not_found")


def one_model(cards: Iterable[ModelCard], name: str) -> bytes:
    """Encode one model. Raises RequestError("not_found")."""
    card = next((card for card in cards if card.id == name), None)
    if card is None:
        raise no_such_model(name)
    return json_bytes(model_object(card))


def model_info(card: ModelCard) -> dict[str, object]:
    """Return Anthropic's ModelInfo."""
    created = datetime.fromtimestamp(card.created, UTC).isoformat().replace("+00:00", "Z")
    return {
        "type": "model",
        "id": card.id,
        "display_name": card.description or card.id,
        "created_at": created,
        "max_input_tokens": card.context_length,
        "max_tokens": card.context_length,
    }


def model_page(cards: Sequence[ModelCard]) -> bytes:
    """Encode all models as a single page of Anthropic's list."""
    ends = {"first_id": cards[0].id if cards else None, "last_id": cards[-1].id if cards else None}
    return json_bytes({"data": [model_info(card) for card in cards], "has_more": False, **ends})


def one_model_info(cards: Sequence[ModelCard], name: str) -> bytes:
    """Encode one model in Anthropic's form. Raises RequestError("not_found")."""
    card = next((card for card in cards if card.id == name), None)
    if card is None:
        raise no_such_model(name)
    return json_bytes(model_info(card))
