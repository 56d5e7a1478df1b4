"""Schemas of strangers: whatever they are, the node goes on answering others (H06)."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.node import Node
from chronik.registry import judging
from chronik.registry.errors import RegistryError, TooExpensive
from chronik.registry.judge import TYPES, SchemaQuestion, SchemaText, judge
from chronik.registry.judging import Judging
from chronik.registry.limits import INLINE_STEPS_MAX, StepBudget
from tests.unit.admin.support import Http, with_node


def doubling(levels: int) -> str:
    definitions: dict[str, object] = {"d0": {"type": "integer"}}
    for n in range(levels):
        ref = {"$ref": f"#/definitions/d{n}"}
        definitions[f"d{n + 1}"] = {"allOf": [ref, ref]}
    return json.dumps({"definitions": definitions, "$ref": f"#/definitions/d{levels}"})


def many_unions(count: int) -> str:
    inner = {"type": "record", "name": "X", "fields": [{"name": "x", "type": ["null", "X"]}]}
    fields: list[object] = [{"name": "f", "type": inner}]
    fields += [
        {"name": f"f{n}", "type": ["null", "X", {"type": "array", "items": "X"}]} for n in range(count)
    ]
    return json.dumps({"type": "record", "name": "R", "fields": fields})


HOSTILE = {
    "nested": ("AVRO", '{"type":"array","items":' * 3000 + '"int"' + "}" * 3000),
    "brackets": ("JSON", "[" * 300_000),
    "doubling": ("JSON", doubling(60)),
    "pattern": ("JSON", json.dumps({"type": "string", "pattern": "(a|a)*" * 1000 + "$"})),
    "number": ("JSON", '{"minimum": ' + "9" * 300_000 + "}"),
    "braces": ("PROTOBUF", "message M {" * 30_000),
    "comment": ("PROTOBUF", "/*" + "*" * 300_000),
    "quotes": ("PROTOBUF", 'syntax = "' + "\\" * 300_001),
    "fields": (
        "PROTOBUF",
        'syntax="proto3"; message M {' + "".join(f"int32 f{n}={n + 1};" for n in range(8000)) + "}",
    ),
    "names": ("AVRO", many_unions(4000)),
    "binary": ("PROTOBUF", "CgdkZWZhdWx0" * 20_000),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_the_loop_is_not_held(tmp_path: Path, name: str) -> None:
    """While the worst schema is judged, and compared with itself and another, others are answered."""
    kind, text = HOSTILE[name]

    async def work(node: Node, http: Http) -> None:
        loop = asyncio.get_running_loop()
        done, worst = False, 0.0

        async def look() -> None:
            nonlocal worst
            while not done:
                before = loop.time()
                await asyncio.sleep(0)
                worst = max(worst, loop.time() - before)

        watching = asyncio.create_task(look())
        await http.call("PUT", "/config", {"compatibility": "FULL_TRANSITIVE"})
        statuses = []
        for body in (text, text.replace("f7", "g7"), text):
            answer = await http.post("/subjects/s/versions", {"schema": body, "schemaType": kind})
            statuses.append(answer.status)
        done = True
        await watching
        assert set(statuses) <= {200, 409, 422}, statuses
        assert worst < 1.0, f"the loop stood still for {worst:.2f} s"
        assert (await http.get("/ready")).status == 200

    with_node(tmp_path, work)


def test_what_is_judged_on_the_loop_takes_a_moment() -> None:
    """The steps that the loop allows are a bound of time: a hundred milliseconds on a slow, busy machine."""
    question = SchemaQuestion(
        schema=SchemaText(schema_type="JSON", text=doubling(60)),
        earlier=[(1, SchemaText(schema_type="JSON", text='{"type":"integer","minimum":1}'))],
        level="FULL",
    )
    took = []
    for _ in range(5):
        began = time.process_time()
        with pytest.raises(TooExpensive):
            judge(question, StepBudget(INLINE_STEPS_MAX))
        took.append(time.process_time() - began)
    assert min(took) < 0.1


async def test_a_process_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "SECONDS_MAX", 0.01)
    apart = Judging()
    text = json.dumps({"type": "string", "description": "x" * 20_000})
    with pytest.raises(RegistryError) as refused:
        await apart.judge(SchemaQuestion(schema=SchemaText(schema_type="JSON", text=text)))
    assert (refused.value.error_code, apart.processes) == (42201, 1)


async def test_few_wait_for_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "WAITING_MAX", 2)
    apart = Judging()
    texts = [json.dumps({"type": "string", "description": f"{n}" * 20_000}) for n in range(4)]
    questions = [SchemaQuestion(schema=SchemaText(schema_type="JSON", text=text)) for text in texts]
    found = await asyncio.gather(*map(apart.judge, questions), return_exceptions=True)
    refused = [one.error_code for one in found if isinstance(one, RegistryError)]
    assert refused == [50302, 50302]
    canonical = json.dumps(json.loads(texts[3]), separators=(",", ":"))
    assert (await apart.judge(questions[3])).canonical == canonical


async def test_nobody_has_all_places_nor_all_turns() -> None:
    apart = Judging()

    def question(name: str) -> SchemaQuestion:
        text = json.dumps({"type": "string", "description": f"{name}" * 20_000})
        return SchemaQuestion(schema=SchemaText(schema_type="JSON", text=text))

    ended: list[str] = []

    async def ask(asker: str, number: int) -> None:
        await apart.judge(question(f"{asker}{number}"), asker)
        ended.append(asker)

    greedy = [asyncio.create_task(ask("greedy", number)) for number in range(20)]
    await asyncio.sleep(0)
    others = [asyncio.create_task(ask(f"other{number}", 0)) for number in range(3)]
    await asyncio.sleep(0)
    waiting = apart.waiting
    found = await asyncio.gather(*greedy, *others, return_exceptions=True)
    assert waiting == judging.WAITING_EACH_MAX + 3
    refused = [one for one in found if isinstance(one, RegistryError)]
    assert len(refused) == apart.refused == 20 - judging.WAITING_EACH_MAX
    assert "your places are taken" in str(refused[0])
    assert set(ended[:5]) == {"greedy", "other0", "other1", "other2"}
    assert apart.waiting == 0


async def test_who_leaves_while_the_process_starts_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    starting, may_start = asyncio.Event(), asyncio.Event()
    made: list[asyncio.subprocess.Process] = []
    begin = judging._start

    async def start() -> asyncio.subprocess.Process:
        starting.set()
        await may_start.wait()
        made.append(await begin())
        return made[-1]

    monkeypatch.setattr(judging, "_start", start)
    apart = Judging()
    text = json.dumps({"type": "string", "description": "x" * 20_000})
    question = SchemaQuestion(schema=SchemaText(schema_type="JSON", text=text))
    gone = asyncio.create_task(apart.judge(question))
    await starting.wait()
    gone.cancel()
    may_start.set()
    assert (await apart.judge(question)).canonical, "the turn is free"
    assert len(made) == 2
    assert await made[0].wait() == -signal.SIGKILL


async def test_who_leaves_hands_the_turn_on() -> None:
    apart = Judging()
    texts = [json.dumps({"type": "string", "description": f"{n}" * 20_000}) for n in range(4)]
    questions = [SchemaQuestion(schema=SchemaText(schema_type="JSON", text=text)) for text in texts]
    asking = [asyncio.create_task(apart.judge(one, f"{n}")) for n, one in enumerate(questions)]
    await asyncio.sleep(0)
    for gone in (2, 0, 1):
        asking[gone].cancel()
    assert (await asking[3]).canonical
    assert apart.waiting == 0


async def test_who_asks_the_same_shares_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty producers that start with the same large schema."""
    monkeypatch.setattr(judging, "KNOWN_BYTES_MAX", 100_000)
    apart = Judging()
    questions = [
        SchemaQuestion(schema=SchemaText(schema_type="JSON", text=json.dumps({"title": f"{n}" * 20_000})))
        for n in range(3)
    ]
    found = await asyncio.gather(*(apart.judge(questions[0]) for _ in range(40)))
    assert (len(set(map(id, found))), apart.processes) == (1, 1)
    for question in (*questions, questions[2]):
        await apart.judge(question)
    assert apart.processes == 3
    await apart.judge(questions[0])
    assert apart.processes == 4, "the oldest verdict made room"


async def test_who_asks_the_same_shares_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "SECONDS_MAX", 0.01)
    apart = Judging()
    text = json.dumps({"type": "string", "description": "x" * 20_000})
    question = SchemaQuestion(schema=SchemaText(schema_type="JSON", text=text))
    found = await asyncio.gather(*(apart.judge(question) for _ in range(20)), return_exceptions=True)
    assert {str(one) for one in found} == {"The schema takes too long to parse or to compare."}
    assert apart.processes == 1
    with pytest.raises(RegistryError):
        await apart.judge(question)
    assert apart.processes == 2, "the machine may be less busy now"


def test_the_process_gives_way_to_the_node() -> None:
    program = (
        "import os, resource; from chronik.registry.judging import confine; before = os.nice(0); confine(); "
        "print(os.nice(0) - before, open('/proc/self/oom_score_adj').read().strip(), "
        "*resource.getrlimit(resource.RLIMIT_CPU))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    gave_way, first_to_go, *seconds = map(int, run.stdout.split())
    assert gave_way > 0 or os.nice(0) >= 10
    assert (first_to_go, seconds) == (1000, [8, 8])


PIECES = [
    *("{", "}", "[", "]", ":", ",", '"type"', '"record"', '"name"', '"fields"', '"R"', '"int"', "1", "null"),
    *(
        '"$ref"',
        '"#"',
        '"properties"',
        '"allOf"',
        '"items"',
        '"enum"',
        "message",
        "M",
        "=",
        ";",
        '"',
        "oneof",
    ),
    *("optional", "int32", "map<", ">", "extend", "reserved", "to", "max", "option", "(", ")", ".", "-", " "),
    *("syntax", '"proto3"', "import", "rpc", "stream", "/*", "*/", "\\", "\0", "é", "package"),
]


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(sorted(TYPES)), st.lists(st.sampled_from(PIECES), max_size=60))
def test_any_text_is_a_schema_or_is_refused(kind: str, pieces: list[str]) -> None:
    text = SchemaText(schema_type=kind, text="".join(pieces))
    verdict = judge(SchemaQuestion(schema=text, earlier=[(1, text)], level="FULL"), StepBudget(100_000))
    assert verdict.invalid or verdict.canonical


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 1 << 32))
def test_a_schema_with_changed_bytes_is_a_schema_or_is_refused(seed: int) -> None:
    rng = random.Random(seed)
    kind, text = rng.choice([("AVRO", many_unions(2)), ("JSON", doubling(3)), ("PROTOBUF", PROTO)])
    chars = list(text)
    for _ in range(rng.randint(1, 5)):
        chars[rng.randrange(len(chars))] = rng.choice(PIECES)
    schema = SchemaText(schema_type=kind, text="".join(chars))
    verdict = judge(
        SchemaQuestion(schema=schema, earlier=[(1, SchemaText(schema_type=kind, text=text))], level="FULL"),
        StepBudget(100_000),
    )
    assert verdict.invalid or verdict.canonical


PROTO = """syntax = "proto3"; package a; import "google/protobuf/any.proto";
message M { optional int32 x = 1; map<string, M> m = 2; oneof o { string s = 3; E e = 4; } enum E { A = 0; }
  reserved 7 to 9; google.protobuf.Any any = 10 [deprecated = true]; }
service S { rpc R (M) returns (stream M); }"""
