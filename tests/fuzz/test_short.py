"""The fuzzers in short: each door for a few seconds, each with a restart (make fuzz: as long as you like).

Guards R08.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.campaign import SHORT, Campaign
from tests.fuzz.inputs import Input, Piece, Recording

SEED = 17
ROUND_S = 4.0


@pytest.mark.timeout(600)
def test_nothing_that_a_stranger_sends_hurts(tmp_path: Path) -> None:
    with Campaign(tmp_path, SEED) as campaign:
        campaign.measure(2.0)
        campaign.run(0, SHORT, ROUND_S)
        print(campaign.summary())
    assert not campaign.findings, "\n".join(campaign.findings)
    assert all(campaign.counts[door] > 0 for door in SHORT)


def test_a_recording_can_be_sent_again_to_a_node_with_other_topic_ids(tmp_path: Path) -> None:
    old, new = "11" * 16, "22" * 16
    sent = Input(
        what="x",
        port="wal",
        pieces=(Piece(1, b"a" + bytes.fromhex(old)), Piece(0, b"b")),
        answers=1,
        login=(2, "data"),
    )
    Recording("peers", "1/peers/0", {"t": old}, [sent]).write(tmp_path / "inputs.jsonl")
    read = Recording.read(tmp_path / "inputs.jsonl")
    assert read.inputs == [sent]
    (again,) = read.with_ids({"t": new})
    assert again.pieces == (Piece(1, b"a" + bytes.fromhex(new)), Piece(0, b"b"))
    assert (again.login, again.answers, again.port) == (sent.login, 1, "wal")
