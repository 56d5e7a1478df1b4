"""The files that say which steps an archive is made of."""

from __future__ import annotations

import msgspec

from chronik.published.steps import PublishedStep


def test_an_archive_step_of_the_first_release_is_read() -> None:
    step = msgspec.json.decode(b'{"version": 3, "topic": "t"}', type=PublishedStep)
    assert step.version == 3
    assert b"format" not in msgspec.json.encode(step)
