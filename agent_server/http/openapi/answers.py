"""The schemas of responses, as structs from which JSON Schema is generated. Extensions of this server are marked.

A field that may be absent is `UnsetType`; one that may be null is optional. tests/http/routes/test_openapi.py checks
real responses against these schemas.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

Ids = Annotated[list[int], Meta(description="Token ids. An extension.")]
PromptLogprobs = Annotated[
    list[dict[str, Any] | None],
    Meta(description="For each token of the prompt, by id, `logprob`, `rank` and `decoded_token`. An extension."),
]
Timings = Annotated[dict[str, Any], Meta(description="In llama.cpp's format. An extension.")]


class FunctionCall(Struct):
    name: str
    arguments: Annotated[str, Meta(description="A JSON object as text, as the model wrote it.")]


class ChatToolCall(Struct, tag_field="type", tag="function"):
    id: str
    function: FunctionCall


class CustomCall(Struct):
    name: str
    input: str


class ChatCustomCall(Struct, tag_field="type", tag="custom"):
    id: str
    custom: CustomCall


class ChatAnswer(Struct):
    role: Literal["assistant"]
    content: str | None
    refusal: None = None
    reasoning: Annotated[str, Meta(description="An extension.")] | UnsetType = UNSET
    reasoning_content: Annotated[str, Meta(description="`reasoning` under its alternative name.")] | UnsetType = UNSET
    tool_calls: list[ChatToolCall | ChatCustomCall] | UnsetType = UNSET
    function_call: FunctionCall | UnsetType = UNSET


class Version(Struct):
    version: str


class Load(Struct):
    server_load: Annotated[int, Meta(description="Active runs.")]


class RenderedPrompt(Struct):
    prompt: str
    token_ids: list[int]
    count: int


class DecisionUsage(Struct):
    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class DecisionAnswer(Struct):
    type: Literal["predicate", "choice", "score", "refusal"]
    name: str | None
    probability: float | UnsetType = UNSET
    choice: str | bool | UnsetType = UNSET
    score: float | UnsetType = UNSET
    confidence: float | UnsetType = UNSET
    probabilities: list[dict[str, str | bool | int | float]] | UnsetType = UNSET


class DecisionList(Struct):
    answers: list[DecisionAnswer]
    model: str
    usage: DecisionUsage


class Embedding(Struct):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(Struct):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Struct):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    warnings: list[str] | UnsetType = UNSET


class RankedDocument(Struct):
    text: str


class Rank(Struct):
    index: int
    relevance_score: float
    document: RankedDocument | UnsetType = UNSET


class Ranking(Struct):
    id: str
    object: Literal["list"]
    model: str
    results: list[Rank]
    usage: EmbeddingUsage
    warnings: list[str] | UnsetType = UNSET


class Score(Struct):
    index: int
    object: Literal["score"]
    score: float


class Scores(Struct):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Score]
    usage: EmbeddingUsage
    warnings: list[str] | UnsetType = UNSET


class TranscriptionUsage(Struct):
    type: Literal["duration"]
    seconds: float


class Transcription(Struct):
    text: str
    usage: TranscriptionUsage


class TranscribedText(Struct):
    text: str


class OpenAIError(Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class ChatChoice(Struct):
    index: int
    message: ChatAnswer
    logprobs: dict[str, Any] | None
    finish_reason: Literal["stop", "length", "tool_calls", "function_call", "content_filter", "error"]
    stop_reason: Annotated[str | int, Meta(description="The stop string or token. An extension.")] | UnsetType = UNSET
    token_ids: Ids | UnsetType = UNSET


class OpenAIUsage(Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, Any] | UnsetType | None = UNSET
    completion_tokens_details: dict[str, Any] | UnsetType | None = UNSET


class ChatCompletion(Struct):
    """One message for each of the `n` choices."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: OpenAIUsage
    extensions: Annotated[
        dict[str, Any], Meta(description="Warnings, interrupts, and the parts of the answer in order.")
    ]
    error: OpenAIError | UnsetType = UNSET
    prompt_token_ids: Ids | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET


class ChatChunkChoice(Struct):
    index: int
    delta: dict[str, Any]
    finish_reason: str | None
    logprobs: dict[str, Any] | UnsetType | None = UNSET
    stop_reason: str | int | UnsetType = UNSET
    token_ids: Ids | UnsetType = UNSET


class ChatChunk(Struct):
    """The data of one server-sent event; the last event is the text `[DONE]`."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    prompt_token_ids: (
        Annotated[
            list[int], Meta(description="Token ids of the prompt, in the first chunk of an answer. An extension.")
        ]
        | UnsetType
    ) = UNSET
    usage: OpenAIUsage | UnsetType | None = UNSET
    error: OpenAIError | UnsetType = UNSET
    extensions: Annotated[dict[str, Any], Meta(description="Warnings.")] | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET


class TextChoice(Struct):
    index: int
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: Literal["stop", "length", "content_filter", "error"] | None
    stop_reason: str | int | UnsetType = UNSET
    token_ids: Ids | UnsetType = UNSET
    prompt_token_ids: Ids | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class TextCompletion(Struct):
    """The data of a streamed event has the same schema."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: OpenAIUsage | UnsetType | None = UNSET
    error: OpenAIError | UnsetType = UNSET
    extensions: Annotated[dict[str, Any], Meta(description="Warnings.")] | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET


class ResponsesUsage(Struct):
    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class Response(Struct):
    id: str
    object: Literal["response"]
    created_at: int | float
    model: str
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    output: Annotated[list[dict[str, Any]], Meta(description="Items: message, reasoning, function_call.")]
    usage: ResponsesUsage | UnsetType | None = UNSET
    error: dict[str, Any] | UnsetType | None = UNSET
    extensions: Annotated[dict[str, Any], Meta(description="Warnings.")] | UnsetType = UNSET


class ResponseEvent(Struct):
    """The data of one server-sent event, by its `type` (`response.output_text.delta` and the like)."""

    type: str
    sequence_number: int


class DeletedObject(Struct):
    id: str
    object: str
    deleted: bool


class ItemPage(Struct):
    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Conversation(Struct):
    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class MessagesUsage(Struct):
    input_tokens: Annotated[int, Meta(description="Without tokens read from the cache.")]
    output_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int


class Message(Struct):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: Annotated[list[dict[str, Any]], Meta(description="Blocks: text, thinking, tool_use.")]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessagesUsage
    extensions: Annotated[dict[str, Any], Meta(description="Warnings.")] | UnsetType = UNSET


class MessageEvent(Struct):
    """The data of one named server-sent event, by its `type` (`content_block_delta` and the like)."""

    type: str


class InputTokens(Struct):
    input_tokens: int


class CompactedResponse(Struct):
    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[dict[str, Any]]
    usage: dict[str, Any]


class ResponseInputTokens(Struct):
    object: Literal["response.input_tokens"]
    input_tokens: int


class Tokens(Struct):
    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | UnsetType = UNSET


class PromptText(Struct):
    prompt: str


class TokenizerInfo(Struct):
    """Also has the special tokens that the tokenizer names."""

    tokenizer_class: str
    model_max_length: int | None
    chat_template: str | None
    bos_token: str | UnsetType = UNSET
    eos_token: str | UnsetType = UNSET
    pad_token: str | UnsetType = UNSET
    unk_token: str | UnsetType = UNSET


class DetokenizedText(Struct):
    prompt: str
    content: str


class NativeCompletion(Struct):
    """A completion without optional fields such as those of `n_probs`; for several prompts, a list of completions."""

    index: int
    content: str
    tokens: list[int]
    stop: bool


class Model(Struct):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    capabilities: dict[str, bool]
    status: str
    context_length: int | UnsetType = UNSET


class ModelList(Struct):
    object: Literal["list"]
    data: list[Model]


class RunStatus(Struct, rename="camel"):
    run_id: str
    thread_id: str
    agent: str
    status: str
    paused: bool
    oldest_event: Annotated[int, Meta(description="The number of the oldest event that is still available.")]
    last_event: int


class EngineState(Struct):
    """How the engine computes; an upstream engine says none of it. slow: a sentence about each part that is slower than
    it could be."""

    engine: str | UnsetType = UNSET
    device: str | UnsetType = UNSET
    dtype: str | UnsetType = UNSET
    attention: str | UnsetType = UNSET
    fused_layers: bool | UnsetType = UNSET
    cuda_graphs: bool | UnsetType = UNSET
    fused_sampler: bool | UnsetType = UNSET
    compiler: str | UnsetType = UNSET
    slow: list[str] | UnsetType = UNSET


class Readiness(Struct):
    ready: bool
    state: str
    message: str
    progress: float | UnsetType = UNSET
    engine: EngineState | UnsetType = UNSET


class Replicas(Struct):
    state: str
    waiting: int
    replicas: list[dict[str, Any]]
