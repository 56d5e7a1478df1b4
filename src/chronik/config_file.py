"""What a configuration file and a variable look like: text, values, lines, and what is wrong with them.

Knows TOML and the types a value can have, not which settings there are: that is config.py's table.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from chronik.model import ChronikError, NodeId

CLUSTER: Final = "peers"
"""The one key of a file that is no setting: the cluster's members, an array of tables."""

_TRUE: Final = frozenset({"true", "yes", "on", "1"})
_FALSE: Final = frozenset({"false", "no", "off", "0"})
_PORT_MAX: Final = 65_535
_NODE_ID_MAX: Final = 2**31 - 1


class ConfigError(ChronikError):
    """The configuration is wrong; the message is one sentence for a person."""


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A member of the cluster, this node included, as the others reach it."""

    id: NodeId
    kafka: Address
    wal: Address
    raft: Address
    http: Address | None = None
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A configuration file: its values, and its text to find the line of a mistake."""

    path: Path
    text: str
    values: Mapping[str, object]

    @staticmethod
    def read(path: Path) -> ConfigFile:
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ConfigError(f"{path}: there is no such file") from None
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise ConfigError(f"{path}: cannot be read: {reason}") from None
        try:
            return ConfigFile(path, text, tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(_toml_mistake(path, text, str(error))) from None
        except RecursionError:
            raise ConfigError(f"{path}: nested too deeply") from None

    def where(self, key: str) -> str:
        return f"{self.path}, line {self._line(key, 0)}: {key}"

    def where_peer(self, index: int, key: str | None = None) -> str:
        """The place of a peer, or of one of its keys where the key is written out."""
        lines = self.text.splitlines()
        headers = [at for at, line in enumerate(lines) if re.match(r"\s*\[\[\s*peers\s*\]\]", line)]
        name = f"peers[{index}]" + (f".{key}" if key else "")
        if index >= len(headers):
            return f"{self.path}, line {self._line(CLUSTER, 0)}: {name}"
        if key is None:
            return f"{self.path}, line {headers[index] + 1}: {name}"
        return f"{self.path}, line {self._line(key, headers[index] + 1)}: {name}"

    def _line(self, key: str, start: int) -> int:
        """The line that sets `key`, from `start` on; tomllib keeps no positions of values."""
        quoted = re.escape(key)
        pattern = re.compile(rf"""\s*(\[+\s*)?(["']?){quoted}\2\s*[=.\]]""")
        lines = self.text.splitlines()
        return next((at + 1 for at in range(start, len(lines)) if pattern.match(lines[at])), max(start, 1))


def parse_peers(file: ConfigFile, value: object) -> tuple[Peer, ...]:
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise ConfigError(f"{file.where(CLUSTER)} must be an array of tables, written [[peers]]")
    peers = tuple(_parse_peer(file, index, entry) for index, entry in enumerate(value))
    for index, peer in enumerate(peers):
        if peer.id in {other.id for other in peers[:index]}:
            raise ConfigError(f"{file.where_peer(index, 'id')}: {peer.id} is already another peer's id")
    return peers


def _parse_peer(file: ConfigFile, index: int, entry: Mapping[str, object]) -> Peer:
    fields = dataclasses.fields(Peer)
    known = [field.name for field in fields]
    for key in entry:
        if key not in known:
            raise ConfigError(f"{file.where_peer(index, key)} is not a setting{nearest(key, known)}")
    values: dict[str, Any] = {}
    for field in fields:
        where = file.where_peer(index, field.name)
        if field.name not in entry:
            if field.default is dataclasses.MISSING:
                raise ConfigError(f"{file.where_peer(index)} lacks {field.name}")
        elif field.name == "id":
            values["id"] = node_id = convert(int, entry["id"], text=False)
            if not isinstance(node_id, int) or not 0 <= node_id <= _NODE_ID_MAX:
                raise ConfigError(f"{where}: {shown(entry['id'])} is no node id, 0 to {_NODE_ID_MAX}")
        elif field.name == "rack":
            values["rack"] = rack = convert(str, entry["rack"], text=False)
            if rack is None:
                raise ConfigError(f"{where}: {shown(entry['rack'])} is no text")
        else:
            address = convert(Address, entry[field.name], text=False)
            if not isinstance(address, Address) or not address.port:
                raise ConfigError(f"{where}: {shown(entry[field.name])} is no host:port")
            values[field.name] = address
    return Peer(**values)


def convert(kind: type, value: object, *, text: bool) -> object | None:
    """`value` as `kind`, or None when it is nothing of the kind.

    Flags and variables are text, so "9092" is a number there; a file has types of its own, and it is not.
    """
    if isinstance(value, str):
        value = value.strip()
        if not value or not value.isprintable():
            return None
        if kind is Address:
            return _parse_address(value)
        if kind is Path:
            return _parse_path(value)
        return _convert_text(kind, value) if text else value if kind is str else None
    if kind is int and isinstance(value, bool):
        return None
    return value if isinstance(value, kind) else None


def _convert_text(kind: type, text: str) -> object | None:
    if kind is bool:
        word = text.lower()
        return word in _TRUE if word in _TRUE | _FALSE else None
    if kind is int:
        return int(text) if re.fullmatch(r"[+-]?[0-9]{1,19}", text) else None
    return text


def _parse_path(text: str) -> Path | None:
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return None  # the home directory of somebody who is not here


def _parse_address(text: str) -> Address | None:
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^\s:/\[\]]+))(?::([0-9]{1,5}))?", text)
    if match is None:
        return None
    port = None if match[3] is None else int(match[3])
    return None if port is not None and not 0 < port <= _PORT_MAX else Address(match[1] or match[2], port)


def _toml_mistake(path: Path, text: str, message: str) -> str:
    what, _, place = message.partition(" (at ")
    found = re.search(r"line (\d+)", place)
    line = int(found[1]) if found else max(1, len(text.splitlines()))
    return f"{path}, line {line}: {what[:1].lower()}{what[1:]}"


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of a sentence that says what was probably meant; empty when nothing comes near."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower().replace("-", "_"), by_lower, n=1, cutoff=0.5)
    return f"; did you mean {by_lower[close[0]]}?" if close else ""


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
