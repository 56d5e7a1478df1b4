"""Documentation that says what the code does: reference pages are generated, everything else is compared.

`check_docs.py` fails when a generated page is stale, when any page names a flag, a variable, a file or a
heading that does not exist, or when the site does not list it. `check_docs.py --write` writes the generated
pages.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from chronik.cli import build
from chronik.cli.settings import plain
from chronik.config import ENV_PREFIX, table
from chronik.config_sources import BOOTSTRAP_VARIABLE, CLIENT_CONFIG_VARIABLE
from chronik.metadata.broker_config import BROKER_CONFIGS, READ_ONLY
from chronik.metadata.client_metrics import CLIENT_METRICS_CONFIGS
from chronik.metadata.config_def import ConfigDef
from chronik.metadata.group_config import GROUP_CONFIGS
from chronik.metadata.topic_config import TOPIC_CONFIGS
from chronik.server.connection_limits import LIMIT_SETTINGS

sys.path.insert(0, str(Path(__file__).parents[1]))
from tools.dashboard import dashboard
from tools.difference_docs import differences_page
from tools.format_docs import formats_page
from tools.http_docs import http_page, metrics_page, unknown_metrics
from tools.man_pages import without_markup
from tools.protocol_docs import protocol_page
from tools.site import site_mistakes

ROOT = Path(__file__).parents[1]
CONFIGURATION_HEAD = """\
# Configuration

Made by `python tools/check_docs.py --write`. A flag wins over the environment, the environment over the file
(`chronik start --config FILE`, TOML), the file over the default. An empty variable counts as not set.
`chronik config show` prints every value and where it came from.

| setting (key in the file) | flag | variable | value | default | what it does |
|---|---|---|---|---|---|
"""
CONFIGS_HEAD = """
## Configs of topics and brokers

These go by Kafka's names and are changed in a running cluster: `chronik config set`, Apache Kafka's tools,
any admin client. A change holds from the next request on. `chronik config get` shows values and where they
come from: the topic, this broker, all brokers, the node's settings, the default.
The table of Apache Kafka's own configs is made by `python tools/kafka_configs.py` from its jars.

| topic config | brokers' default under | default | what it does |
|---|---|---|---|
"""
GROUPS_HEAD = """
| group config | brokers' default under | default | what it does |
|---|---|---|---|
"""
METRICS_HEAD = """
| config of a client metrics subscription (KIP-714) | default | what it does |
|---|---|---|
"""
WITHOUT_EFFECT_HEAD = """
### Without effect

Every other config that Apache Kafka 4.1 knows is known here too: checked by its type, stored and shown, so
that tools that set it work, but nothing reads it. `chronik config get` says so beside its value.

| resource | config | default | why |
|---|---|---|---|
"""
FIXED_HEAD = """
These are shown with Apache Kafka's defaults and, as there, not changed in a running cluster:
"""
BROKERS_HEAD = """
| broker config | default | what it does |
|---|---|---|
"""
CONFIGURATION_TAIL = """
## A cluster in one file

The same file can be given to every node: each takes its ports and its advertised address from its own entry.

```toml
replication_factor = 3
min_insync_replicas = 2

[[peers]]
id = 1
kafka = "localhost:9092"
wal = "localhost:9291"
raft = "localhost:5001"
http = "localhost:10001" # may be left out
```
"""
COMMANDS_HEAD = """\
# Command line

Made by `python tools/check_docs.py --write`. `chronik COMMAND --help` shows examples. `chronik start` and
`chronik config show` also take a flag for every setting in [CONFIGURATION](CONFIGURATION.md).
"""


def pages() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def configuration_page() -> str:
    rows = []
    for setting in table().values():
        value = setting.type_name
        if setting.kind is int:
            value = f"{setting.rule.minimum} to {setting.rule.maximum}"
        default = f"`{plain(setting.default)}`" if setting.default is not None else ""
        name = f"`{setting.name}`" + (f" or `{setting.rule.alias}`" if setting.rule.alias else "")
        flag = f"`{setting.flag}`" if setting.flag else "none"
        rows.append(f"| {name} | {flag} | `{setting.env}` | {value} | {default} | {setting.doc} |\n")
    return CONFIGURATION_HEAD + "".join(rows) + config_tables() + CONFIGURATION_TAIL


def config_tables() -> str:
    topics: list[str] = []
    defaults: set[str] = set()
    for name, one in TOPIC_CONFIGS.items():
        defaults.update(server_name for server_name, _ in one.server_names)
        if one.has_effect:
            topics.append(_layered_row(name, one))
    brokers = [
        f"| `{name}` | {_broker_default(name, one)} | {one.doc} |\n"
        for name, one in BROKER_CONFIGS.items()
        if name not in defaults and one.has_effect
    ]
    groups = [_layered_row(name, one) for name, one in GROUP_CONFIGS.items() if one.has_effect]
    metrics = [
        f"| `{name}` | {f'`{one.default}`' if one.default else ''} | {one.doc} |\n"
        for name, one in CLIENT_METRICS_CONFIGS.items()
    ]
    return (
        "".join((CONFIGS_HEAD, *topics, BROKERS_HEAD, *brokers, GROUPS_HEAD, *groups, METRICS_HEAD, *metrics))
        + without_effect_table()
    )


def _broker_default(name: str, one: ConfigDef) -> str:
    if name in READ_ONLY:
        return "fixed at start"
    if name in LIMIT_SETTINGS:
        return f"the setting `{LIMIT_SETTINGS[name]}`"
    return f"`{one.default}`"


def _layered_row(name: str, one: ConfigDef) -> str:
    shown = ", ".join(f"`{server_name}`" for server_name, _ in one.server_names)
    return f"| `{name}` | {shown} | `{one.default}` | {one.doc} |\n"


def without_effect_table() -> str:
    rows = []
    for resource, table_ in (("topic", TOPIC_CONFIGS), ("group", GROUP_CONFIGS), ("broker", BROKER_CONFIGS)):
        for name, one in table_.items():
            if not one.has_effect and not (table_ is BROKER_CONFIGS and name in READ_ONLY):
                default = f"`{one.default}`" if one.default else ""
                rows.append(f"| {resource} | `{name}` | {default} | {one.doc.partition(': ')[2]} |\n")
    fixed = [f"`{name}`" for name, one in BROKER_CONFIGS.items() if not one.has_effect and name in READ_ONLY]
    return WITHOUT_EFFECT_HEAD + "".join(rows) + FIXED_HEAD + ",\n".join(fixed) + ".\n"


def commands(command: Any, path: str = "chronik") -> Iterator[tuple[str, Any]]:
    """Every command that can be run, with its full name."""
    children: dict[str, Any] = getattr(command, "commands", {})
    if not children:
        yield path, command
    for name in sorted(children):
        yield from commands(children[name], f"{path} {name}")


def command_page() -> str:
    settings = {setting.flag for setting in table().values()}
    lines = []
    for path, command in commands(typer.main.get_command(build())):
        summary = (command.help or "").strip().splitlines()
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        usage = " ".join([path, *(p.metavar or p.name.upper() for p in arguments)])
        lines += ["", f"## {path}", "", summary[0] if summary else "", "", f"`{usage}`"]
        options = [p for p in command.params if p.param_type_name == "option"]
        if settings - {None} <= {name for option in options for name in option.opts}:
            options = [option for option in options if option.opts[0] not in settings]
        if options:
            lines += ["", "| flag | what it does |", "|---|---|"]
        for option in options:
            names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
            lines.append(f"| {names} | {in_a_table(option.help or '')} |")
    return COMMANDS_HEAD + "\n".join(lines) + "\n"


def in_a_table(text: str) -> str:
    return without_markup(text).replace("|", "\\|")


def known_flags() -> set[str]:
    """Flags of the command line, and of the tools, tests and benchmarks of this repository."""
    flags = {setting.flag for setting in table().values() if setting.flag}
    root = typer.main.get_command(build())
    for _, command in [("chronik", root), *commands(root)]:
        for parameter in command.params:
            flags.update([*parameter.opts, *parameter.secondary_opts])
    sources = [*ROOT.glob("tools/*.py"), *ROOT.glob("bench/*.py"), *ROOT.glob("tests/**/conftest.py")]
    sources += [ROOT / "src/chronik/sim/runner.py", ROOT / "tests/fuzz/__main__.py"]
    for source in sources:
        flags.update(re.findall(r"""["'](--[a-z][a-z0-9-]*)["']""", source.read_text()))
    return flags | {"--help"}


_COMMAND = re.compile(r"(?:^ *|[`|;&(] ?|\bdo |/)chronik((?: [a-z][a-z-]*)+)")
"""In code: behind its backtick, a pipe, a folder. The words end at the first flag, name or number."""
_FENCE = re.compile(r"^ *```")


def unknown_commands(page: str) -> Iterator[tuple[int, str]]:
    """Line and words of each `chronik a b` in code that is no command."""
    root = typer.main.get_command(build())
    is_block = False
    for number, line in enumerate(page.splitlines(), 1):
        if _FENCE.match(line):
            is_block = not is_block
            continue
        code = line if is_block else " ".join(f"`{span}`" for span in re.findall(r"`([^`]+)`", line))
        for words in _COMMAND.findall(code):
            found: Any = root
            path = "chronik"
            for word in words.split():
                children = getattr(found, "commands", {})
                if not children:
                    break  # what follows are its arguments
                path = f"{path} {word}"
                found = children.get(word)
                if found is None:
                    yield number, path
                    break


def mistakes() -> Iterator[str]:
    flags = known_flags()
    variables = {BOOTSTRAP_VARIABLE, CLIENT_CONFIG_VARIABLE, *(setting.env for setting in table().values())}
    for page in pages():
        for number, command in unknown_commands(page.read_text()):
            yield f"{page.relative_to(ROOT)}, line {number}: there is no command {command}"
        for number, line in enumerate(page.read_text().splitlines(), 1):
            where = f"{page.relative_to(ROOT)}, line {number}"
            for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", line):
                if flag not in flags:
                    yield f"{where}: no command has the flag {flag}"
            for variable in re.findall(rf"\b{ENV_PREFIX}[A-Z_]+\b", line):
                if variable not in variables:
                    yield f"{where}: nothing reads {variable}"


def unread_settings() -> Iterator[str]:
    """A setting that nothing reads does nothing: it must not exist."""
    sources = [path for path in (ROOT / "src").rglob("*.py") if not path.name.startswith("config")]
    code = "\n".join(path.read_text() for path in sources)
    own = (ROOT / "src" / "chronik" / "config.py").read_text()
    for name in table():
        if not re.search(rf"\.{name}\b", code) and not re.search(rf"(self|settings)\.{name}\b", own):
            yield f"src/chronik/config.py: nothing reads the setting {name}"


def main() -> int:
    generated = {
        ROOT / "docs" / "CONFIGURATION.md": configuration_page(),
        ROOT / "docs" / "CLI.md": command_page(),
        ROOT / "docs" / "HTTP.md": http_page(),
        ROOT / "docs" / "METRICS.md": metrics_page(),
        ROOT / "docs" / "PROTOCOL.md": protocol_page(),
        ROOT / "docs" / "DIFFERENCES.md": differences_page(),
        ROOT / "docs" / "FORMATS.md": formats_page((ROOT / "docs" / "FORMATS.md").read_text()),
    }
    grafana = ROOT / "deploy" / "grafana" / "chronik.json"
    generated[grafana] = dashboard(grafana.read_text())
    if "--write" in sys.argv[1:]:
        for path, text in generated.items():
            path.write_text(text)
    found = [
        f"{path.relative_to(ROOT)} is stale: run python tools/check_docs.py --write"
        for path, text in generated.items()
        if not path.exists() or path.read_text() != text
    ]
    found += [*mistakes(), *site_mistakes(), *unread_settings(), *unknown_metrics(ROOT)]
    for mistake in found:
        print(mistake, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
