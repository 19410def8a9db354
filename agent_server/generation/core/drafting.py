"""The steps' part of speculation: sequences that run are given guesses before a step is planned, and what was guessed
is picked from the step's logits behind the tokens that came."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from torch import Tensor

from agent_server.generation.core.core import CoreState, details_of
from agent_server.generation.core.draft_model import DraftModel
from agent_server.generation.core.generation import Generation
from agent_server.generation.faults import first_line, raise_if_lost
from agent_server.generation.scheduling.sequence import Sequence, StepPlan
from agent_server.generation.scheduling.speculation import SURE_MATCH

logger = logging.getLogger("agent_server.generation")


def speculates(core: CoreState) -> bool:
    """Whether a sequence that runs is about to guess, for which all of its tokens must have come."""
    return any(_ready(core.generations[sequence.number], sequence) for sequence in core.scheduler.running)


def _ready(generation: Generation, sequence: Sequence) -> bool:
    speculation = generation.speculation
    return speculation is not None and not sequence.prefilling and not speculation.rest


def draft(core: CoreState) -> None:
    """Let each sequence that runs guess, for the step that is planned next."""
    asked: list[tuple[Generation, int]] = []
    alone = len(core.scheduler.running) == 1
    for sequence in core.scheduler.running:
        sequence.draft = ()
        generation = core.generations[sequence.number]
        speculation = generation.speculation
        if speculation is None or sequence.prefilling:
            continue
        if speculation.rest:
            speculation.rest -= 1
        elif not sequence.pending:
            room = sequence.limit - len(sequence.tokens) - 1  # one place is for the token that comes in any case
            if core.draft_model is not None:
                speculation.source.least = SURE_MATCH
            sequence.draft = speculation.propose(sequence.tokens, room, alone=alone)
            if not sequence.draft and (count := speculation.count(room)) > 0:
                asked.append((generation, count))
    if core.draft_model is not None:
        _ask(core, core.draft_model, asked)


def _ask(core: CoreState, model: DraftModel, asked: list[tuple[Generation, int]]) -> None:
    """Have the draft model guess. One that fails guesses no more: generations go on without it."""
    try:
        model.keep({sequence.number for sequence in core.scheduler.running})
        found = model.propose(asked) if asked else {}
    except Exception as error:  # a model's code may raise anything
        core.draft_model = None
        logger.error("The draft model failed and is not asked again: %s", first_line(error), exc_info=error)
        raise_if_lost(error, core.sampler.device)
        return
    for generation, _ in asked:
        generation.sequence.draft = found.get(generation.number, ())


@dataclass(slots=True)
class Trial:
    """A draft that was computed. first: where the logits behind its first token are among those behind all guesses.
    kept: how many of its tokens were picked so far."""

    sequence: Sequence
    draft: tuple[int, ...]
    first: int
    kept: int = 0

    @property
    def goes_on(self) -> bool:
        """Whether the token that came last is the draft's next."""
        sequence = self.sequence
        left = self.kept < len(self.draft) and sequence.state == "running"
        return left and sequence.tokens[-1] == self.draft[self.kept]


def trials(plan: StepPlan) -> list[Trial]:
    """The plan's drafts, in the order of their logits."""
    found: list[Trial] = []
    first = 0
    for chunk in plan.chunks:
        if chunk.draft:
            found.append(Trial(chunk.sequence, chunk.draft, first))
            first += len(chunk.draft)
    return found


def verify(core: CoreState, tried: list[Trial], logits: Tensor, now: float) -> None:
    """Pick the tokens behind those that were just delivered, from `logits` `[guesses, vocabulary]`, as long as each is
    what was guessed; one place of every draft at a time, so that each is picked with all before it known."""
    core.counters.spec_decode_num_drafts_total += len(tried)
    core.counters.spec_decode_num_draft_tokens_total += sum(len(trial.draft) for trial in tried)
    left = tried
    try:
        while left := [trial for trial in left if trial.goes_on]:
            _pick(core, left, logits, now)
    except Exception as error:  # what was delivered stands, and the rest is computed again
        logger.error("A draft could not be verified: %s", first_line(error), exc_info=error)
        raise_if_lost(error, core.sampler.device)
    for trial in tried:
        generation = core.generations.get(trial.sequence.number)
        if generation is not None and generation.speculation is not None:
            generation.speculation.learn(len(trial.draft), trial.kept)


def _pick(core: CoreState, left: list[Trial], logits: Tensor, now: float) -> None:
    generations = [core.generations[trial.sequence.number] for trial in left]
    places = [trial.first + trial.kept for trial in left]
    rows = [trial.sequence.row for trial in left]
    positions = [generation.generated for generation in generations]
    masks = None if core.masking is None else core.masking.finish(generations)
    bonuses = [generation.bonus for generation in generations]
    # One draft's logits are taken in place, which spares the copy of a vocabulary.
    chosen = logits[places[0] : places[0] + 1] if len(places) == 1 else logits[places]
    sampled = core.sampler.sample(chosen, rows, positions, masks, bonuses)
    sampled.wait()
    landed = sampled.landed
    details = details_of(landed)
    for place, (trial, generation, token) in enumerate(zip(left, generations, landed.tokens, strict=True)):
        trial.kept += 1
        core.counters.spec_decode_num_accepted_tokens_total += 1
        core.scheduler.keep(trial.sequence, token)
        core.deliver(generation, token, now, *details(place, generation.params.logprobs))
