"""Our verdict on streams against the real client's."""

from __future__ import annotations

from tests.conformance.streams import GAPS, conformance_streams, verdict


def test_every_conformance_stream_gets_the_clients_verdict():
    streams = conformance_streams()
    assert len(streams) >= 72
    assert GAPS.keys() <= streams.keys()
    wrong = {}
    for name, entry in streams.items():
        ours, why = verdict(entry["stream"])
        if name not in GAPS and ours != entry["client_1_0_0"]:
            wrong[name] = f"ours: {ours} {why}"
    assert wrong == {}
