"""Speculation within a step: running sequences get drafts before the step is planned, and the drafts are verified
against the step's logits."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from torch import Tensor

from agent_server.generation.core.core import CoreState, logprobs_of
from agent_server.generation.core.generation import Generation
from agent_server.generation.faults import first_line, raise_if_lost
from agent_server.generation.scheduling.sequence import Sequence, StepPlan
from agent_server.generation.scheduling.speculation import MIN_MATCH_WITH_DRAFT_MODEL

logger = logging.getLogger("agent_server.generation")


def speculates(core: CoreState) -> bool:
    """Return whether a running sequence is about to get a draft, which requires all of its tokens to be known."""
    return any(
        (speculation := core.generations[sequence.number].speculation) is not None
        and not sequence.prefilling
        and not speculation.pause
        for sequence in core.scheduler.running
    )


def draft(core: CoreState) -> None:
    """Propose a draft for each running sequence, for the step that is scheduled next. If the draft model fails, it is
    not used again and generations continue without it."""
    requests: list[tuple[Generation, int]] = []
    alone = len(core.scheduler.running) == 1
    for sequence in core.scheduler.running:
        sequence.draft = ()
        generation = core.generations[sequence.number]
        speculation = generation.speculation
        if speculation is None or sequence.prefilling:
            continue
        if speculation.pause:
            speculation.pause -= 1
        elif not sequence.pending:
            room = sequence.limit - len(sequence.tokens) - 1  # every step yields one token without a draft
            if core.draft_model is not None:
                speculation.source.min_match = MIN_MATCH_WITH_DRAFT_MODEL
            sequence.draft = speculation.propose(sequence.tokens, room, alone=alone)
            if not sequence.draft and (count := speculation.count(room)) > 0:
                requests.append((generation, count))
    if core.draft_model is None:
        return
    try:
        core.draft_model.keep({sequence.number for sequence in core.scheduler.running})
        drafts = core.draft_model.propose(requests) if requests else {}
    except Exception as error:  # a model's code may raise anything
        core.draft_model = None
        logger.error("The draft model failed and is not used again: %s", first_line(error), exc_info=error)
        raise_if_lost(error, core.sampler.device)
        return
    for generation, _ in requests:
        generation.sequence.draft = drafts.get(generation.number, ())


@dataclass(slots=True)
class DraftTrial:
    """A draft that was computed. first: the index of the logits after its first token among the draft logits. accepted:
    how many of its tokens were accepted so far."""

    sequence: Sequence
    draft: tuple[int, ...]
    first: int
    accepted: int = 0

    @property
    def matches(self) -> bool:
        """Whether the sequence's last token is the draft's next one."""
        sequence = self.sequence
        unverified = self.accepted < len(self.draft) and sequence.state == "running"
        return unverified and sequence.tokens[-1] == self.draft[self.accepted]


def trials_of(plan: StepPlan) -> list[DraftTrial]:
    """Return the plan's drafts, in the order of their logits."""
    trials: list[DraftTrial] = []
    first = 0
    for chunk in plan.chunks:
        if chunk.draft:
            trials.append(DraftTrial(chunk.sequence, chunk.draft, first))
            first += len(chunk.draft)
    return trials


def verify(core: CoreState, trials: list[DraftTrial], logits: Tensor, now: float) -> None:
    """Sample the tokens after those just delivered from `logits` `[draft tokens, vocabulary]`, for as long as each
    draft matches. All drafts advance by one token at a time, so that each token is sampled with all before it known."""
    core.counters.spec_decode_num_drafts_total += len(trials)
    core.counters.spec_decode_num_draft_tokens_total += sum(len(trial.draft) for trial in trials)
    matching = trials
    try:
        while matching := [trial for trial in matching if trial.matches]:
            _sample_next(core, matching, logits, now)
    except Exception as error:  # delivered tokens are valid, and the rest is recomputed
        logger.error("A draft could not be verified: %s", first_line(error), exc_info=error)
        raise_if_lost(error, core.sampler.device)
    for trial in trials:
        generation = core.generations.get(trial.sequence.number)
        if generation is not None and generation.speculation is not None:
            generation.speculation.learn(len(trial.draft), trial.accepted)


def _sample_next(core: CoreState, trials: list[DraftTrial], logits: Tensor, now: float) -> None:
    """Sample and deliver the token after the last accepted one of each draft."""
    generations = [core.generations[trial.sequence.number] for trial in trials]
    places = [trial.first + trial.accepted for trial in trials]
    rows = [trial.sequence.row for trial in trials]
    positions = [generation.generated for generation in generations]
    masks = None if core.masking is None else core.masking.finish(generations)
    bonuses = [generation.bonus for generation in generations]
    # A slice for a single draft avoids copying a row of the vocabulary's size.
    next_logits = logits[places[0] : places[0] + 1] if len(places) == 1 else logits[places]
    sampled = core.sampler.sample(next_logits, rows, positions, masks, bonuses)
    sampled.wait()
    tokens = sampled.on_host
    logprobs = logprobs_of(tokens)
    for i, (trial, generation, token) in enumerate(zip(trials, generations, tokens.tokens, strict=True)):
        trial.accepted += 1
        core.counters.spec_decode_num_accepted_tokens_total += 1
        core.scheduler.accept_draft(trial.sequence, token)
        core.deliver(generation, token, now, *logprobs(i, generation.params.logprobs))
