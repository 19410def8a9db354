"""Any other server with OpenAI's `/v1/completions`, which takes and sends text. It is used if no other dialect fits.

The prompt is sent as text with its control tokens spelled out, and the answer's text is encoded here. A server that
leaves special tokens out of its text hides the model's markers, and the protocol has no field to prevent that. Stop
strings are only looked for here, because such a server does not say which one it found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent_server.engine_protocol.detokenizer import Vocabulary
from agent_server.engines.upstream.dialects.dialect import OutgoingRequest, Reader, UpstreamInfo, chosen_model, known
from agent_server.engines.upstream.dialects.openai_frames import CompletionReader
from agent_server.engines.upstream.dialects.vllm import models
from agent_server.engines.upstream.dialects.words import HERE, Word, Words, folded, sampling_fields
from agent_server.engines.upstream.errors import refused
from agent_server.engines.upstream.transport import Transport


class OpenAI:
    """Parameters that name token ids cannot be honoured, nor those that OpenAI's endpoint does not have."""

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

    async def describe(self, transport: Transport, wanted: str) -> UpstreamInfo:
        entries = await models(transport)
        model = chosen_model([entry["id"] for entry in entries], wanted, transport.address.url)
        entry = next(entry for entry in entries if entry["id"] == model)
        length = known(entry, "max_model_len", int) or known(entry, "context_length", int)
        return UpstreamInfo(model=model, models=tuple(each["id"] for each in entries), context_length=length)

    async def tokenize(self, transport: Transport, served: UpstreamInfo, text: str) -> list[int] | None:
        return None

    def check(self, outgoing: OutgoingRequest) -> None:
        """Only the model's own end tokens may be stop ids: the server stops at them anyway. Others cannot be seen in
        text."""
        if not set(outgoing.sampling.stop_token_ids) <= outgoing.ends:
            message = "The upstream (openai) sends no token ids, so only the model's own end tokens can be stop ids."
            raise refused("stop_token_ids", message)

    def body(self, outgoing: OutgoingRequest) -> dict[str, Any]:
        request, sampling = outgoing.request, outgoing.sampling
        return {
            "model": outgoing.served.model,
            "prompt": spelled(outgoing.vocabulary, request.prompt_token_ids),
            "stream": True,
            "stream_options": {"include_usage": True},
            **sampling_fields(self.words, sampling),
        }

    def reader(self, outgoing: OutgoingRequest) -> Reader:
        return CompletionReader(ids=False, alternatives=None)


def spelled(vocabulary: Vocabulary, ids: Sequence[int]) -> str:
    """The prompt's text, with control tokens spelled out."""
    decoder = vocabulary.detokenizer()
    return "".join(map(decoder.push, ids)) + decoder.flush()
