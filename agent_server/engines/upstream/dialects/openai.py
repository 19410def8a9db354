"""Any other server with OpenAI's `/v1/completions`: text in, text out, the last resort.

The prompt is the rendered text with its control tokens spelled out, and what comes back is encoded here. A server
that leaves special tokens out of its text hides a model's markers; there is no word to ask it not to. Stop strings are
found here alone, since such a server does not say which one it found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent_server.engine.detokenizer import Vocabulary
from agent_server.engines.upstream.dialects.dialect import Asked, Reader, Served, chosen_model, known
from agent_server.engines.upstream.dialects.openai_frames import CompletionReader
from agent_server.engines.upstream.dialects.vllm import models
from agent_server.engines.upstream.dialects.words import HERE, Word, Words, folded, spoken
from agent_server.engines.upstream.errors import refused
from agent_server.engines.upstream.transport import Transport


class OpenAI:
    """What speaks of token ids cannot be asked for, nor what OpenAI's endpoint has no parameter for."""

    name = "openai"
    path = "/v1/completions"
    health = "/v1/models"
    tokens = False
    words: Words = {
        "max_tokens": Word("max_tokens"),
        "temperature": Word("temperature"),
        "top_p": Word("top_p"),
        "presence_penalty": Word("presence_penalty"),
        "frequency_penalty": Word("frequency_penalty"),
        "seed": Word("seed", folded),
        "stop": HERE,
        "stop_token_ids": HERE,
    }

    async def describe(self, transport: Transport, wanted: str) -> Served:
        entries = await models(transport)
        model = chosen_model([entry["id"] for entry in entries], wanted, transport.address.url)
        entry = next(entry for entry in entries if entry["id"] == model)
        length = known(entry, "max_model_len", int) or known(entry, "context_length", int)
        return Served(model=model, models=tuple(each["id"] for each in entries), context_length=length)

    async def tokenize(self, transport: Transport, served: Served, text: str) -> list[int] | None:
        return None

    def check(self, asked: Asked) -> None:
        """Ids that end an answer end it by themselves; others cannot be told from the text."""
        if not set(asked.sampling.stop_token_ids) <= asked.ends:
            raise refused("stop_token_ids", "The upstream (openai) sends text, in which no token can be a stop.")

    def body(self, asked: Asked) -> dict[str, Any]:
        request, sampling = asked.request, asked.sampling
        return {
            "model": asked.served.model,
            "prompt": spelled(asked.vocabulary, request.prompt_token_ids),
            "stream": True,
            "stream_options": {"include_usage": True},
            **spoken(self.words, sampling),
        }

    def reader(self, asked: Asked) -> Reader:
        return CompletionReader(ids=False, alternatives=None)


def spelled(vocabulary: Vocabulary, ids: Sequence[int]) -> str:
    """The prompt's text, control tokens by their spelling."""
    decoder = vocabulary.detokenizer()
    return "".join(map(decoder.push, ids)) + decoder.flush()
