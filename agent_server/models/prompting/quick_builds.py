"""The choice of prompts that are built on the event loop: small ones, while building such prompts is measured as fast.

Handing a prompt to a thread costs more than building a small one. But what runs on the event loop cannot be interrupted
and blocks all other requests. Its time is bounded because a chat template comes from the operator and never from a
client, its loops run over the content of the request (or over variables that a request may set, in which case a thread
is used), and requests built here are small. Whether that is fast with this template and tokenizer is measured, first in
threads and then continuously.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from ag_ui.core import AssistantMessage, DeveloperMessage, RunAgentInput, SystemMessage, UserMessage

from events.options import GenerationOptions

T = TypeVar("T")
MOST_MESSAGES = 16
MOST_CHARACTERS = 2048
"""Of all messages together: any such text is encoded in about a millisecond, see `encoding.SHORT`."""
QUICK_SECONDS = 0.002
"""CPU time of a build that counts as quick; that of a short chat takes about 0.1 ms."""
FIRST_BUILDS = 8
"""Quick builds in threads before the first one on the event loop."""
MAX_CREDIT = 1000
"""Quick builds that count in favour of later ones."""
QUICK_FOR_SLOW = 20_000
"""Quick builds that compensate for one second of slow ones. A garbage collection during a build may take a few
milliseconds and does not mean that the template is slow."""
_PLAIN = (UserMessage, SystemMessage, AssistantMessage, DeveloperMessage)


class QuickBuilds:
    """A record of how long builds took. `may_follow`: whether the next small one may run on the event loop.

    After a slow build, the next ones run in threads until enough of them were quick again that a template which is
    occasionally slow blocks the event loop for only a small part of the time.
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        """clock: returns the CPU seconds of the calling thread."""
        self._clock = clock
        self._credit = 0.0

    @property
    def may_follow(self) -> bool:
        return self._credit >= FIRST_BUILDS

    def measure(self, build: Callable[[], T]) -> T:
        """Build the prompt of a small request and record its CPU time."""
        start = self._clock()
        try:
            return build()
        finally:
            seconds = self._clock() - start
            if seconds <= QUICK_SECONDS:
                self._credit = min(self._credit + 1, MAX_CREDIT)
            else:
                self._credit -= seconds * QUICK_FOR_SLOW


def is_small(input: RunAgentInput, options: GenerationOptions, instructions: str | None) -> bool:
    """Return whether a request is small: it has only short, plain messages, no variables for the template, and a prompt
    that is rendered once."""
    messages = input.messages
    if len(messages) > MOST_MESSAGES or input.tools or input.context:
        return False
    if options.template_kwargs or options.raw_prompt is not None:
        return False
    if options.continue_final_message or options.truncate_history:
        return False
    characters = len(options.prediction) + len(instructions or "")
    for message in messages:
        if type(message) not in _PLAIN or not isinstance(message.content, str) or getattr(message, "tool_calls", None):
            return False
        characters += len(message.content)
    return characters <= MOST_CHARACTERS
