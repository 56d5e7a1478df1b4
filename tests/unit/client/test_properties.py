"""client.properties: what cannot be used is one sentence for a person."""

from __future__ import annotations

from pathlib import Path

import pytest

from chronik.client.properties import PropertiesError, read_properties


def test_a_file_that_is_no_text_is_refused_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_bytes(b"sasl.mechanism=\xff\xfe")
    with pytest.raises(PropertiesError, match="not UTF-8"):
        read_properties(path)
