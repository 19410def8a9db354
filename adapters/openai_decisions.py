"""OpenAI's Decisions: predicates, choices and scores about one input, each answered with probabilities.

A question is a run of one token. The options follow the input, each with a label that is a single token; the answer's
beginning is prefilled, and only the labels are allowed. The probabilities are those of the labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import product
from string import ascii_uppercase
from typing import Any, Literal

import msgspec
from ag_ui.core import AssistantMessage, Message, RunAgentInput, TextPart, UserMessage

from adapters.answer import Answer
from adapters.body import DEFAULT_LIMITS, Inbound, Lenient, Limits, convert, optional, read_object, string, wrong
from adapters.client_history import NewId, put_in_order
from adapters.openai_chat import read_part
from adapters.openai_responses.input_items import read_input
from adapters.request_fields import OBJECTS, STRING, Field, accepted, honoured, read_fields
from adapters.sse import json_bytes
from events.options import GenerationOptions, SamplingParams, ToolChoice
from events.vocabulary import TokenUsage

MAX_QUESTIONS, MAX_CHOICES, MAX_LEVELS = 400, 255, 10
ALTERNATIVES = 20
"""Log probabilities that an engine reports for a token."""
NEGLIGIBLE = math.log(1e-6)
"""Options with an unknown probability count as 0 if together they must be less likely than this."""
BEGINNING = "Answer:"
LETTERS = (*ascii_uppercase, *map("".join, product(ascii_uppercase, repeat=2)))
Labels = Sequence[tuple[str, int]]
"""The label of each option, and its token."""
WORDING: dict[str, tuple[str, str]] = {
    "predicate": ("Statement: ", "\n\nIs the statement true, judging by the text above? Answer with {names} alone."),
    "choice": ("Question: ", "\n\n{options}\n\nAnswer with the letter of the best option alone: {names}."),
    "score": (
        "Question: ",
        "\n\nLevels, the lowest first:\n{options}\n\nAnswer with the letter of the level alone: {names}.",
    ),
}
"""The text before and after the instructions of a question."""
Encode = Callable[[str], Sequence[int]]
FIELDS: dict[str, Field] = {
    "model": honoured("a name of `/v1/models`", STRING),
    "input": honoured("text, or messages and calls as Responses takes them, with `input_json` parts"),
    "questions": honoured(f"1 to {MAX_QUESTIONS} of the types `predicate`, `choice` and `score`", OBJECTS),
    "prompt_cache_key": accepted("prefixes are cached by content; the key is not used"),
    "prompt_cache_options": accepted("prefixes are cached by content; breakpoints are not used"),
    "safety_identifier": honoured("kept with the run", STRING),
}


class Choice(Lenient, frozen=True):
    value: str | bool
    description: str | None = None


class Level(Lenient, frozen=True):
    label: str
    description: str | None = None


class Question(Lenient, frozen=True):
    """choices: those of a choice. levels: those of a score, the lowest first."""

    type: Literal["predicate", "choice", "score"]
    instructions: str | list[dict[str, Any]]
    name: str | None = None
    choices: list[Choice] | None = None
    levels: list[Level] | None = None


class AskedQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A question with its prompt. input: the conversation, the question, the answer's beginning. labels: the token of
    each option."""

    question: Question
    input: RunAgentInput
    options: GenerationOptions
    labels: tuple[int, ...]

    def run(self, among: Sequence[int], new_id: NewId) -> Inbound:
        """Return a run whose single token is the likeliest label of the options `among`."""
        sampling = SamplingParams(
            temperature=0.0,
            max_tokens=1,
            logprobs=ALTERNATIVES,
            allowed_token_ids=tuple(self.labels[option] for option in among),
        )
        input = self.input.model_copy(update={"thread_id": new_id("thread"), "run_id": new_id("run")})
        return Inbound(input=input, options=msgspec.structs.replace(self.options, sampling=sampling), stream=False)


class Decisions(msgspec.Struct, frozen=True, kw_only=True):
    model: str | None
    questions: tuple[AskedQuestion, ...]


class DecisionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A decoded request; `with_prompts` adds the labels, which depend on the model's tokens."""

    messages: list[Message]
    questions: tuple[tuple[Question, list[Any]], ...]
    model: str | None = None
    user: str | None = None

    def with_prompts(self, encode: Encode, new_id: NewId) -> Decisions:
        """Return the questions with their prompts. Raises RequestError if the model has too few labels.

        encode: text to token ids, without special tokens.
        """
        most = max(len(_options(question)) for question, _ in self.questions)
        labels = tuple(_labels(encode, LETTERS, most))
        words = tuple(_labels(encode, ("Yes", "No"), 2))
        if len(labels) < most:
            raise wrong("questions", f"have up to {most} options, and this model has labels for {len(labels)}")
        return Decisions(
            model=self.model,
            questions=tuple(
                self._with_prompt(question, instructions, labels, words, new_id)
                for question, instructions in self.questions
            ),
        )

    def _with_prompt(
        self, question: Question, instructions: list[Any], labels: Labels, words: Labels, new_id: NewId
    ) -> AskedQuestion:
        option_texts = _options(question)
        if question.type == "predicate" and len(words) == 2:
            labels = words
        names = [label for label, _ in labels[: len(option_texts)]]
        lead, tail = WORDING[question.type]
        lines = "\n".join(f"{label}. {text}" for label, text in zip(names, option_texts, strict=True))
        parts = [
            TextPart(text=lead),
            *instructions,
            TextPart(text=tail.format(options=lines, names=" or ".join([", ".join(names[:-1]), names[-1]]))),
        ]
        messages = list(self.messages)
        if messages and isinstance(messages[-1], UserMessage):  # some templates reject two user messages in a row
            content: Any = messages.pop().content
            before = [TextPart(text=content)] if isinstance(content, str) else list(content)
            parts = [*before, TextPart(text="\n\n"), *parts]
        content_of_user: Any = (
            "".join(part.text for part in parts) if all(isinstance(p, TextPart) for p in parts) else parts
        )
        messages += [
            UserMessage(id=new_id("msg"), content=content_of_user),
            AssistantMessage(id=new_id("msg"), content=BEGINNING),
        ]
        run = RunAgentInput(
            thread_id="", run_id="", messages=messages, tools=[], context=[], state={}, forwarded_props={}
        )
        options = GenerationOptions(
            model=self.model,
            thinking=False,
            continue_final_message=True,
            tool_choice=ToolChoice("none"),
            token_details=True,
            store=False,
            user=self.user,
        )
        ids = tuple(number for _, number in labels[: len(option_texts)])
        return AskedQuestion(question=question, input=run, options=options, labels=ids)


def parse(
    body: bytes, *, new_id: NewId, limits: Limits = DEFAULT_LIMITS, media: Collection[str] = ()
) -> DecisionRequest:
    """Read a Decisions body. Raises RequestError."""
    values = read_fields(read_object(body, limits), FIELDS)
    raw_questions = values.get("questions")
    if not isinstance(raw_questions, list) or not 0 < len(raw_questions) <= MAX_QUESTIONS:
        raise wrong("questions", f"must be a list of 1 to {MAX_QUESTIONS} questions")
    decoded_questions: list[Question] = []
    for place, each in enumerate(raw_questions):
        at = f"questions.{place}"
        decoded: Question = convert(each, Question, at)
        if decoded.type == "choice":
            choices = decoded.choices or []
            if not 2 <= len(choices) <= MAX_CHOICES:
                raise wrong(f"{at}.choices", f"must be a list of 2 to {MAX_CHOICES} choices")
            if len({(type(choice.value), choice.value) for choice in choices}) < len(choices):
                raise wrong(f"{at}.choices", "must have unique values")
        if decoded.type == "score" and not 2 <= len(decoded.levels or ()) <= MAX_LEVELS:
            raise wrong(f"{at}.levels", f"must be a list of 2 to {MAX_LEVELS} levels")
        decoded_questions.append(decoded)
    input = values.get("input")
    if isinstance(input, list):
        input = [
            {**item, "content": [_as_text(part) for part in item["content"]]}
            if isinstance(item, dict) and isinstance(item.get("content"), list)
            else item
            for item in input
        ]
    placed = read_input(input, new_id=new_id, limits=limits, media=media)
    if not placed:
        raise wrong("input", "has no message, call or result that this server reads")
    questions: list[tuple[Question, list[Any]]] = []
    for place, question in enumerate(decoded_questions):
        parts = question.instructions
        if isinstance(parts, str):
            questions.append((question, [TextPart(text=parts)]))
            continue
        at = f"questions.{place}.instructions"
        questions.append((question, [read_part(_as_text(part), f"{at}.{i}", media) for i, part in enumerate(parts)]))
    return DecisionRequest(
        messages=put_in_order(placed, new_id, id_field="call_id"),
        questions=tuple(questions),
        model=optional(string, "model", values.get("model")),
        user=optional(string, "safety_identifier", values.get("safety_identifier")),
    )


def _as_text(part: object) -> object:
    """Return an `input_json` part as text, and any other part unchanged."""
    if not isinstance(part, dict) or part.get("type") != "input_json":
        return part
    return {"type": "input_text", "text": msgspec.json.encode(part.get("data")).decode()}


def _options(question: Question) -> list[str]:
    """Return the text of each option."""
    if question.type == "predicate":
        return ["Yes", "No"]
    if question.type == "score":
        return [_option_text(level.label, level.description) for level in question.levels or ()]
    return [
        _option_text(choice.value if isinstance(choice.value, str) else str(choice.value).lower(), choice.description)
        for choice in question.choices or ()
    ]


def _option_text(name: str, description: str | None) -> str:
    return f"{name}: {description}" if description else name


def _labels(encode: Encode, spellings: Iterable[str], most: int) -> Iterator[tuple[str, int]]:
    """Yield up to `most` spellings that are a single token after the answer's beginning, each with its token."""
    before = list(encode(BEGINNING))
    used_tokens: set[int] = set()
    for label in spellings:
        for spelled in (f" {label}", label):
            *head, last = encode(BEGINNING + spelled)
            if head == before and last not in used_tokens:
                used_tokens.add(last)
                yield label, last
                break
        if len(used_tokens) == most:
            return


def known_labels(answer: Answer, labels: Sequence[int]) -> dict[int, float]:
    """Return the log probabilities that one run reported, by option."""
    if not answer.pieces.tokens:
        return {}
    number, _, logprob, alternatives = answer.pieces.tokens[0]
    logprobs = {alternative[0]: alternative[2] for alternative in alternatives or ()} | {number: logprob}
    return {option: value for option, label in enumerate(labels) if (value := logprobs.get(label)) is not None}


def still_unknown(logprobs: Mapping[int, float], count: int) -> list[int]:
    """Return the options without a log probability that may not be negligible.

    A run always reports the likeliest of its options, so none of the others is likelier than the least likely reported
    one.
    """
    missing = [option for option in range(count) if option not in logprobs]
    if not missing or not logprobs:
        return missing
    most = min(logprobs.values()) + math.log(len(missing))
    return missing if most - _logsumexp(logprobs.values()) > NEGLIGIBLE else []


def _logsumexp(values: Iterable[float]) -> float:
    listed = list(values)
    top = max(listed)
    return top + math.log(math.fsum(math.exp(value - top) for value in listed))


def answer_object(question: Question, logprobs: Mapping[int, float] | None) -> dict[str, object]:
    """Return the answer to a question. logprobs: by option; None if a guard stopped the answer."""
    if logprobs is None:
        return {"type": "refusal", "name": question.name}
    total = _logsumexp(logprobs.values())
    count = len(_options(question))
    shares = [math.exp(logprobs[option] - total) if option in logprobs else 0.0 for option in range(count)]
    head: dict[str, object] = {"type": question.type, "name": question.name}
    if question.type == "predicate":
        return {**head, "probability": shares[0]}
    best = max(range(count), key=shares.__getitem__)
    if question.type == "choice":
        values = [choice.value for choice in question.choices or ()]
        choices = [{"value": value, "probability": share} for value, share in zip(values, shares, strict=True)]
        return {**head, "choice": values[best], "confidence": shares[best], "probabilities": choices}
    levels = [
        {"label": level.label, "value": place, "probability": shares[place]}
        for place, level in enumerate(question.levels or ())
    ]
    expected = math.fsum(place * share for place, share in enumerate(shares))
    return {**head, "score": expected, "confidence": shares[best], "probabilities": levels}


def decisions_body(answers: Sequence[Mapping[str, object]], usage: Sequence[TokenUsage], model: str) -> bytes:
    """Encode the answers. usage: of all runs."""
    input_tokens = sum(each.input_tokens or 0 for each in usage)
    cached = sum(each.cached_input_tokens or 0 for each in usage)
    output_tokens = sum(each.output_tokens or 0 for each in usage)
    usage_object = {
        "input_tokens": input_tokens,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": input_tokens + output_tokens,
    }
    return json_bytes({"answers": list(answers), "model": model, "usage": usage_object})
