"""Our verdicts, messages and state against those of the real client, on streams made at random."""

from __future__ import annotations

import os
import random

import pytest

from events.encode import from_wire, to_wire
from events.message import fold
from events.patch import equal
from tests.conformance.generate import mutated, random_stream
from tests.conformance.samples import examples
from tests.conformance.streams import GAPS, conformance_streams, verdict

SEED = int(os.environ.get("STREAM_SEED", "20"))
COUNT = int(os.environ.get("STREAM_COUNT", "150"))


@pytest.fixture(scope="module")
def replayed(node_clients):
    rng = random.Random(SEED)
    streams = [random_stream(rng) for _ in range(COUNT)]
    return list(zip(streams, node_clients.run("replay.mjs", [{"stream": stream} for stream in streams]), strict=True))


def test_random_streams_get_the_clients_verdict(replayed):
    wrong = []
    for stream, theirs in replayed:
        ours, why = verdict(stream)
        if ours != theirs["verdict"]:
            wrong.append((ours, why, theirs["error"], stream))
    assert not wrong, f"{len(wrong)} of {len(replayed)}; the first: {wrong[0]}"
    verdicts = [theirs["verdict"] for _, theirs in replayed]
    assert min(verdicts.count("accepts"), verdicts.count("rejects")) > COUNT // 20, "the streams are too uniform"


def test_random_streams_fold_to_the_clients_messages_and_state(replayed):
    wrong = []
    for stream, theirs in replayed:
        if theirs["verdict"] == "rejects":
            continue
        folder = fold(map(from_wire, stream))
        if not equal(folder.messages, theirs["messages"]) or not equal(folder.state, theirs["state"]):
            wrong.append((stream, folder.messages, theirs["messages"], folder.state, theirs["state"]))
    assert not wrong, f"{len(wrong)} of {len(replayed)}; the first: {wrong[0]}"


def test_malformed_events_get_the_clients_verdict(node_clients):
    rng = random.Random(SEED)
    streams = [mutated(rng, to_wire(event)) for event in examples(8, seed=SEED)]
    answers = node_clients.run("replay.mjs", [{"stream": stream} for stream in streams])
    wrong = [
        (ours, why, theirs["error"], stream[-1])
        for stream, theirs in zip(streams, answers, strict=True)
        for ours, why in [verdict(stream)]
        if ours != theirs["verdict"]
    ]
    assert not wrong, f"{len(wrong)} of {len(streams)}; the first: {min(wrong, key=lambda each: len(str(each)))}"


def test_conformance_streams_replay_as_their_index_says(node_clients):
    streams = conformance_streams()
    answers = node_clients.run(
        "replay.mjs", [{"id": name, "stream": entry["stream"]} for name, entry in streams.items()]
    )
    wrong = {answer["id"] for answer in answers if answer["verdict"] != streams[answer["id"]]["client_1_0_0"]}
    assert wrong == set()
    assert GAPS.keys() <= streams.keys()
