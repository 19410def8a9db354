"""OpenAI's text Completions: prompts as text or token ids go to the model as they are, and text comes back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from ag_ui.core import RunAgentInput

from adapters.answer import Answer, PromptOf, fold, raise_failure, unknown_prompt
from adapters.body import DEFAULT_LIMITS, Inbound, Limits, flag, read_object, wrong
from adapters.client_history import NewId
from adapters.errors import RequestError
from adapters.openai_chat import ANSWER_FAILURES, DONE, error_object, read_stream_options, stop_text, wire_finish
from adapters.openai_tokens import (
    combined_usage,
    legacy_logprobs,
    progress_object,
    prompt_logprobs,
    timings_object,
    usage_so_far,
)
from adapters.request_fields import (
    BOOLEAN,
    INTEGER,
    OBJECT,
    OTHER_SERVERS,
    STRING,
    Field,
    honoured,
    read_fields,
    refused,
    sampling_fields,
)
from adapters.request_options import read_options, top_level_format
from adapters.sse import json_bytes, json_string
from events.metadata import Scored, tokens_of, visible_tokens
from events.vocabulary import PROGRESS_EVENT, Custom, Event, RunError, RunFinished, TextMessageContent, TokenUsage

DEFAULT_MAX_TOKENS = 16
MAX_PROMPTS = 128
Prompt = str | tuple[int, ...]

NOT_HERE = ("add_special_tokens", "documents", "reasoning_format", "thinking_forced_open", "parse_tool_calls")
"""Fields of other servers that only apply to messages."""
FIELDS: dict[str, Field] = {
    **sampling_fields("completions"),
    "prompt": honoured("text, token ids, or a list of either", {"type": ["string", "array"]}),
    "model": honoured("a name of `/v1/models`", STRING),
    "best_of": refused("use `n`", neutral=(1,), schema=INTEGER),
    "echo": honoured("with `logprobs` if the engine scores prompts, and then not while streaming", BOOLEAN),
    "max_tokens": honoured("16 if absent; 0 with `echo`", INTEGER),
    "n": honoured("answers to each prompt", INTEGER),
    "stream": honoured("", BOOLEAN),
    "stream_options": honoured("`include_usage`, `continuous_usage_stats`", OBJECT),
    "suffix": refused("models here do not fill in the middle", neutral=("",), schema=STRING),
    "user": honoured("kept with the run", STRING),
    "structured_outputs": honoured("json, json_object, regex, choice, grammar, structural_tag", OBJECT),
    "response_format": honoured(
        "text, json_object (a `schema` with it is enforced), json_schema, structural_tag", OBJECT
    ),
    "return_token_ids": honoured("`token_ids` and `prompt_token_ids` on each choice", BOOLEAN),
    "metadata": honoured("kept with the run", OBJECT),
    "include_stop_str_in_output": honoured("the stop string that matched ends the text", BOOLEAN),
    **{name: field for name, field in OTHER_SERVERS.items() if name not in NOT_HERE},
}


class CompletionFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Each of `prompts` has `n` answers; choice = prompt * n + answer.

    score_only: `max_tokens: 0`. One token is generated nevertheless, and not shown. continuous_usage: every chunk has
    the usage so far. as_ids: log probabilities name tokens by their ids.
    """

    prompts: tuple[Prompt, ...]
    n: int = 1
    include_usage: bool = False
    continuous_usage: bool = False
    as_ids: bool = False
    logprobs: int | None = None
    token_ids: bool = False
    echo: bool = False
    prompt_logprobs: int | None = None
    timings: bool = False
    progress: bool = False
    truncated: bool = False
    score_only: bool = False
    include_stop: bool = False


def parse(body: bytes, *, new_id: NewId, limits: Limits = DEFAULT_LIMITS) -> Inbound:
    """Read a Completions body. `options.raw_prompt` is the first prompt; `extra.prompts` has all. Raises
    RequestError."""
    values = read_object(body, limits)
    if values.get("best_of") == values.get("n"):
        values.pop("best_of", None)
    values = read_fields(values, FIELDS)
    flags = _flags(values, _prompts(values.get("prompt")))
    source = dict(values)
    if source.get("max_tokens") is None:
        source["max_tokens"] = DEFAULT_MAX_TOKENS
    if flags.score_only:
        source["max_tokens"] = 1
    options, _ = read_options(source, wire="completions")
    if (shape := top_level_format(values)) is not None:
        options = msgspec.structs.replace(options, response_format=shape)
    sampling = options.sampling
    progress = options.prompt_progress
    flags = msgspec.structs.replace(flags, prompt_logprobs=sampling.prompt_logprobs, progress=progress)
    prompt_counts = [
        count for count in (sampling.prompt_logprobs, sampling.logprobs if flags.echo else None) if count is not None
    ]
    if prompt_counts:
        sampling = msgspec.structs.replace(sampling, prompt_logprobs=max(prompt_counts))
    if prompt_counts or flags.continuous_usage:
        options = msgspec.structs.replace(options, token_details=True)
    options = msgspec.structs.replace(options, sampling=sampling, raw_prompt=flags.prompts[0], store=False)
    run = RunAgentInput(
        thread_id=new_id("thread"),
        run_id=new_id("run"),
        messages=[],
        tools=[],
        context=[],
        state={},
        forwarded_props={},
    )
    flags = msgspec.structs.replace(flags, n=options.n)
    return Inbound(input=run, options=options, stream=flag(values, "stream"), extra=flags)


def _flags(values: dict[str, Any], prompts: tuple[Prompt, ...]) -> CompletionFlags:
    echo = flag(values, "echo")
    logprobs = values.get("logprobs")
    if logprobs is not None and (isinstance(logprobs, bool) or not isinstance(logprobs, int)):
        raise wrong("logprobs", "must be a whole number")
    streaming = flag(values, "stream")
    if echo and logprobs is not None and streaming:
        raise wrong("echo", "with logprobs cannot be streamed")
    if values.get("prompt_logprobs") is not None and streaming:
        raise wrong("prompt_logprobs", "cannot be streamed")
    truncated = values.get("truncate_prompt_tokens") is not None
    if echo and truncated:
        raise wrong("truncate_prompt_tokens", "cannot be combined with echo")
    stream_options = read_stream_options(values)
    return CompletionFlags(
        prompts=prompts,
        include_usage=bool(stream_options.include_usage),
        continuous_usage=stream_options.continuous,
        as_ids=flag(values, "return_tokens_as_token_ids"),
        logprobs=logprobs,
        token_ids=flag(values, "return_token_ids"),
        echo=echo,
        timings=flag(values, "timings_per_token"),
        truncated=truncated,
        score_only=echo and values.get("max_tokens") == 0,
        include_stop=flag(values, "include_stop_str_in_output"),
    )


def _prompts(value: object) -> tuple[Prompt, ...]:
    if isinstance(value, list) and value and not all(isinstance(item, int) for item in value):
        if len(value) > MAX_PROMPTS:
            raise wrong("prompt", f"must have at most {MAX_PROMPTS} prompts")
        return tuple(_prompt(item, f"prompt.{i}") for i, item in enumerate(value))
    return (_prompt(value, "prompt"),)


def _prompt(value: object, at: str) -> Prompt:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(type(item) is int and 0 <= item < 2**31 for item in value):
        return tuple(value)
    raise wrong(at, "must be text or token ids")


class CompletionIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that every chunk repeats. created: seconds since the epoch. prompt_texts: one for each prompt, for
    `echo`."""

    id: str
    model: str
    created: int
    prompt_texts: tuple[str, ...] = ()


class _CompletionChoice:
    """The state of one choice. length: characters of its text that were sent, for `text_offset`."""

    __slots__ = ("ended", "first", "head", "index", "length", "tokens", "usage")

    def __init__(self, head: bytes, index: int) -> None:
        self.head = head
        self.index = index
        self.tokens = 0
        self.first = True
        self.ended = False
        self.length = 0
        self.usage: Sequence[TokenUsage] = ()


class CompletionStream:
    """Encodes the events of the runs, distinguished by `choice`, as server-sent `text_completion` chunks."""

    content_type = "text/event-stream"

    def __init__(
        self, identity: CompletionIdentity, flags: CompletionFlags, *, prompts: Sequence[PromptOf] = ()
    ) -> None:
        """prompts: one for each choice, or none."""
        self._identity = identity
        self._flags = flags
        self._prompts = prompts or [unknown_prompt] * (len(flags.prompts) * flags.n)
        self._details = flags.logprobs is not None or flags.token_ids or flags.continuous_usage
        self._head = b'data: {"id":%b,"object":"text_completion","created":%d,"model":%b,' % (
            json_string(identity.id),
            identity.created,
            json_string(identity.model),
        )
        self._close = b',"usage":null}\n\n' if flags.include_usage else b"}\n\n"
        self._tail = b',"logprobs":null,"finish_reason":null}]' + self._close
        heads = (self._head + b'"choices":[{"index":%d,"text":' % i for i in range(len(flags.prompts) * flags.n))
        self._choices = [_CompletionChoice(head, index) for index, head in enumerate(heads)]

    def encode(self, event: Event, *, sequence: int | None = None, choice: int = 0) -> bytes:
        state = self._choices[choice]
        match event:
            case TextMessageContent(subagent_run_id=None):
                return self._opening(choice) + self._text(event, state)
            case Custom(name=name, subagent_run_id=None) if name == PROGRESS_EVENT and self._flags.progress:
                extra = b',"prompt_progress":' + json_bytes(progress_object(event.value))
                return state.head + b'"","logprobs":null,"finish_reason":null}]' + extra + self._close_of(state)
            case RunFinished():
                return self._opening(choice) + self._finish_chunk(event, state)
            case RunError():
                return self._failure(error_object(event, "completions"), state)
        return b""

    def finish(self) -> bytes:
        if not self._flags.include_usage or not all(choice.ended for choice in self._choices):
            return DONE
        usage = _usage([choice.usage for choice in self._choices], self._flags)
        return self._head + b'"choices":[],"usage":' + json_bytes(usage) + b"}\n\n" + DONE

    def keep_alive(self) -> bytes:
        return b": keep-alive\n\n"

    def _close_of(self, choice: _CompletionChoice) -> bytes:
        """Return what follows a frame's choices: no usage, or this answer's usage so far."""
        if not self._flags.continuous_usage:
            return self._close
        return usage_so_far(self._prompts[choice.index](), choice.tokens)

    def _opening(self, choice: int) -> bytes:
        """Return a choice's first chunk, with the echoed prompt and its ids, if they were requested."""
        state = self._choices[choice]
        if not state.first:
            return b""
        state.first = False
        index = choice // self._flags.n
        prompt = self._flags.prompts[index]
        text = self._identity.prompt_texts[index] if self._flags.echo else ""
        state.length = len(text)
        ids = self._flags.token_ids and not isinstance(prompt, str) and not self._flags.truncated
        if not text and not ids:
            return b""
        extra = b',"prompt_token_ids":' + json_bytes(prompt) if ids else b""
        return (
            state.head
            + json_string(text)
            + b',"logprobs":null,"finish_reason":null'
            + extra
            + b"}]"
            + self._close_of(state)
        )

    def _text(self, event: TextMessageContent, state: _CompletionChoice) -> bytes:
        if self._flags.score_only:
            return b""
        if event.metadata is None or not self._details:
            if not event.delta:
                return b""
            state.length += len(event.delta)
            return state.head + json_string(event.delta) + self._tail
        tokens = tokens_of(event.metadata)
        state.tokens += len(tokens)
        logprobs = b"null"
        if self._flags.logprobs is not None:
            logprobs = json_bytes(
                legacy_logprobs(
                    visible_tokens(event.metadata), self._flags.logprobs, state.length, as_ids=self._flags.as_ids
                )
            )
        state.length += len(event.delta)
        ids = b',"token_ids":' + json_bytes([token[0] for token in tokens]) if self._flags.token_ids else b""
        tail = b',"logprobs":' + logprobs + b',"finish_reason":null' + ids + b"}]" + self._close_of(state)
        return state.head + json_string(event.delta) + tail

    def _finish_chunk(self, event: RunFinished, state: _CompletionChoice) -> bytes:
        answer = fold([event])
        reason = wire_finish(answer.finish, named_tool=False)
        if reason == "error":
            return self._failure(error_object(None), state)
        state.ended = True
        state.usage = answer.usage
        last: dict[str, object] = {"finish_reason": reason}
        if answer.stop is not None:
            last["stop_reason"] = answer.stop
        text = json_string(stop_text(answer.stop, self._flags.include_stop))
        extra = b""
        if warnings := list(answer.warnings):
            extra = b',"extensions":' + json_bytes({"warnings": warnings})
        if self._flags.timings:
            extra += b',"timings":' + json_bytes(timings_object(answer.metadata.timings, answer.usage))
        state.tokens += len(answer.metadata.tokens or ())
        close = b"}]" + extra + self._close_of(state)
        return state.head + text + b',"logprobs":null,' + json_bytes(last)[1:-1] + close

    def _failure(self, error: dict[str, object], state: _CompletionChoice) -> bytes:
        end = b'"","logprobs":null,"finish_reason":"error"}],"error":'
        return state.head + end + json_bytes(error) + b"}\n\n"


def _usage(runs: Sequence[Sequence[TokenUsage]], flags: CompletionFlags) -> dict[str, object]:
    usage = combined_usage(runs, flags.n)
    if flags.score_only:
        usage |= {"completion_tokens": 0, "total_tokens": usage["prompt_tokens"]}
    return usage


def completion_body(runs: Sequence[Sequence[Event]], identity: CompletionIdentity, flags: CompletionFlags) -> bytes:
    """Encode the finished runs of all choices as one `text_completion`. Raises RequestError for a failed run."""
    answers = [fold(events) for events in runs]
    for answer in answers:
        raise_failure(answer, "completions", ANSWER_FAILURES)
    choices: list[dict[str, object]] = []
    for index, answer in enumerate(answers):
        prompt = flags.prompts[index // flags.n]
        before = identity.prompt_texts[index // flags.n] if flags.echo else ""
        text = "" if flags.score_only else answer.text + stop_text(answer.stop, flags.include_stop)
        choice: dict[str, object] = {
            "index": index,
            "text": before + text,
            "logprobs": _logprobs(answer, before, flags),
            "finish_reason": "length" if flags.score_only else wire_finish(answer.finish, named_tool=False),
        }
        if answer.stop is not None:
            choice["stop_reason"] = answer.stop
        if flags.token_ids:
            choice["token_ids"] = [] if flags.score_only else [token[0] for token in answer.pieces.tokens]
            prompt_token_ids = answer.metadata.prompt_token_ids
            ids = prompt_token_ids if isinstance(prompt, str) or flags.truncated else list(prompt)
            if ids is not None:
                choice["prompt_token_ids"] = ids
        if flags.prompt_logprobs is not None:
            scores = answer.metadata.prompt_logprobs or ()
            choice["prompt_logprobs"] = prompt_logprobs(scores, flags.prompt_logprobs)
        choices.append(choice)
    body: dict[str, Any] = {
        "id": identity.id,
        "object": "text_completion",
        "created": identity.created,
        "model": identity.model,
        "choices": choices,
        "usage": _usage([answer.usage for answer in answers], flags),
    }
    if warnings := list(dict.fromkeys(warning for answer in answers for warning in answer.warnings)):
        body["extensions"] = {"warnings": warnings}
    if flags.timings and answers:
        body["timings"] = timings_object(answers[0].metadata.timings, answers[0].usage)
    broken = next((answer for answer in answers if answer.finish in ("error", "cancelled")), None)
    if broken is not None:
        body["error"] = error_object(broken.error, "completions")
    return json_bytes(body)


def _logprobs(answer: Answer, before: str, flags: CompletionFlags) -> dict[str, object] | None:
    if flags.logprobs is None:
        return None
    answer_tokens: list[Scored | None] = [] if flags.score_only else list(answer.pieces.text_tokens)
    if not flags.echo:
        return legacy_logprobs(answer_tokens, flags.logprobs, as_ids=flags.as_ids)
    scored = answer.metadata.prompt_logprobs
    if scored is None:
        raise RequestError("invalid_request", "This model's engine does not score prompts.", param="echo")
    rest = "".join(token[1] for token in scored if token is not None)
    unscored = before.removesuffix(rest) if before.endswith(rest) else ""
    ids = answer.metadata.prompt_token_ids
    first = ids[0] if ids else None
    return legacy_logprobs([*scored, *answer_tokens], flags.logprobs, unscored=(first, unscored), as_ids=flags.as_ids)
