"""The guards that a server's settings name, among them guard models: models that judge a text."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ag_ui.core import Message, RunAgentInput, SystemMessage, UserMessage

from agent_server.agents.guardrails import (
    Guard,
    GuardFileError,
    Guards,
    HookGuard,
    ModelGuardEntry,
    as_guard,
    load_guard_file,
)
from agent_server.agents.loading import LoadError, load_objects
from agent_server.engine_protocol.protocol import Delta, GenerationRequest
from agent_server.ids import new_id
from agent_server.models.prompting.output import sampling_for
from events.options import GenerationOptions, SamplingParams

if TYPE_CHECKING:
    from agent_server.agents.turn import LanguageModel


def load_guards(references: Sequence[str], models: Mapping[str, LanguageModel], first: LanguageModel) -> Guards | None:
    """Load the guards that files and `file.py:attribute` references name; None without references. Raises LoadError."""
    guards: list[Guard] = []
    for reference in references:
        if reference.endswith(".toml"):
            path = Path(reference)
            try:
                pattern_guards, entries = load_guard_file(path)
            except GuardFileError as error:
                raise LoadError(str(error)) from error
            guards += pattern_guards
            for entry in entries:
                model = models.get(entry.model) if entry.model else first
                if model is None:
                    names = ", ".join(sorted(models)) or first.name
                    raise LoadError(
                        f"The guards in {path} name the unknown model {entry.model}. The served ones are: {names}."
                    )
                guards.append(model_guard(entry, model))
        elif not reference.rpartition(":")[0]:
            raise LoadError(f"{reference} does not name a guard. Use a .toml file, or guards.py:name.")
        else:
            try:
                guards += [as_guard(each) for each in load_objects(reference).values()]
            except TypeError as error:
                raise LoadError(f"{reference}: {error}.") from error
    return Guards(guards) if guards else None


def model_guard(entry: ModelGuardEntry, model: LanguageModel) -> HookGuard:
    """A guard that asks a model. An error of that model ends the run."""

    async def forbids(text: str) -> bool:
        # A separate turn on the model's engine, which is not stored.
        system: list[Message] = [SystemMessage(id="guard-instructions", content=entry.instructions)]
        messages = [*(system if entry.instructions else ()), UserMessage(id="guard-text", content=text)]
        run_id = new_id("guard")
        input = RunAgentInput(
            thread_id="guard", run_id=run_id, messages=messages, state={}, tools=[], context=[], forwarded_props={}
        )
        sampling = SamplingParams(temperature=0.0, max_tokens=entry.max_tokens)
        options = GenerationOptions(sampling=sampling, thinking=False)
        verdict = ""
        async with model.use(lambda status: None):
            prompt = await model.prompts.build_async(input, options, None)
            request = GenerationRequest(
                request_id=new_id("guard"),
                prompt_token_ids=prompt.token_ids,
                sampling=sampling_for(prompt, sampling),
                adapter=model.adapter,
            )
            async with contextlib.aclosing(model.engine.generate(request)) as items:
                async for item in items:
                    if isinstance(item, Delta):
                        verdict += "".join(token.text for token in item.tokens)
        return entry.forbids.casefold() in verdict.casefold()

    return HookGuard(
        entry.name, forbids, on=entry.on, every=entry.every, message=entry.message, stops=entry.action == "stop"
    )
