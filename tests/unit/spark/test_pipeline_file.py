"""Pipeline files: what is right is read, what is wrong is one sentence with its line."""

from __future__ import annotations

import json
import random
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from chronik.spark.pipeline.checks import check_functions, check_sql
from chronik.spark.pipeline.document import Document, PipelineError, locate
from chronik.spark.pipeline.spec import Pipeline, parse
from tests.fuzz.values import damaged, json_value

GOOD = '''\
name = "demo"
trigger = "10 seconds"

[sources.orders]
topic = "orders"
watermark = { column = "at", delay = "1 minute" }

[[steps]]
name = "large"
sql = """
select id
from orders
where amount > 100
"""

[[steps]]
name = "scored"
python = "scoring.py:score"
input = "large"

[sinks.out]
from = "scored"
path = "tables/out"
partition_by = "day"

[sinks.alerts]
from = "large"
format = "topic"
topic = "alerts"
key = "id"
options = { "kafka.compression.type" = "zstd", transactional = true }
'''


def read(text: str, folder: Path | None = None) -> Pipeline:
    document = Document("p.toml", text)
    pipeline = parse(document)
    check_sql(document, pipeline)
    if folder is not None:
        check_functions(document, pipeline, folder)
    return pipeline


def test_a_file_becomes_values(tmp_path: Path) -> None:
    (tmp_path / "scoring.py").write_text("def score(frame): return frame\n")
    pipeline = read(GOOD, tmp_path)
    assert pipeline.sources["orders"].topics == ("orders",)
    assert pipeline.sources["orders"].watermark_delay == "1 minute"
    assert [step.name for step in pipeline.steps] == ["large", "scored"]
    assert pipeline.sinks["out"].partition_by == ("day",)
    assert pipeline.sinks["alerts"].options == {"kafka.compression.type": "zstd", "transactional": "true"}
    assert pipeline.checkpoint == ".chronik/demo"


def test_the_example_that_init_writes_is_right() -> None:
    text = resources.files("chronik.spark.pipeline").joinpath("example.toml").read_text()
    assert set(read(text).sinks) == {"large_orders", "by_minute", "rejected"}


def test_every_key_knows_its_line() -> None:
    lines = locate(GOOD)
    assert lines["name",] == 1
    assert lines["sources", "orders", "watermark"] == 6
    assert lines["steps", 0, "sql"] == 10
    assert lines["steps", 1, "python"] == 18
    assert lines["sinks", "alerts", "key"] == 30
    assert ("sources", "orders", "select") not in lines


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('name = "demo"', 'nam = "demo"', "line 1: there is no key 'nam' here; did you mean 'name'"),
        ('name = "demo"', "", "name is missing"),
        ('"10 seconds"', '"sometimes"', "line 2: trigger 'sometimes' is not known"),
        ('topic = "orders"', "topic = 7", "line 5: topic must be a text or a list of texts, not 7"),
        ('topic = "orders"', "", "line 4: source orders needs either topic or table"),
        (
            'topic = "orders"',
            'topic = "orders"\ndecode = "jsn"',
            "line 6: decode 'jsn' is not known; did you",
        ),
        ('topic = "orders"', 'topic = "orders"\ndecode = "csv"', "line 4: CSV has no names"),
        ('topic = "orders"', 'topic = "orders"\ndecode = "avro"', "line 4: Avro needs a schema registry"),
        ('"1 minute"', '"a while"', "line 6: 'a while' is no delay"),
        ("where amount > 100", "wher amount > 100", r"line 13: this is no SQL near 'amount'"),
        ("where amount > 100", "where", r"line 13: this is no SQL near 'where'.*something is missing"),
        ("from orders\n", "from order\n", "line 10: step large reads 'order'.*did you mean 'orders'"),
        ("select id\nfrom orders\nwhere amount > 100", "drop table orders", "must be a SELECT"),
        ('input = "large"', 'input = "larg"', "line 19: step scored reads 'larg'.*did you mean 'large'"),
        ('input = "large"', "", "line 16: step scored needs an input"),
        ('"scoring.py:score"', '"scoring"', "line 18: 'scoring' names no function"),
        ('from = "scored"', 'from = "scord"', "line 22: sink out reads 'scord'.*did you mean 'scored'"),
        ('path = "tables/out"', "", "line 21: sink out writes parquet: add path"),
        ('topic = "alerts"', "", "line 26: sink alerts writes to a topic: add topic"),
        ('partition_by = "day"', 'mode = "update"', "line 24: parquet can only be appended to"),
        ('name = "scored"', 'name = "orders"', "line 17: there are two things named 'orders'"),
        ('name = "scored"', 'name = "a-b"', "line 17: 'a-b' cannot be a name in SQL"),
        ("[sinks.alerts]", "[sinks.alerts", "this is no TOML"),
    ],
)
def test_a_mistake_is_one_sentence_with_its_line(old: str, new: str, said: str) -> None:
    assert old in GOOD
    with pytest.raises(PipelineError, match=said) as raised:
        read(GOOD.replace(old, new, 1))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no file"),
        ("def scor(frame): ...", "has no function 'score'; did you mean 'scor'"),
        ("def score(:", "line 1"),
    ],
)
def test_a_function_that_is_not_there(content: str | None, said: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "scoring.py").write_text(content)
    with pytest.raises(PipelineError, match=said):
        read(GOOD, tmp_path)


def test_sql_may_name_its_own_tables() -> None:
    sql = "with big as (select * from orders) select * from big join large using (id)"
    text = GOOD.replace('python = "scoring.py:score"\ninput = "large"', f'sql = "{sql}"')
    assert read(text).steps[1].sql == sql


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {toml(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return "nan" if value is None else json.dumps(value)


def test_any_file_is_a_pipeline_or_wrong_in_one_sentence() -> None:
    outcomes = {"read": 0, "refused": 0}
    places = [number for number, line in enumerate(GOOD.splitlines()) if " = " in line]
    for seed in range(1_200):
        pick = random.Random(seed)
        lines = GOOD.splitlines()
        if seed % 3:
            place = pick.choice(places)
            lines[place] = f"{lines[place].partition(' = ')[0]} = {toml(json_value(pick))}"
            text = "\n".join(lines)
        else:
            text = damaged(pick, GOOD.encode()).decode("utf-8", "replace")
        try:
            parse(Document("demo.toml", text))
            outcomes["read"] += 1
        except PipelineError as error:
            assert "demo.toml" in str(error)
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 20


@pytest.mark.parametrize(
    "text",
    ["a = " + "[" * 100_000, "a = " + "{a = " * 5_000, GOOD.replace("watermark = {", "watermark = 0 #")],
)
def test_depth_and_a_watermark_that_is_no_table(text: str) -> None:
    with pytest.raises(PipelineError):
        parse(Document("demo.toml", text))


def test_a_number_of_thousands_of_digits_is_told() -> None:
    """Python refuses to read it, and that was a traceback."""
    with pytest.raises(PipelineError, match="a value cannot be read"):
        Document("p.toml", "x = " + "9" * 5_000)
