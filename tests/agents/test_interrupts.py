"""Interrupts: the protocol's eight rules, each by its own test, and what happens when things break in between."""

from __future__ import annotations

import asyncio

import jsonschema
import pytest
from pydantic import BaseModel

from agent_server.agents import Agent, ToolContext, tool
from agent_server.runs.store import Store
from events.options import GenerationOptions
from events.vocabulary import (
    InterruptOutcome,
    MessagesSnapshot,
    RunError,
    RunFinished,
    StateSnapshot,
    SuccessOutcome,
    TextMessageContent,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallResult,
    ToolCallStart,
)
from tests.agents.harness import House, client_tool, names, of
from tests.agents.models import Model, call

pytestmark = pytest.mark.usefixtures("nothing_blocks")

sent: list[dict] = []


@pytest.fixture(autouse=True)
def nothing_sent():
    sent.clear()


@tool(requires_approval=True, approval_message=lambda arguments: f"Send mail to {arguments['to']}?")
def send_email(to: str, body: str) -> str:
    """Send a mail."""
    sent.append({"to": to, "body": body})
    return f"sent to {to}"


@tool
def look_up(name: str) -> str:
    """Look somebody up."""
    return f"{name}@example.org"


MAIL = Agent(name="default", tools=[send_email, look_up], state={"drafts": 1})
PROPOSED = call("send_email", to="ann@example.org", body="Hi")


def house(*scripts: str, agent: Agent = MAIL, url: str = "sqlite://") -> House:
    return House(agent, Model(list(scripts)), Store(url))


async def interrupted(house: House, **more) -> RunFinished:
    events = await house.ask("write to Ann", **more)
    last = events[-1]
    assert isinstance(last, RunFinished) and isinstance(last.outcome, InterruptOutcome), last
    house.events = events
    return last


def yes(interrupt, **more) -> dict:
    return {"interruptId": interrupt.id, "status": "resolved", "payload": {"approved": True, **more}}


def refused(events, part: str) -> None:
    """The run ended with the error the protocol asks for, said why, and did nothing."""
    assert isinstance(events[-1], RunError), events[-1]
    assert events[-1].code == "invalid_request" and part in events[-1].message
    assert events[-1].metadata["param"] == "resume"
    assert sent == [] and not of(events, ToolCallResult)


async def test_an_approval_stops_the_run_after_both_snapshots():
    async with house(PROPOSED) as it:
        last = await interrupted(it)
        (asked,) = last.outcome.interrupts
        (start,) = of(it.events, ToolCallStart)
        assert (asked.reason, asked.tool_call_id, asked.message) == (
            "tool_call",
            start.tool_call_id,
            "Send mail to ann@example.org?",
        )
        assert asked.response_schema["required"] == ["approved"]
        assert set(asked.response_schema["properties"]) == {"approved", "editedArgs"}
        assert asked.metadata["arguments"] == {"to": "ann@example.org", "body": "Hi"}
        assert names(it.events)[-3:] == ["StateSnapshot", "MessagesSnapshot", "RunFinished"]
        assert of(it.events, StateSnapshot)[-1].snapshot == {"drafts": 1}
        (snapshot,) = of(it.events, MessagesSnapshot)
        assert [message["role"] for message in snapshot.messages] == ["user", "assistant"]
        assert sent == [] and last.metadata["finishReason"] == "tool_calls"


async def test_rule_1_a_resume_uses_the_interrupted_run_s_thread():
    async with house(PROPOSED) as it:
        (asked,) = (await interrupted(it)).outcome.interrupts
        refused(await it.resume(yes(asked), threadId="another"), "does not exist in this thread")
        await it.resume(yes(asked))
    assert len(sent) == 1


async def test_rule_2_the_interrupt_id_decides_and_the_parent_run_does_not():
    async with house(PROPOSED, "Done.") as it:
        (asked,) = (await interrupted(it)).outcome.interrupts
        refused(await it.resume({**yes(asked), "interruptId": "int_nobody"}), "does not exist in this thread")
        events = await it.resume(yes(asked), parentRunId="some other run")
    assert isinstance(events[-1].outcome, SuccessOutcome) and len(sent) == 1


async def test_rule_3_one_resume_answers_every_open_interrupt():
    two = PROPOSED + call("send_email", to="bob@example.org", body="Ho")
    async with house(two, "Done.") as it:
        first, second = (await interrupted(it)).outcome.interrupts
        refused(await it.resume(yes(first)), "every open interrupt")
        refused(await it.resume(yes(first), yes(first)), "more than once")
        await it.resume(yes(second), {"interruptId": first.id, "status": "cancelled"})
    assert [each["to"] for each in sent] == ["bob@example.org"]


async def test_rule_4_an_input_without_resume_is_refused_while_interrupts_are_open():
    async with house(PROPOSED, "Done.") as it:
        (asked,) = (await interrupted(it)).outcome.interrupts
        stored = await it.store.messages("", "t")
        messages = list(it.messages)
        refused(await it.ask("never mind, tell a joke"), "open interrupt")
        assert await it.store.messages("", "t") == stored
        it.messages = messages
        await it.resume(yes(asked))
    assert len(sent) == 1


async def test_rule_5_the_same_answer_may_be_sent_again_and_the_tool_runs_once():
    async with house(PROPOSED, "Done.", "NEVER") as it:
        (asked,) = (await interrupted(it)).outcome.interrupts
        before = list(it.messages)
        first = await it.resume(yes(asked))
        after, state = it.messages, it.state
        it.messages = before
        second = await it.resume(yes(asked))
        assert it.messages == after and it.state == state
        assert of(second, ToolCallResult) == of(first, ToolCallResult)
        assert isinstance(second[-1].outcome, SuccessOutcome)
        third = await it.resume(yes(asked))
        assert not of(third, ToolCallResult) and it.messages == after
        otherwise = await it.resume({"interruptId": asked.id, "status": "cancelled"})
        assert isinstance(otherwise[-1], RunError) and "answered differently" in otherwise[-1].message
        assert len(it.model.engine.requests) == 2
    assert len(sent) == 1


async def test_rule_5_two_resumes_at_the_same_time_run_the_tool_once():
    async with house(PROPOSED, "Done.", "NEVER") as it:
        (asked,) = (await interrupted(it)).outcome.interrupts
        runs = [await it.start(resume=[yes(asked)]) for _ in range(3)]
        await asyncio.gather(*(run.wait() for run in runs))
        assert all(isinstance(run.terminal, RunFinished) for run in runs)
    assert len(sent) == 1


@pytest.mark.parametrize(
    "payload", [{"approved": "yes"}, {"ok": True}, [True], "approved", {"approved": True, "editedArgs": {"to": 3}}]
)
async def test_rule_6_a_payload_that_does_not_fit_the_schema_is_refused(payload):
    async with house(PROPOSED, "Done.") as it:
        (asked,) = (await interrupted(it)).outcome.interrupts
        refused(await it.resume({"interruptId": asked.id, "status": "resolved", "payload": payload}), "responseSchema")
        await it.resume(yes(asked))
    assert len(sent) == 1


async def test_rule_7_past_its_expiry_an_answer_is_refused_and_the_thread_goes_on_without_it():
    @tool(requires_approval=True, approval_seconds=0.2)
    def launch() -> str:
        """Launch."""
        sent.append({})
        return "launched"

    async with house(call("launch"), "Too late, then.", agent=Agent(name="default", tools=[launch])) as it:
        (asked,) = (await interrupted(it)).outcome.interrupts
        assert asked.expires_at.endswith("Z")
        await asyncio.sleep(0.25)
        refused(await it.resume(yes(asked)), "expired")
        events = await it.ask("well?")
        (result,) = of(events, ToolCallResult)
        assert result.tool_call_id == asked.tool_call_id and "No answer came in time" in result.content
        assert isinstance(events[-1].outcome, SuccessOutcome)
    assert sent == []


@pytest.mark.parametrize("entry", [{"status": "resolved"}, {"status": "resolved", "payload": None}])
async def test_rule_8_a_missing_payload_is_an_error_and_not_silence(entry):
    async with house(PROPOSED) as it:
        (asked,) = (await interrupted(it)).outcome.interrupts
        refused(await it.resume({"interruptId": asked.id, **entry}), "no payload")


async def test_an_approved_call_answers_the_original_one_and_is_not_told_again():
    async with house(PROPOSED, "Sent.") as it:
        (asked,) = (await interrupted(it)).outcome.interrupts
        events = await it.resume(yes(asked))
    (result,) = of(events, ToolCallResult)
    assert (result.tool_call_id, result.content) == (asked.tool_call_id, "sent to ann@example.org")
    assert not of(events, ToolCallStart) and not of(events, ToolCallArgs) and not of(events, ToolCallEnd)
    assert "".join(event.delta for event in of(events, TextMessageContent)) == "Sent."
    assert [message["role"] for message in it.messages] == ["user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize("approved", [True, False])
async def test_a_result_that_a_client_makes_up_for_a_waiting_call_does_not_count(approved: bool):
    """TanStack AI sends one with each answer to an approval."""
    made_up = {"id": "tool-x", "role": "tool", "content": '{"approved": true, "pendingExecution": true}'}
    async with house(PROPOSED, "Done.") as it:
        (asked,) = (await interrupted(it)).outcome.interrupts
        it.messages.append({**made_up, "toolCallId": asked.tool_call_id})
        events = await it.resume({"interruptId": asked.id, "status": "resolved", "payload": {"approved": approved}})
        (result,) = of(events, ToolCallResult)
        assert (result.content == "sent to ann@example.org") is approved
        assert [each.get("content") for each in it.model.told[1]["messages"] if each["role"] == "tool"] == [
            result.content
        ]
        stored = await it.store.messages("", "t")
        assert [each["content"] for each in stored if each["role"] == "tool"] == [result.content]
    assert len(sent) == approved


async def test_an_answer_may_come_with_the_history_under_new_ids():
    """Agent Framework's client gives each message a new id in each request, and leaves out reasoning."""
    async with house("<think>\nI write.\n</think>\n\n" + PROPOSED, "Sent.") as it:
        (asked,) = (await interrupted(it)).outcome.interrupts
        it.messages = [{**each, "id": f"x-{each['id']}"} for each in it.messages if each["role"] != "reasoning"]
        assert [each["role"] for each in it.messages] == ["user", "assistant"]
        await it.resume(yes(asked))
        stored = await it.store.messages("", "t")
    assert [each["role"] for each in stored] == ["user", "reasoning", "assistant", "tool", "assistant"]
    assert len(sent) == 1


async def test_edited_arguments_replace_the_model_s_and_the_model_is_told_them():
    async with house(PROPOSED, "Sent.") as it:
        (asked,) = (await interrupted(it)).outcome.interrupts
        await it.resume(yes(asked, editedArgs={"to": "ann@example.org", "body": "Dear Ann"}))
        await it.ask("what did you send?")
        for told in it.model.told[1:]:
            assert "Dear Ann" in told["messages"][1]["toolCalls"][0]["function"]["arguments"]
        shown = it.messages[1]["toolCalls"][0]["function"]["arguments"]
        assert "Dear Ann" not in shown
    assert sent == [{"to": "ann@example.org", "body": "Dear Ann"}]


@pytest.mark.parametrize(
    "entry",
    [
        {"status": "cancelled"},
        {"status": "resolved", "payload": {"approved": False}},
        {"status": "resolved", "payload": {"approved": False, "editedArgs": {"to": "x", "body": "y"}}},
    ],
)
async def test_a_denial_is_told_to_the_model_and_nothing_is_done(entry):
    async with house(PROPOSED, "All right, I won't.") as it:
        (asked,) = (await interrupted(it)).outcome.interrupts
        events = await it.resume({"interruptId": asked.id, **entry})
        (result,) = of(events, ToolCallResult)
        assert "did not approve" in result.content and result.metadata == {"isError": True}
        assert it.model.told[1]["messages"][-1]["content"] == result.content
    assert sent == []


async def test_other_tools_of_the_turn_run_and_a_client_s_tool_stays_pending():
    turn = PROPOSED + call("look_up", name="ann") + call("change_background", color="red")
    async with house(turn, "Done.") as it:
        tools = {"tools": [client_tool("change_background")]}
        (asked,) = (await interrupted(it, **tools)).outcome.interrupts
        assert [event.content for event in of(it.events, ToolCallResult)] == ["ann@example.org"]
        background = next(
            event.tool_call_id for event in of(it.events, ToolCallStart) if event.tool_call_name == "change_background"
        )
        events = await it.resume(yes(asked), **tools)
        assert events[-1].outcome.pending_tool_call_ids == [background]
        it.messages.insert(2, {"id": "c1", "role": "tool", "toolCallId": background, "content": "ok"})
        events = await it.ask(**tools)
        assert isinstance(events[-1].outcome, SuccessOutcome) and len(it.model.engine.requests) == 2


async def test_a_client_that_sends_only_the_resume_gets_its_history_from_the_thread():
    async with house(PROPOSED, "Sent.") as it:
        (asked,) = (await interrupted(it)).outcome.interrupts
        it.messages, it.state = [], None
        events = await it.resume(yes(asked))
        assert isinstance(events[-1].outcome, SuccessOutcome)
        assert [message["role"] for message in it.model.told[1]["messages"]] == ["user", "assistant", "tool"]
        assert [message["role"] for message in await it.store.messages("", "t")] == [
            "user",
            "assistant",
            "tool",
            "assistant",
        ]


async def test_a_predicate_decides_and_one_that_fails_counts_as_yes():
    @tool(requires_approval=lambda arguments: arguments["amount"] > 100)
    def pay(amount: int) -> str:
        """Pay."""
        sent.append({"amount": amount})
        return "paid"

    agent = Agent(name="default", tools=[pay])
    async with house(call("pay", amount=5), "Paid.", call("pay", amount=500), agent=agent) as it:
        events = await it.ask("pay 5")
        assert isinstance(events[-1].outcome, SuccessOutcome) and sent == [{"amount": 5}]
        events = await it.ask("pay 500")
        assert isinstance(events[-1].outcome, InterruptOutcome)
    assert tool(requires_approval=lambda arguments: arguments["nothing"])(look_up.call).needs_approval({})


async def test_a_tool_may_ask_for_input_more_than_once():
    calls = []

    @tool
    def schedule(topic: str, context: ToolContext) -> str:
        """Schedule a meeting."""
        calls.append(topic)
        day = context.ask(
            "Which day?", {"type": "object", "properties": {"day": {"enum": ["Mon", "Tue"]}}, "required": ["day"]}
        )
        hour = context.ask("Which hour?", {"type": "integer"})
        return f"{topic} on {day['day']} at {hour}"

    async with house(call("schedule", topic="AG-UI"), "See you.", agent=Agent(name="default", tools=[schedule])) as it:
        (first,) = (await interrupted(it)).outcome.interrupts
        assert (first.reason, first.message) == ("input_required", "Which day?")
        bad = await it.resume({"interruptId": first.id, "status": "resolved", "payload": {"day": "Sun"}})
        (again,) = bad[-1].outcome.interrupts
        assert again.id == first.id and again.response_schema == first.response_schema
        assert again.message == (
            "The resume's payload does not fit the interrupt's responseSchema at day: 'Sun' is not one of "
            "['Mon', 'Tue'].\nWhich day?"
        )
        answer = {"interruptId": first.id, "status": "resolved", "payload": {"day": "Tue"}}
        (second,) = (await it.resume(answer))[-1].outcome.interrupts
        assert second.message == "Which hour?" and second.id != first.id
        again = await it.resume(answer)
        assert again[-1].outcome.interrupts == [second]
        events = await it.resume({"interruptId": second.id, "status": "resolved", "payload": 9})
        assert of(events, ToolCallResult)[0].content == "AG-UI on Tue at 9"
    assert len(calls) == 3


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_tool_whose_question_is_cancelled_goes_on_with_none(kind):
    def plan(topic: str, context: ToolContext) -> str:
        """Plan."""
        day = context.ask("Which day?", {"enum": ["Mon", "Tue"]})
        hour = context.ask("Which hour?", {"type": "integer"})
        return f"{topic}: {day!r} at {hour!r}"

    async def plan_async(topic: str, context: ToolContext) -> str:
        """Plan."""
        return plan(topic, context)

    made = tool(plan) if kind == "sync" else tool(name="plan")(plan_async)
    async with house(call("plan", topic="AG-UI"), "Whenever.", agent=Agent(name="default", tools=[made])) as it:
        (day,) = (await interrupted(it)).outcome.interrupts
        cancel = {"interruptId": day.id, "status": "cancelled"}
        (hour,) = (await it.resume(cancel))[-1].outcome.interrupts
        assert hour.message == "Which hour?"
        repeated = await it.resume(cancel)
        assert repeated[-1].outcome.interrupts == [hour], "a cancellation that is sent twice asks nothing twice"
        events = await it.resume({"interruptId": hour.id, "status": "resolved", "payload": 9})
        (result,) = of(events, ToolCallResult)
        assert (result.content, result.metadata) == ("AG-UI: None at 9", None)
        assert isinstance(events[-1].outcome, SuccessOutcome)


async def test_a_tool_whose_question_expired_goes_on_with_none():
    @tool
    def plan(topic: str, context: ToolContext) -> str:
        """Plan."""
        return f"{topic}: {context.ask('Which day?', seconds=0.1)!r}"

    async with house(call("plan", topic="AG-UI"), "Whenever.", agent=Agent(name="default", tools=[plan])) as it:
        (day,) = (await interrupted(it)).outcome.interrupts
        await asyncio.sleep(0.2)
        refused(await it.resume({"interruptId": day.id, "status": "resolved", "payload": "Mon"}), "expired")
        (result,) = of(await it.ask("well?"), ToolCallResult)
    assert result.content == "AG-UI: None"


async def test_a_question_cannot_pass_for_an_approval(caplog):
    @tool
    def plan(context: ToolContext) -> str:
        """Plan."""
        return str(context.ask("Really?", reason="tool_call"))

    async with house(call("plan"), "Well.", agent=Agent(name="default", tools=[plan])) as it:
        (result,) = of(await it.ask("go"), ToolCallResult)
    assert result.content == "Error: plan failed."
    assert "with ValueError" in caplog.text and ", in ask\n" in caplog.text


@pytest.mark.parametrize("wrong", [{"payload": "soon"}, {"payload": None}, {}])
async def test_a_wrong_answer_to_a_question_leaves_all_that_is_open_to_be_answered(wrong):
    @tool
    def plan(topic: str, context: ToolContext) -> str:
        """Plan."""
        return f"{topic} at {context.ask('Which hour?', {'type': 'integer'})}"

    agent = Agent(name="default", tools=[plan, send_email], state={"drafts": 1})
    async with house(call("plan", topic="AG-UI") + PROPOSED, "See you.", agent=agent) as it:
        asked = {each.reason: each for each in (await interrupted(it)).outcome.interrupts}
        question, mail = asked["input_required"], asked["tool_call"]
        for _ in range(2):
            bad = await it.resume({"interruptId": question.id, "status": "resolved", **wrong}, yes(mail))
            open_ones = {each.id: each for each in bad[-1].outcome.interrupts}
            assert set(open_ones) == {question.id, mail.id} and open_ones[mail.id] == mail
            assert open_ones[question.id].message.count("Which hour?") == 1
            assert open_ones[question.id].message.startswith("The resume")
            assert names(bad)[-3:] == ["StateSnapshot", "MessagesSnapshot", "RunFinished"] and sent == []
            assert [each.status for each in await it.store.interrupts("", "t")] == ["open", "open"]
        events = await it.resume({"interruptId": question.id, "status": "resolved", "payload": 9}, yes(mail))
        assert {each.content for each in of(events, ToolCallResult)} == {"AG-UI at 9", "sent to ann@example.org"}
        assert isinstance(events[-1].outcome, SuccessOutcome)
    assert len(sent) == 1


async def test_arguments_that_a_person_emptied_are_empty():
    wiped = []

    @tool(requires_approval=True)
    def wipe(target: str = "nothing") -> str:
        """Wipe."""
        wiped.append(target)
        return target

    agent = Agent(name="default", tools=[wipe])
    async with house(call("wipe", target="db"), "Done.", agent=agent) as it:
        (asked,) = (await interrupted(it)).outcome.interrupts
        await it.resume(yes(asked, editedArgs={}))
        assert it.model.told[1]["messages"][1]["toolCalls"][0]["function"]["arguments"] == "{}"
    assert wiped == ["nothing"]


async def test_arguments_that_may_not_be_edited_are_not():
    @tool(requires_approval=True, approval_edits=False)
    def wipe(target: str) -> str:
        """Wipe."""
        sent.append({"target": target})
        return target

    async with house(call("wipe", target="db"), "Done.", agent=Agent(name="default", tools=[wipe])) as it:
        (asked,) = (await interrupted(it)).outcome.interrupts
        refused(await it.resume(yes(asked, editedArgs={"target": "all"})), "may not be edited")
        await it.resume(yes(asked))
    assert sent == [{"target": "db"}]


async def test_an_interrupt_is_for_its_own_agent_and_another_one_does_not_use_it_up():
    agents = [Agent(name="mail", tools=[send_email]), Agent(name="other", tools=[look_up])]
    async with House(agents, Model([PROPOSED, "Done."]), Store("sqlite://")) as it:
        (asked,) = (await interrupted(it)).outcome.interrupts
        elsewhere = await it.start(agent="other", resume=[yes(asked)])
        refused(await it.follow(elsewhere), "agent mail")
        assert [each.status for each in await it.store.interrupts("", "t")] == ["open"]
        events = await it.follow(await it.start(agent="mail", resume=[yes(asked)]))
        assert isinstance(events[-1].outcome, SuccessOutcome)
    assert len(sent) == 1


async def test_a_call_that_was_begun_when_the_server_died_is_not_made_again(tmp_path):
    url = f"sqlite:///{tmp_path}/threads.db"
    async with house(PROPOSED, url=url) as it:
        (asked,) = (await interrupted(it)).outcome.interrupts
        entry = yes(asked)
        answers = {asked.id: {"status": "resolved", "payload": entry["payload"]}}
        assert await it.store.claim("", "t", answers, "run_that_died")
        await it.store.begin_run("", "t", "run_that_died")
        messages = it.messages
    async with house("So be it.", url=url) as it:
        it.messages = messages
        events = await it.resume(entry)
        (result,) = of(events, ToolCallResult)
        assert "not repeated" in result.content
        assert isinstance(events[-1].outcome, SuccessOutcome)
        (record,) = await it.store.interrupts("", "t")
        assert record.status == "answered"
    assert sent == []


async def test_a_result_that_was_kept_before_the_server_died_is_told_and_the_run_goes_on(tmp_path):
    url = f"sqlite:///{tmp_path}/threads.db"
    async with house(PROPOSED, url=url) as it:
        (asked,) = (await interrupted(it)).outcome.interrupts
        entry = yes(asked)
        await it.store.begin_run("", "t", "run_that_died")
        await it.store.claim("", "t", {asked.id: {"status": "resolved", "payload": entry["payload"]}}, "run_that_died")
        await it.store.record_result("", "t", asked.id, "sent to ann@example.org", "msg_kept")
        messages = it.messages
    async with house("Sent.", url=url) as it:
        it.messages = messages
        events = await it.resume(entry)
        (result,) = of(events, ToolCallResult)
        assert (result.message_id, result.content) == ("msg_kept", "sent to ann@example.org")
        assert it.model.told[0]["messages"][-1]["content"] == "sent to ann@example.org"
    assert sent == []


async def test_where_nobody_can_be_asked_the_call_is_not_made():
    async with House(MAIL, Model([PROPOSED, "I may not."])) as it:
        events = await it.ask("write to Ann")
        (result,) = of(events, ToolCallResult)
        assert "approval" in result.content and isinstance(events[-1].outcome, SuccessOutcome)
        answered = await it.resume({"interruptId": "x", "status": "cancelled"})
        assert isinstance(answered[-1], RunError)
    assert sent == []


async def test_an_answer_to_another_tenant_s_interrupt_finds_nothing():
    async with house(PROPOSED) as it:
        (asked,) = (await interrupted(it)).outcome.interrupts
        run = await it.manager.start(it.input(resume=[yes(asked)]), GenerationOptions(), tenant="other")
        assert isinstance(await run.wait(), RunError)
    assert sent == []


class Part(BaseModel):
    name: str
    size: int = 1


@tool(requires_approval=True)
def order(parts: list[Part]) -> str:
    """Order parts."""
    sent.append({"parts": [part.name for part in parts]})
    return "ordered"


@pytest.mark.parametrize("edited", [{"parts": [{"name": "screw"}]}, {"parts": []}])
async def test_arguments_with_types_of_their_own_can_be_edited(edited):
    """The tool's schema refers to its own `$defs`, and stands inside the interrupt's."""
    agent = Agent(name="default", tools=[order])
    async with house(call("order", parts=[{"name": "nail", "size": 2}]), "Done.", agent=agent) as it:
        (asked,) = (await interrupted(it)).outcome.interrupts
        jsonschema.validate({"approved": True, "editedArgs": edited}, asked.response_schema)
        refused(await it.resume(yes(asked, editedArgs={"parts": [{"size": 1}]})), "'name' is a required property")
        await it.resume(yes(asked, editedArgs=edited))
    assert sent == [{"parts": [part["name"] for part in edited["parts"]]}]


async def test_answers_are_checked_without_backtracking():
    @tool
    def ask_code(context: ToolContext) -> str:
        """Ask for a code."""
        return str(context.ask("Which code?", {"type": "string", "pattern": "^(a+)+$"}))

    agent = Agent(name="default", tools=[ask_code])
    async with house(call("ask_code"), "Thanks.", agent=agent) as it:
        (asked,) = (await interrupted(it)).outcome.interrupts
        events = await it.resume({"interruptId": asked.id, "status": "resolved", "payload": "a" * 60 + "!"})
        (again,) = events[-1].outcome.interrupts
        assert "does not match '^(a+)+$'" in again.message
        (result,) = of(
            await it.resume({"interruptId": asked.id, "status": "resolved", "payload": "aaa"}), ToolCallResult
        )
        assert result.content == "aaa"
