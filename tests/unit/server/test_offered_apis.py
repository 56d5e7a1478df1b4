"""The APIs that the requirements ask for are those of the handlers."""

from __future__ import annotations

import re
from pathlib import Path

from chronik.server.handlers import all_handlers
from chronik.wire.api import ApiKey

PAGE = Path(__file__).parents[3] / "docs" / "REQUIREMENTS.md"


def required() -> list[str]:
    """Names of API keys, out of the sentence under K: `Describe/CreateAcls` stands for two."""
    section = PAGE.read_text().split("\n## K. ")[1].split("\n## ")[0]
    (sentence,) = (part for part in section.split("\n\n") if part.startswith("Produce, Fetch"))
    text = re.sub(r"\(.*?\)", "", sentence.replace("/\n", "/").replace("\n", " ")).rstrip(". ")
    found = []
    for words in re.split(r", | and ", text):
        *verbs, last = words.strip().split("/")
        what = last.removeprefix(re.match("[A-Z][a-z]+", last)[0]) if verbs else ""  # type: ignore[index]
        found += [re.sub(r"(?<!^)(?=[A-Z])", "_", one).upper() for one in (*(v + what for v in verbs), last)]
    return found


def test_every_api_of_the_requirements_is_offered() -> None:
    names = required()
    assert len(names) == len(set(names)) > 50
    assert {"PRODUCE", "DESCRIBE_ACLS", "CREATE_ACLS", "DELETE_ACLS", "ALTER_CLIENT_QUOTAS"} <= set(names)
    assert [name for name in names if name not in ApiKey.__members__] == []
    offered = {handler.api_key.name for handler in all_handlers()}
    assert [name for name in names if name not in offered] == []
