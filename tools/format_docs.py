"""The tables in docs/FORMATS.md that say what nodes write and send, made from the structs that are encoded.

A table stands between `<!-- made: NAME -->` and `<!-- end -->`. Fields, types, defaults and meanings are
those of the classes in the source: a new field there makes the page stale until `check_docs.py --write` ran.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[1] / "src" / "chronik"

TABLES = {
    "metadata commands": ("metadata/commands.py", ("_Command",)),
    "parts of commands": ("metadata/commands.py", ("Endpoint", "RemoteLog", "CommandEntry")),
    "snapshot": ("metadata/snapshot.py", ("_StateSnapshot",)),
    "parts of the snapshot": ("metadata/values.py", ("Broker", "PartitionRegistration", "Topic")),
    "users and quotas": ("metadata/security.py", ("SecuritySnapshot", "UserEntry", "QuotaEntry")),
    "api keys": ("security/api_keys.py", ("NamedKey",)),
    "acls": ("security/acls.py", ("AclBinding",)),
    "credentials": ("security/scram.py", ("Credential",)),
    "tokens": ("security/tokens.py", ("DelegationToken",)),
    "quorum frames": ("cluster/transport.py", ("QuorumFrame",)),
    "status": ("cluster/status.py", ("RaftStatus", "MemberStatus", "WriteTimes")),
    "loads": ("cluster/load.py", ("NodeLoad", "PartitionLoad")),
    "status of links": ("cluster/transport.py", ("Carried",)),
    "raft messages": ("raft/messages.py", ("_Message",)),
    "raft entries": ("raft/entries.py", ("Entry", "Snapshot", "Membership", "ConfigChange", "HardState")),
    "checkpoint": ("storage/checkpoint.py", ("Checkpoint", "LogState")),
    "producers": (
        "storage/producer_state.py",
        ("_ProducerSnapshot", "ProducerEntry", "BatchSpan", "AbortedTxn", "_Ended", "_Undo"),
    ),
    "remote objects": ("tiering/manifest.py", ("RemoteManifest", "RemoteSegment", "SegmentFooter")),
    "cleaner position": ("storage/cleanable.py", ("CleanedPosition",)),
    "handshake": ("links/handshake.py", ("Hello", "Challenge", "Proof", "Welcome")),
    "warrant": ("security/warrants.py", ("Warrant",)),
    "replication frames": ("links/frames.py", ("FrameType",)),
    "replication bodies": ("links/frames.py", ("Head", "LogPosition", "Start", "Data", "LogBounds")),
}
"""Table: source file, and the classes that it lists. A base class stands for all that are made from it."""


class Field(NamedTuple):
    name: str
    type: str
    default: str
    meaning: str


class Struct(NamedTuple):
    name: str
    tag: str
    meaning: str
    fields: list[Field]


def _doc(node: ast.stmt | None) -> str:
    return " ".join(_text(node.value).split()) if isinstance(node, ast.Expr) else ""


def _fields(body: list[ast.stmt]) -> Iterator[Field]:
    for place, node in enumerate(body):
        following = body[place + 1] if place + 1 < len(body) else None
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            default = ast.unparse(node.value) if node.value is not None else ""
            yield Field(node.target.id, ast.unparse(node.annotation), default, _doc(following))
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield Field(node.targets[0].id, "", ast.unparse(node.value), _doc(following))


def structs(path: Path, names: tuple[str, ...]) -> list[Struct]:
    """The classes of a source file that are listed or derive from one that is, in their order."""
    found: list[Struct] = []
    tree = ast.parse(path.read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    for node in classes.values():
        bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
        is_base = any(node.name in _bases(other) for other in classes.values())
        if not (bases & set(names) or (node.name in names and not is_base)):
            continue
        tags = [_text(word.value) for word in node.keywords if word.arg == "tag"]
        inherited = [field for base in bases & set(classes) for field in _fields(classes[base].body)]
        fields = [*inherited, *_fields(node.body)]
        found.append(Struct(node.name.lstrip("_"), tags[0] if tags else "", _doc(node.body[0]), fields))
    missing = [name for name in names if name not in classes]
    if missing:
        raise SystemExit(f"{path.name} has no {', '.join(missing)} any more: mend tools/format_docs.py")
    return found


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _bases(node: ast.ClassDef) -> set[str]:
    return {base.id for base in node.bases if isinstance(base, ast.Name)}


def table(name: str) -> str:
    file, names = TABLES[name]
    lines = [f"From `{file}`.", ""]
    found = structs(SOURCE / file, names)
    if not any(struct.fields for struct in found):
        raise SystemExit(f"the table `{name}` would be empty: mend tools/format_docs.py")
    for struct in found:
        title = f"`{struct.tag or struct.name}`"
        lines += [f"**{title}**" + (f" {struct.meaning}" if struct.meaning else ""), ""]
        if struct.fields and not any(field.type for field in struct.fields):
            lines += ["| name | number | meaning |", "|---|---|---|"]
            lines += [f"| {field.name} | {field.default} | {field.meaning} |" for field in struct.fields]
            lines.append("")
        elif struct.fields:
            lines += ["| field | type | default | meaning |", "|---|---|---|---|"]
            lines += [
                f"| `{field.name}` | {_code(field.type)} | {_code(field.default)} | {field.meaning} |"
                for field in struct.fields
            ]
            lines.append("")
    return "\n".join(lines)


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|") if text else ""


def formats_page(page: str) -> str:
    """The page with every made table as it should be. Every table is on it, and every place has its table."""
    places = re.findall(r"<!-- made: (.*?) -->", page)
    if sorted(places) != sorted(TABLES):
        wrong = ", ".join(sorted({*places} ^ {*TABLES})) or "one of them is there twice"
        raise SystemExit(f"tables of docs/FORMATS.md and of tools/format_docs.py differ: {wrong}")

    def made(match: re.Match[str]) -> str:
        return f"<!-- made: {match[1]} -->\n\n{table(match[1])}\n<!-- end -->"

    return re.sub(r"<!-- made: (.*?) -->\n.*?<!-- end -->", made, page, flags=re.S)
