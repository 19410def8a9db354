"""The questions that a newcomer types first, and the answers of the bundled model that are kept beside them."""

from tests.training import newcomers
from training.demo_model.evaluate import Writer


def blocks() -> list[str]:
    return newcomers.ANSWERS.read_text(encoding="utf-8").rstrip("\n").split("\n\n")


def test_there_are_two_hundred_and_each_has_its_answers():
    asked = newcomers.conversations()
    assert len(asked) == 200 and len({tuple(turns) for turns in asked}) == 200
    assert [block.splitlines()[0] for block in blocks()] == [f"person: {turns[0]}" for turns in asked]
    for block, turns in zip(blocks(), asked, strict=True):
        answers = [line for line in block.splitlines() if line.startswith("model: ")]
        assert len(answers) == len(turns) and all(len(answer) > len("model: ") for answer in answers)


def test_the_answers_are_those_of_the_bundled_model():
    writer = Writer(newcomers.MODEL)
    chosen = ["What is AG-UI?", "what is 12*7?", "weather in paris"]
    kept = {block.splitlines()[0].removeprefix("person: "): block for block in blocks()}
    for question in chosen:
        assert newcomers.transcript(writer, [question]) == kept[question]
