"""Messages of a dialogue, and the ways in which a question is styled."""

import re
from collections.abc import Iterable

from training.demo_model.data_chat import Exchange
from training.demo_model.data_requests import Request
from training.demo_model.data_results import Outcome
from training.demo_model.data_typos import mistyped
from training.demo_model.data_values import Values
from training.demo_model.render import Message

WORD = re.compile(r"\w+")
QUESTION_STARTS = (
    "what",
    "how",
    "who",
    "which",
    "is ",
    "can ",
    "could",
    "do ",
    "does",
    "are ",
    "where",
    "why",
    "will",
    "when",
)
# How people write what the phrases have in small letters. A name in its own letters is other tokens than without them.
PROPER_LIST = (
    "I I'm I'd I've I'll CopilotKit CopilotChat OpenAI Anthropic Claude ChatGPT GPT GPT-4 LangChain LangGraph LiteLLM "
    "AG-UI MCP API APIs SDK URL HTTP JSON CORS SSE HTML CSS SQL CSV PDF GPU GPUs CPU CUDA NVIDIA AMD GGUF LoRA LLM AI "
    "Python JavaScript TypeScript React Vue Svelte Angular Next.js Node Node.js Docker Kubernetes Linux Windows Mac "
    "GitHub Prometheus Redis Postgres WebSocket HttpAgent English German French Spanish Italian Dutch Polish Russian "
    "Chinese Japanese Portuguese Hindi Monday Tuesday Wednesday Thursday Friday Saturday Sunday Google Qwen Llama "
    "Mistral Gemma vLLM Hugging HuggingFace PyTorch MIT TV OK"
)
PROPER = {name.lower(): name for name in PROPER_LIST.split()}
PROPER_SHARE = 0.55
# Of training's questions that are written in capital letters alone.
CAPITALS_SHARE = 0.04
OPENINGS = ("hey, ", "hi, ", "ok, ", "please ", "now ", "hi! ", "and now ", "thanks! ")
ENDINGS = ("", "", "", ".", "!", " please", ", please")
SUBJECTS = {
    "get_weather": "the weather",
    "calculate": "calculations",
    "get_time": "the time",
    "change_background": "the background",
    "generate_task_steps": "plans",
    "search": "searches",
    "send_email": "emails",
    "write_document": "documents",
    "generate_haiku": "haikus",
}


def styled(values: Values, question: str, keep: Iterable[str] = ()) -> str:
    """Vary a question's capital letter, its ending and its opening, and now and then its spelling.

    keep: values in the question whose words are not misspelt.
    """
    is_question = question.lower().startswith(QUESTION_STARTS)
    kept = frozenset(word for value in keep for word in WORD.findall(value.lower()))
    if values.chance(PROPER_SHARE):
        question = in_their_letters(question, kept)
    if values.chance(values.typo_share):
        question = mistyped(values, question, kept, values.pick((0.0, 0.3, 0.6, 1.0)))
    text = question + values.pick(("?", "?", "") if is_question else ENDINGS)
    if values.chance(0.08):
        text = values.pick(OPENINGS) + text
    return text[:1].upper() + text[1:] if values.chance(0.55) else text


def in_their_letters(question: str, keep: frozenset[str] = frozenset()) -> str:
    """Return the question with names and the word "I" in the letters that they have, but for the words to keep."""
    return " ".join(word if word in keep else PROPER.get(word, word) for word in question.split(" "))


def asked(values: Values, exchange: Exchange) -> str:
    """Return an exchange's question, styled; only the values that the answer takes from it keep their spelling."""
    said_whole = exchange.carried == (exchange.answer,)
    question = styled(values, exchange.question, () if said_whole else exchange.carried)
    return question.upper() if said_whole and not values.held_out and values.chance(CAPITALS_SHARE) else question


def thinking_at_times(values: Values) -> bool:
    """Decide whether a dialogue shows thoughts."""
    return values.chance(0.55)


def user(text: str) -> Message:
    """Return a user's message."""
    return {"role": "user", "content": text}


def assistant(text: str, thought: str = "") -> Message:
    """Return an assistant's message without calls."""
    return {"role": "assistant", "content": text, "reasoning_content": thought}


def calling(requests: list[Request], thought: str = "") -> Message:
    """Return an assistant's message that makes the requested calls."""
    calls = [
        {"type": "function", "function": {"name": request.tool, "arguments": request.arguments}} for request in requests
    ]
    return {"role": "assistant", "content": "", "reasoning_content": thought, "tool_calls": calls}


def call_thought(requests: list[Request]) -> str:
    """Return the thought that comes before the calls."""
    wishes = " ".join(request.thought for request in requests)
    return f"{wishes} I call {' and '.join(request.tool for request in requests)}."


def joined_answers(outcomes: list[Outcome]) -> str:
    """Return one answer to several results."""
    answers = [outcome.answer for outcome in outcomes]
    closed = [answer if answer[-1] in ".!?" else f"{answer}." for answer in answers[:-1]]
    return " ".join([*closed, answers[-1]])


def absence(name: str) -> Message:
    """Say that the fitting tool was not declared."""
    subject = SUBJECTS[name]
    answer = f"Sorry, I was given no tool for {subject}, so I cannot help with that."
    return assistant(answer, f"The user wants {subject}, but no tool here does that.")


def words_of(*requests: Request) -> list[str]:
    """Return the words of requests that must not be misspelt: their values, and the tool's name where it is unseen."""
    return [
        text for request in requests for text in (request.tool.replace("_", " "), str(request.arguments), request.short)
    ]
