"""Reasoning across turns: what clients see, what comes back, what opens."""

from __future__ import annotations

import base64
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_server.agents import Agent, Sealer
from agent_server.runs.store import Store
from events.vocabulary import (
    ReasoningEncryptedValue,
    ReasoningEnd,
    ReasoningMessageContent,
    ReasoningMessageEnd,
    ReasoningMessageStart,
)
from tests.agents.harness import House, names, of
from tests.agents.models import Model

pytestmark = pytest.mark.usefixtures("nothing_blocks")

THOUGHT = "<think>\nThe secret is swordfish.\n</think>\n\nHello."


async def test_hidden_reasoning_travels_sealed_and_is_used_in_the_next_prompt():
    sealer = Sealer([os.urandom(32)])
    model = Model([THOUGHT, "Again."])
    async with House(Agent(name="default", reasoning="hidden"), model, Store("sqlite://"), sealer=sealer) as house:
        events = await house.ask("hi")
        assert names(events)[1:6] == [
            "ReasoningStart",
            "ReasoningMessageStart",
            "ReasoningMessageEnd",
            "ReasoningEncryptedValue",
            "ReasoningEnd",
        ]
        assert "swordfish" not in repr(events)
        (reasoning,) = [message for message in house.messages if message["role"] == "reasoning"]
        assert reasoning["content"] == "" and reasoning["encryptedValue"]
        assert "swordfish" not in repr(await house.store.messages("", "t"))
        await house.ask("and now?")
        (told,) = [message for message in model.told[1]["messages"] if message["role"] == "reasoning"]
        assert "The secret is swordfish." in told["content"]


async def test_a_summary_is_shown_instead_and_made_by_the_agent():
    async def summarise(text: str) -> str:
        assert "The secret is swordfish." in text
        return "It thought about a number."

    agent = Agent(name="default", reasoning="summary", summarise=summarise)
    async with House(agent, Model([THOUGHT])) as house:
        events = await house.ask("hi")
    assert [event.delta for event in of(events, ReasoningMessageContent)] == ["It thought about a number."]
    assert len(of(events, ReasoningEncryptedValue)) == 1


async def test_without_a_function_the_model_makes_the_summary_and_it_is_counted():
    model = Model(
        lambda told: (
            "A number." if told["instructions"] is None and told["messages"][0]["role"] == "system" else THOUGHT
        )
    )
    async with House(Agent(name="default", reasoning="summary"), model) as house:
        events = await house.ask("hi")
    assert "".join(event.delta for event in of(events, ReasoningMessageContent)) == "A number."
    assert (
        model.told[1]["thinking"] is False
        and model.told[1]["messages"][1]["content"].strip() == "The secret is swordfish."
    )
    assert events[-1].usage[0].input_tokens == sum(len(each.prompt_token_ids) for each in model.engine.requests)


@pytest.mark.parametrize("spoil", ["other thread", "changed", "nonsense"])
async def test_what_does_not_open_is_left_out_with_a_warning(spoil):
    sealer = Sealer()
    async with House(Agent(name="default", reasoning="hidden"), Model([THOUGHT, "ok"]), sealer=sealer) as house:
        await house.ask("hi")
        reasoning = next(message for message in house.messages if message["role"] == "reasoning")
        value = reasoning["encryptedValue"]
        reasoning["encryptedValue"] = {
            "changed": value[:-6] + "AAAAAA",
            "nonsense": "\u2603 not base64",
            "other thread": value,
        }[spoil]
        events = await house.ask("and?", threadId="t2" if spoil == "other thread" else "t")
        assert "could not be opened" in events[-1].metadata["warnings"][0]
        assert "swordfish" not in repr(house.model.told[1])


async def test_full_reasoning_passes_as_it_is():
    async with House([], Model([THOUGHT, "ok"])) as house:
        events = await house.ask("hi")
        assert not of(events, ReasoningEncryptedValue)
        for kind in (ReasoningMessageStart, ReasoningMessageEnd, ReasoningEnd):
            assert len(of(events, kind)) == 1
        await house.ask("more")
        assert "The secret is swordfish." in repr(house.model.told[1])


BOUND = {"tenant": "a", "thread_id": "t", "message_id": "m"}


@given(st.text())
def test_sealing_is_bound_to_tenant_thread_and_message(text):
    sealer = Sealer()
    value = sealer.seal(text, **BOUND)
    assert sealer.open(value, **BOUND) == text
    for key in BOUND:
        assert sealer.open(value, **{**BOUND, key: "x"}) is None
    assert sealer.open(value, tenant="at", thread_id="", message_id="m") is None


@given(st.binary(max_size=80))
def test_nothing_that_was_not_sealed_opens_or_raises(data):
    assert Sealer().open(base64.urlsafe_b64encode(data).decode(), **BOUND) is None
    assert Sealer().open(data.decode("latin-1"), **BOUND) is None


def test_keys_rotate():
    old, new = os.urandom(32), os.urandom(32)
    value = Sealer([old]).seal("x", **BOUND)
    both = Sealer([new, old])
    assert both.open(value, **BOUND) == "x"
    fresh = both.seal("y", **BOUND)
    assert Sealer([new]).open(fresh, **BOUND) == "y" and Sealer([new]).open(value, **BOUND) is None
    assert Sealer.from_settings([base64.b64encode(new).decode()]).open(fresh, **BOUND) == "y"
    for bad in ("short", base64.b64encode(b"x" * 16).decode(), "!!!"):
        with pytest.raises(ValueError, match="encryption key"):
            Sealer.from_settings([bad])
