"""`GET /v1/models` as Anthropic's clients read it; they say who they are by the `anthropic-version` header."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from adapters.frame_json import json_bytes
from adapters.openai_models import ModelCard, no_such_model


def model_info(card: ModelCard) -> dict[str, object]:
    """Anthropic's ModelInfo."""
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
    """All models on one page."""
    ends = {"first_id": cards[0].id if cards else None, "last_id": cards[-1].id if cards else None}
    return json_bytes({"data": [model_info(card) for card in cards], "has_more": False, **ends})


def one_model(cards: Sequence[ModelCard], name: str) -> bytes:
    """Raises RequestError("not_found")."""
    card = next((card for card in cards if card.id == name), None)
    if card is None:
        raise no_such_model()
    return json_bytes(model_info(card))
