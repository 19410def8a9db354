"""Functionary v3.2: messages have a recipient, `>>>all` for the user or `>>>NAME` for a function."""

from __future__ import annotations

from events.formats.family import Family, Sign, whole
from events.formats.output_format import Channels, OutputFormat, Route, Tools
from events.formats.samples import BREST, Sample

FUNCTIONARY = OutputFormat(
    name="functionary_v3_2",
    channels=Channels(start=(">>>",), header_end=("\n",), routes=(Route(header=">>>all\n", to="content"),), named=True),
    tools=Tools(style="tag", bare="never"),
    drop=("<|eot_id|>", "<|eom_id|>"),
)

SAMPLES = {
    "functionary_v3_2": [
        Sample('>>>all\nLet me see.>>>tide\n{"port": "Brest"}<|eot_id|>', [BREST], content="Let me see."),
        Sample(">>>all\nIn Python:\n>>> now()\n", content="In Python:\n>>> now()\n"),
    ],
}

FAMILY = Family(
    formats=(FUNCTIONARY,),
    names={"functionary": "functionary_v3_2"},
    signs=(
        Sign(
            name="functionary_v3_2",
            what="an answer is addressed to a recipient: >>>all",
            test=lambda evidence: ">>>all\n" in evidence.answer,
            apply=whole(FUNCTIONARY),
            used_for="the whole output",
        ),
    ),
    samples=SAMPLES,
)
