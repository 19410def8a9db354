"""Pictures and sounds keep their place while messages are arranged, and no text can pass for one."""

import pytest
from ag_ui.core import (
    AssistantMessage,
    AudioPart,
    DataSource,
    FunctionCall,
    ImagePart,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
    VideoPart,
)
from hypothesis import given
from hypothesis import strategies as st

from events.formats.output_format import OutputFormat
from events.template.media_marks import CLOSE, OPEN, Marks
from events.template.messages import build_conversation
from events.template.probe import Capabilities

IMAGE = {"type": "image"}


def image(name):
    return ImagePart(source=DataSource(value=name, mime_type="image/png"))


def sound(name):
    return AudioPart(source=DataSource(value=name, mime_type="audio/wav"))


def text(words):
    return TextPart(text=words)


def user(*parts, number=1):
    return UserMessage(id=f"u{number}", content=list(parts))


def built(*messages, takes=("image",), **capabilities):
    return build_conversation(
        list(messages), capabilities=Capabilities(**capabilities), output_format=OutputFormat(), takes=takes
    )


def names(found):
    return [part.source.value for part in found.media]


def test_parts_stay_in_their_order():
    found = built(user(text("a"), image("1"), text("b"), text("c"), image("2"), image("3")))
    assert found.messages == [
        {
            "role": "user",
            "content": [{"type": "text", "text": "a"}, IMAGE, {"type": "text", "text": "b\nc"}, IMAGE, IMAGE],
        }
    ]
    assert names(found) == ["1", "2", "3"]


def test_without_pictures_nothing_is_another_than_before():
    said = [user(text("a"), text("b")), AssistantMessage(id="a1", content="c")]
    assert built(*said) == built(*said, takes=())


def test_a_model_that_sees_nothing_is_told_what_was_left_out():
    found = built(user(text("a"), image("1")), takes=())
    assert found.messages == [{"role": "user", "content": "a\n[An image is here, which you cannot see.]"}]
    assert found.warnings == ("a part of type image was left out: this model reads text only",)
    assert found.media == ()


def test_other_media_are_left_out_with_a_warning():
    video = VideoPart(source=DataSource(value="v", mime_type="video/mp4"))
    found = built(user(image("1"), video))
    assert found.warnings == ("a part of type video was left out: this model reads text and images only",)
    assert names(found) == ["1"]


def test_sounds_have_the_part_that_templates_look_for():
    found = built(user(text("a"), sound("1"), image("2"), sound("3")), takes=("audio", "image"))
    audio = {"type": "audio", "audio": ""}
    assert found.messages == [{"role": "user", "content": [{"type": "text", "text": "a"}, audio, IMAGE, audio]}]
    assert names(found) == ["1", "2", "3"]


def test_a_model_that_hears_and_sees_nothing_is_told_what_was_left_out():
    found = built(user(sound("1"), image("2")), takes=("audio",))
    assert names(found) == ["1"]
    assert found.warnings == ("a part of type image was left out: this model reads text and sounds only",)


def test_messages_that_are_merged_keep_their_pictures():
    found = built(
        SystemMessage(id="s", content="be brief"),
        user(text("a"), image("1")),
        user(image("2"), text("b"), number=2),
        alternation=True,
        system_role=False,
    )
    (message,) = found.messages
    assert [part["type"] for part in message["content"]] == ["text", "image", "text", "image", "text"]
    assert message["content"][0]["text"].startswith("be brief")
    assert names(found) == ["1", "2"]


def test_a_tools_picture_comes_where_its_result_comes():
    call = ToolCall(id="c", function=FunctionCall(name="look", arguments="{}"))
    found = built(
        user(image("1")),
        AssistantMessage(id="a", tool_calls=[call]),
        ToolMessage(id="t", tool_call_id="c", content=[text("here"), image("2")]),
    )
    assert names(found) == ["1", "2"]
    assert found.messages[-1]["content"] == [{"type": "text", "text": "Result of look: here"}, IMAGE]


@pytest.mark.parametrize("forged", [f"{OPEN}0{CLOSE}", f"{OPEN}{OPEN}0{CLOSE}", f"{OPEN * 5}1{CLOSE}", OPEN, CLOSE])
def test_text_that_looks_like_a_mark_stays_text(forged):
    found = built(user(text(forged), image("1"), text(forged)))
    assert found.messages[0]["content"] == [{"type": "text", "text": forged}, IMAGE, {"type": "text", "text": forged}]
    assert names(found) == ["1"]


@given(st.lists(st.one_of(st.just(None), st.text(alphabet=[OPEN, CLOSE, "0", "1", "a"], min_size=1)), max_size=8))
def test_whatever_text_is_there_each_picture_comes_once_and_in_order(parts):
    marks = Marks(("image", "audio"), "5e1f")
    kinds = {index: image if index % 2 else sound for index in range(len(parts))}
    joined = "".join(marks.mark(kinds[at](str(at))) if part is None else part for at, part in enumerate(parts))
    (message,), media = marks.unmark([{"role": "user", "content": joined}])
    assert list(media) == [kinds[index](str(index)) for index, part in enumerate(parts) if part is None]
    if media:
        texts = "".join(part.get("text", "\0") for part in message["content"])
        assert texts == "".join("\0" if part is None else part for part in parts)
