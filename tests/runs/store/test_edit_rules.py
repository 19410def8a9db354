"""A thread's history: what is stored stays, what is new is added, and what an edit takes away can be had back."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from adapters.errors import RequestError
from agent_server.runs.store import Store, edit_rules
from events.vocabulary import RunFinished
from tests.runs.store.test_store import assistant, ended, user

U1, A1, U2, A2 = user("u1", "a"), assistant("a1", "b"), user("u2", "c"), assistant("a2", "d")
TALK = [U1, A1, U2, A2]


async def run(store: Store, messages: list[dict], answer: dict | None = None, *, id: str = "r", **more) -> tuple:
    """A run that begins from `messages` and adds `answer`; what the thread would have told the model."""
    before = await store.begin_run("", "t", id, messages=messages, recall=True, **more)
    held = list(before.messages) or messages
    said = [*held, answer] if answer else held
    await store.end_run(ended(RunFinished(thread_id="t", run_id=id), run=id, messages=said))
    return before.messages


async def talked(store: Store) -> None:
    await run(store, [U1], A1)
    await run(store, [U1, A1, U2], A2)
    assert await store.messages("", "t") == TALK


async def removed(store: Store) -> list[tuple[str, list[dict]]]:
    return [(each.kind, each.messages) for each in await store.removals("", "t")]


async def test_a_client_that_sends_its_last_message_alone_loses_nothing_and_the_model_is_told_the_rest(store: Store):
    assert await run(store, [U1], A1) == ()
    assert await run(store, [U2], A2) == (U1, A1, U2)
    assert await store.messages("", "t") == TALK


async def test_instructions_that_come_with_every_message_do_not_count_as_history(store: Store):
    rules = {"id": "s", "role": "system", "content": "Be kind."}
    await run(store, [rules, U1], A1)
    assert await run(store, [rules, U2], A2) == (rules, U1, A1, U2)
    assert await store.messages("", "t") == [rules, *TALK]


async def test_two_tabs_lose_nothing_of_each_other(store: Store):
    await run(store, [U1], A1)
    one, two = user("x1", "from one tab"), user("x2", "from the other")
    assert await run(store, [U1, A1, one], assistant("y1", "1")) == ()
    assert await run(store, [U1, A1, two], assistant("y2", "2")) == ()
    assert await store.messages("", "t") == [U1, A1, one, assistant("y1", "1"), two, assistant("y2", "2")]
    assert await removed(store) == []


async def test_a_client_that_shows_a_part_of_the_history_is_taken_at_its_word_and_the_rest_stays(store: Store):
    await talked(store)
    assert await run(store, [U2, A2, user("u3", "e")], assistant("a3", "f")) == ()
    assert [each["id"] for each in await store.messages("", "t")] == ["u1", "a1", "u2", "a2", "u3", "a3"]


@pytest.mark.parametrize("shown", [[U1], [U1, A1, U2], [U2]])
async def test_a_message_that_is_asked_again_gets_its_new_answer_in_the_place_of_what_followed(store: Store, shown):
    await talked(store)
    again = assistant("a9", "other")
    last = TALK.index(shown[-1])
    assert await run(store, shown, again) == (() if len(shown) > 1 else tuple(TALK[: last + 1]))
    assert await store.messages("", "t") == [*TALK[: last + 1], again]
    assert await removed(store) == [("regenerated", TALK[last + 1 :])]
    (removal,) = await store.removals("", "t")
    await store.restore("", "t", removal.id)
    assert await store.messages("", "t") == TALK
    assert await removed(store) == [("regenerated", [again])]


async def test_an_edited_message_takes_its_answer_with_it_and_both_can_be_had_back(store: Store):
    await talked(store)
    edited = user("u2", "now edited")
    await run(store, [U1, A1, edited], assistant("a9", "other"))
    assert await store.messages("", "t") == [U1, A1, edited, assistant("a9", "other")]
    assert await removed(store) == [("edited", [U2, A2])]
    await store.restore("", "t", (await store.removals("", "t"))[0].id)
    assert await store.messages("", "t") == TALK


async def test_words_that_are_changed_while_their_answers_stay_are_kept_aside(store: Store):
    await talked(store)
    changed = user("u1", "now edited")
    await run(store, [changed, A1, U2, A2, user("u3", "e")])
    assert await store.messages("", "t") == [changed, A1, U2, A2, user("u3", "e")]
    assert await removed(store) == [("changed", [U1])]
    await store.restore("", "t", (await store.removals("", "t"))[0].id)
    assert await store.messages("", "t") == [U1, A1, U2, A2, user("u3", "e")]
    assert await removed(store) == [("changed", [changed])]


async def test_what_clients_drop_on_the_way_is_no_edit(store: Store):
    parts = [{"type": "text", "text": "12"}, {"type": "image", "source": {"type": "data", "value": "x"}}]
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    made = {"id": "a1", "role": "assistant", "content": "", "toolCalls": [call], "metadata": {"k": 1}}
    result = {"id": "t1", "role": "tool", "toolCallId": "c", "content": parts}
    await run(store, [U1, made, result])
    back = {"id": "a1", "role": "assistant", "toolCalls": [call]}
    flat = {**result, "content": "12\n[image content that this client cannot show]"}
    await run(store, [U1, back, flat, U2], A2)
    assert await store.messages("", "t") == [U1, made, result, U2, A2]
    assert await removed(store) == []


async def test_a_history_that_is_told_again_under_new_ids_is_the_same_history(store: Store):
    await run(store, [U1], A1)
    await store.give_feedback("", "t", "a1", 1)
    retold = [user("x1", "a"), assistant("x2", "b"), user("x3", "c"), user("x4", "d")]
    assert await run(store, retold) == ()
    assert await store.messages("", "t") == retold
    assert [each.message_id for each in await store.feedback("", "t")] == ["x2"]
    assert await removed(store) == []


def thought(id: str, text: str) -> dict:
    return {"id": id, "role": "reasoning", "content": text}


def calling(id: str, *calls: str, text: str = "") -> dict:
    made = [{"id": call, "type": "function", "function": {"name": "f", "arguments": "{}"}} for call in calls]
    return {"id": id, "role": "assistant", "toolCalls": made, **({"content": text} if text else {})}


def result(id: str, call: str, text: str) -> dict:
    return {"id": id, "role": "tool", "toolCallId": call, "content": text}


ANSWER = [
    thought("r1", "I look."), calling("a1", "c1", text="One moment. "), result("t1", "c1", '{"a":1}'),
    thought("r2", "I have it."), assistant("m2", "It is 1."),
]  # fmt: skip
AS_ONE = [
    thought("m2-reasoning-x", "I look."), thought("m2-reasoning-y", "I have it."),
    calling("m2", "c1", text="One moment. It is 1."), result("tool-c1", "c1", '{"a": 1}'),
]  # fmt: skip
"""The same as TanStack AI sends it."""


async def test_an_answer_that_a_client_sends_as_one_message_is_the_stored_answer(store: Store):
    await run(store, [U1, *ANSWER])
    assert await run(store, [U1, *AS_ONE, U2], A2) == (U1, *ANSWER, U2)
    assert await store.messages("", "t") == [U1, *ANSWER, U2, A2]
    assert await run(store, [U1, *AS_ONE, U2], assistant("a9", "again")) == (U1, *ANSWER, U2)
    assert await store.messages("", "t") == [U1, *ANSWER, U2, assistant("a9", "again")]


async def test_an_answer_that_was_stopped_is_kept_as_far_as_it_was_shown(store: Store):
    await run(store, [U1, *ANSWER])
    stopped = [AS_ONE[0], thought("m2-reasoning-y", "I have"), calling("m2", "c1", text="One moment. It "), AS_ONE[3]]
    as_shown = [*ANSWER[:-1], assistant("m2", "It ")]
    assert await run(store, [U1, *stopped, U2], A2) == (U1, *as_shown, U2)
    assert await store.messages("", "t") == [U1, *as_shown, U2, A2]
    assert await removed(store) == [("changed", [ANSWER[-1]])]


async def test_results_of_such_a_client_follow_the_stored_calls(store: Store):
    asked = [thought("r1", "I ask both."), calling("a1", "c1", "c2"), result("t1", "c1", "1")]
    await run(store, [U1, *asked])
    sent = [thought("a1-reasoning", "I ask both."), calling("a1", "c1", "c2")]
    sent += [result("tool-c1", "c1", "1"), result("tool-c2", "c2", "2")]
    assert await run(store, [U1, *sent], A2) == (U1, *asked, sent[-1])
    assert await store.messages("", "t") == [U1, *asked, sent[-1], A2]


@pytest.mark.parametrize(
    "change",
    [
        lambda sent: [*sent[:2], calling("m2", "c1", text="It is 2."), sent[3]],
        lambda sent: [*sent[:3], result("tool-c1", "c1", "2")],
        lambda sent: [thought("x", "Another thought."), *sent[1:]],
    ],
)
async def test_an_answer_that_a_client_changed_is_taken_as_it_is(store: Store, change):
    await run(store, [U1, *ANSWER])
    changed = change(AS_ONE)
    assert await run(store, [U1, *changed, U2]) == ()
    assert [each for each in await store.messages("", "t") if each in changed] == changed


async def test_a_history_under_new_ids_may_lack_reasoning_and_write_json_differently(store: Store):
    """As Agent Framework's client sends it."""
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    made = {"id": "a1", "role": "assistant", "toolCalls": [call]}
    await run(store, [U1, thought("r1", "I look."), made, result("t1", "c1", '{"b":[1,2]}'), A2])
    retold = {
        "id": "x2",
        "role": "assistant",
        "content": "",
        "toolCalls": [{**call, "function": {"name": "f", "arguments": '{"a": 1}'}}],
    }
    sent = [user("x1", "a"), retold, result("x3", "c1", '{"b": [1, 2]}'), assistant("x4", "d"), user("x5", "e")]
    assert await run(store, sent) == ()
    assert [each["id"] for each in await store.messages("", "t")] == ["x1", "r1", "x2", "x3", "x4", "x5"]
    assert await removed(store) == []


def as_one(answer: list[dict]) -> list[dict]:
    """What TanStack AI makes of the messages of an answer (`uiMessagesToWire`). Texts alone stay messages of their own:
    tests/conformance/test_tanstack.py."""
    made = [each for each in answer if each["role"] == "assistant"]
    if made == answer and not any(each.get("toolCalls") for each in made):
        return answer
    text, calls = (
        "".join(each.get("content") or "" for each in made),
        [c for each in made for c in each.get("toolCalls", ())],
    )
    one = {"id": made[-1]["id"], "role": "assistant", **({"content": text} if text else {})}
    return [
        *(
            thought(f"{one['id']}-reasoning-{at}", each["content"])
            for at, each in enumerate(answer)
            if each["role"] == "reasoning"
        ),
        one | ({"toolCalls": calls} if calls else {}),
        *({**each, "id": f"tool-{each['toolCallId']}"} for each in answer if each["role"] == "tool"),
    ]


STEPS = st.lists(st.tuples(st.booleans(), st.sampled_from(["", "a", "b "]), st.integers(0, 2)), min_size=1, max_size=4)


@given(st.lists(STEPS, min_size=1, max_size=3), st.booleans())
@example([[(False, "a", 0), (False, "b ", 0)]], False)
def test_any_history_is_found_in_what_such_a_client_sends(turns, asks: bool):
    stored: list[dict] = []
    sent: list[dict] = []
    for turn, steps in enumerate(turns):
        answer: list[dict] = []
        for at, (thinks, text, count) in enumerate(steps):
            name = f"{turn}.{at}"
            answer += [thought(f"r{name}", f"thought {at}")] if thinks else []
            calls = [f"c{name}.{number}" for number in range(count)]
            answer.append(calling(f"a{name}", *calls, text=text) if calls else assistant(f"a{name}", text))
            answer += [result(f"t{name}.{call}", call, "done") for call in calls]
        question = user(f"u{turn}", "same question")
        stored += [question, *answer]
        sent += [question, *as_one(answer)]
    following = [user("new", "next")] if asks else []
    for shown in (sent, stored):
        found = edit_rules.in_stored_form(stored, [*shown, *following])
        assert [each["id"] for each in found] == [each["id"] for each in [*stored, *following]]


async def test_a_message_with_the_words_of_the_first_one_is_a_new_message(store: Store):
    await run(store, [user("u1", "yes")], A1)
    assert len(await run(store, [user("u2", "yes")], A2)) == 3
    assert [each["id"] for each in await store.messages("", "t")] == ["u1", "a1", "u2", "a2"]


async def test_the_order_of_a_client_is_taken_over_for_what_it_shows(store: Store):
    await talked(store)
    await run(store, [U2, A2, U1, A1, user("u3", "e")])
    assert await store.messages("", "t") == [U2, A2, U1, A1, user("u3", "e")]


async def test_a_waiting_run_s_message_is_kept_and_stands_behind_the_answer_before_it(store: Store):
    await run(store, [U1], A1)
    one, two = user("x1", "now"), user("x2", "later")
    await store.begin_run("", "t", "r1", messages=[U1, A1, one])
    await store.accept_run("", "t", "r2", messages=[U1, A1, two])
    assert [each.status for each in await store.runs("", "t")] == ["finished", "running", "waiting"]
    assert await store.messages("", "t") == [U1, A1, one, two]
    said = [U1, A1, one, assistant("y1", "1")]
    await store.end_run(ended(RunFinished(thread_id="t", run_id="r1"), run="r1", messages=said))
    assert await run(store, [two], assistant("y2", "2"), id="r2", edits=False) == (*said, two)
    assert await store.messages("", "t") == [*said, two, assistant("y2", "2")]
    assert {each.status for each in await store.runs("", "t")} == {"finished"}
    assert await removed(store) == []


async def test_a_deleted_message_goes_with_its_results_and_a_tab_that_shows_it_does_not_bring_it_back(store: Store):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    made = {"id": "a1", "role": "assistant", "toolCalls": [call]}
    result = {"id": "t1", "role": "tool", "toolCallId": "c", "content": "r"}
    await run(store, [U1, made, result, A2])
    await store.delete_message("", "t", "a1")
    assert await store.messages("", "t") == [U1, A2]
    await run(store, [U1, made, result, A2, U2])
    assert await store.messages("", "t") == [U1, A2, U2]
    (removal,) = await store.removals("", "t")
    assert (removal.kind, removal.after_id, removal.messages) == ("deleted", "u1", [made, result])
    await store.restore("", "t", removal.id)
    assert await store.messages("", "t") == [U1, made, result, A2, U2]
    for call in (store.restore("", "t", removal.id), store.delete_message("", "t", "nothing")):
        with pytest.raises(RequestError) as unknown:
            await call
        assert unknown.value.kind == "not_found"


async def test_a_deleted_thread_leaves_nothing_behind(store: Store):
    await talked(store)
    await run(store, [U1])
    await store.delete_thread("", "t")
    assert await store.removals("", "t") == [] and await store.messages("", "t") == []


ids = st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=8)


@given(stored=ids, shown=ids)
def test_nothing_is_lost_or_doubled_and_a_client_s_order_holds(stored: list[str], shown: list[str]):
    for order in (
        edit_rules.order_before_run(stored, shown),
        edit_rules.order_after_run(stored, shown, lambda id: id in "aceg"),
    ):
        assert sorted(order) == sorted({*stored, *shown})
        assert [id for id in order if id in shown] == shown
        assert [id for id in order if id not in shown] == [id for id in stored if id not in shown]


CALLED = {"id": "c1", "role": "assistant", "toolCalls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}  # fmt: skip
RESULT = {"id": "t1", "role": "tool", "toolCallId": "c", "content": "done"}
SHOWN = {"id": "v1", "role": "activity", "activityType": "mcp-apps", "content": {"result": {}}}


async def test_activities_stay_with_the_thread_though_no_client_sends_them_back(store: Store):
    await run(store, [U1, CALLED, RESULT, SHOWN], A1)
    await run(store, [U1, CALLED, RESULT, A1, U2], A2)
    assert await store.messages("", "t") == [U1, CALLED, RESULT, SHOWN, A1, U2, A2]
    renamed = [{**each, "id": f"x{each['id']}"} for each in (U1, CALLED, RESULT, A1, U2, A2)]
    assert await run(store, [*renamed, user("u3", "e")]) == ()
    assert [each["id"] for each in await store.messages("", "t")] == [
        "xu1", "xc1", "xt1", "v1", "xa1", "xu2", "xa2", "u3",
    ]  # fmt: skip
    assert await removed(store) == []


async def test_a_message_that_is_deleted_takes_what_its_calls_show_with_it(store: Store):
    await run(store, [U1, CALLED, RESULT, SHOWN], A1)
    await store.delete_message("", "t", "c1")
    assert await store.messages("", "t") == [U1, A1]
    assert await removed(store) == [("deleted", [CALLED, RESULT, SHOWN])]


async def test_a_branch_takes_what_a_calls_message_caused_and_nothing_after_it(store: Store):
    call = {
        "id": "a1",
        "role": "assistant",
        "toolCalls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }
    result = {"id": "r1", "role": "tool", "toolCallId": "c1", "content": "1"}
    shown = {"id": "v1", "role": "activity", "activityType": "card", "content": {}}
    await run(store, [U1, call, result, shown, U2], A2)
    branch = await store.branch_thread("", "t", "a1")
    assert await store.messages("", branch.id) == [U1, call, result, shown]
    await store.delete_thread("", "t")
    assert await store.messages("", branch.id) == [U1, call, result, shown]
    with pytest.raises(RequestError, match="no such thread"):
        await store.branch_thread("another", branch.id, "u1")
