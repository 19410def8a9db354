"""Which prompts are built on the event loop itself: small ones, while building such prompts is known to be quick.

Handing a prompt to a thread costs more than building a small one. But what runs on the event loop cannot be stopped,
and everybody waits for it. So the bound on its time is this: a chat template is the operator's and never a client's,
its loops go over what the request holds (or over the variables that a request may set, and then a thread is taken), and
the requests built here hold little. Whether that is quick with this template and tokenizer is measured, in threads
first, and ever after.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
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
"""Quick builds in threads before any is made on the event loop."""
MOST_QUICK = 1000
"""Quick builds that count in favour of those that follow."""
QUICK_FOR_SLOW = 20_000
"""Quick builds that make up for a second of slow ones. A collection of garbage in the midst of a build may take some
milliseconds, and says nothing about the template."""
_PLAIN = (UserMessage, SystemMessage, AssistantMessage, DeveloperMessage)


class QuickBuilds:
    """Keeps count of how long builds took. `may_follow`: whether the next small one may be made on the event loop.

    Slow builds send those that follow to threads until so many were quick again, wherever they were made, that a
    template that is slow now and then holds up others for a small part of the time.
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        """clock: the CPU seconds of the thread that asks."""
        self._clock = clock
        self._credit = 0.0

    @property
    def may_follow(self) -> bool:
        return self._credit >= FIRST_BUILDS

    def measured(self, build: Callable[[], T]) -> T:
        """Build the prompt of a small request, and note the CPU time that it took."""
        begun = self._clock()
        try:
            return build()
        finally:
            seconds = self._clock() - begun
            if seconds <= QUICK_SECONDS:
                self._credit = min(self._credit + 1, MOST_QUICK)
            else:
                self._credit -= seconds * QUICK_FOR_SLOW


def small_texts(input: RunAgentInput, options: GenerationOptions, instructions: str | None) -> Sequence[str] | None:
    """The texts of a small request: nothing but plain messages, with no variables for the template and no prompt that
    is built more than once. None for any other request."""
    messages = input.messages
    if len(messages) > MOST_MESSAGES or input.tools or input.context:
        return None
    if options.template_kwargs or options.raw_prompt is not None:
        return None
    if options.continue_final_message or options.truncate_history:
        return None
    texts = [] if instructions is None else [instructions]
    for message in messages:
        if type(message) not in _PLAIN or not isinstance(message.content, str) or getattr(message, "tool_calls", None):
            return None
        texts.append(message.content)
    return texts if sum(map(len, texts)) <= MOST_CHARACTERS else None
