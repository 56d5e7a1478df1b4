"""Settings: order of sources, where a value came from, and the one sentence for each kind of mistake."""

from __future__ import annotations

import re
import socket
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronik.config import Address, ConfigError, table
from chronik.config_sources import Resolved, load_settings, parse_log_levels


def load(
    text: str | None = None,
    *,
    env: dict[str, str] | None = None,
    tmp_path: Path | None = None,
    **flags: object,
) -> Resolved:
    file = None
    if text is not None:
        assert tmp_path is not None
        file = tmp_path / "chronik.toml"
        file.write_text(text)
    return load_settings(flags, env or {}, file)


def complaint(text: str, tmp_path: Path, **flags: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load(text, tmp_path=tmp_path, **flags)
    message = str(caught.value)
    assert "\n" not in message
    return message.removeprefix(f"{tmp_path}/")


PEERS = """
[[peers]]
id = 1
kafka = "localhost:9092"
wal = "localhost:9291"
raft = "localhost:5001"

[[peers]]
id = 2
kafka = "localhost:9093"
wal = "localhost:9292"
raft = "localhost:5002"
http = "localhost:10002"
"""


def test_nothing_is_needed() -> None:
    resolved = load()
    settings = resolved.settings
    assert (settings.kafka_port, settings.http_port, settings.bind) == (9092, 6092, "127.0.0.1")
    assert settings.data_dir == Path("chronik-data")
    assert set(resolved.origins.values()) == {"default"}
    assert not resolved.warnings


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    text = "# ports\nkafka_port = 1111\nhttp_port = 2222\nwal_port = 3333\n"
    env = {"CHRONIK_KAFKA_PORT": "1112", "CHRONIK_HTTP_PORT": "2223"}
    resolved = load(text, env=env, tmp_path=tmp_path, kafka_port="1113", http_port=None)
    settings = resolved.settings
    assert (settings.kafka_port, settings.http_port, settings.wal_port, settings.raft_port) == (
        1113,
        2223,
        3333,
        5001,
    )
    assert resolved.origins["kafka_port"] == "flag --kafka-port"
    assert resolved.origins["http_port"] == "environment CHRONIK_HTTP_PORT"
    assert resolved.origins["wal_port"] == f"{tmp_path}/chronik.toml, line 4"
    assert resolved.origins["raft_port"] == "default"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("\nkafka_prot = 1\n", "chronik.toml, line 2: kafka_prot is not a setting; did you mean kafka_port?"),
        (
            "wal-profile = 'x'",
            "chronik.toml, line 1: wal-profile is not a setting; did you mean wal_profile?",
        ),
        ("xyzzy = 1", "chronik.toml, line 1: xyzzy is not a setting"),
        ("[wal]\nprofile = 'high'", "chronik.toml, line 1: wal is not a setting"),
        ('kafka_port = "9092"', "chronik.toml, line 1: kafka_port: '9092' is no whole number, 0 to 65535"),
        ("kafka_port = true", "chronik.toml, line 1: kafka_port: True is no whole number, 0 to 65535"),
        ("kafka_port = 70000", "chronik.toml, line 1: kafka_port: 70000 is outside 0 to 65535"),
        (
            'wal_profile = "hihg"',
            "chronik.toml, line 1: wal_profile: 'hihg' is none of ultra / high / medium / low; "
            "did you mean high?",
        ),
        (
            "auto_create_topics = 'yes'",
            "chronik.toml, line 1: auto_create_topics: 'yes' is no true or false",
        ),
        ("advertise = 'a:b:c'", "chronik.toml, line 1: advertise: 'a:b:c' is no host[:port]"),
        ("bind = ''", "chronik.toml, line 1: bind: '' is no text"),
        ("a = [", "chronik.toml, line 1: "),
        ("bind = 'x'\nbind = 'y'", "chronik.toml, line 2: "),
        (
            "kafka_port = 1\nhttp_port = 1",
            "kafka_port and http_port are both 1; each needs a port of its own",
        ),
        (
            "replication_factor = 3\ndefault_replication_factor = 3",
            "chronik.toml, line 2: default_replication_factor sets default_replication_factor a second time",
        ),
        ("cluster_secret = 5", "chronik.toml, line 1: cluster_secret: the value is no text"),
    ],
)
def test_a_mistake_gets_one_sentence_with_its_place(text: str, sentence: str, tmp_path: Path) -> None:
    # tomllib words some of the sentences, differently from release to release: then only the place counts.
    assert complaint(text, tmp_path).startswith(sentence)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("peers = 1", "chronik.toml, line 1: peers must be an array of tables, written [[peers]]"),
        ("peers = [1]", "chronik.toml, line 1: peers must be an array of tables, written [[peers]]"),
        ("peers = [{id = 1}]", "chronik.toml, line 1: peers[0] lacks kafka"),
        (PEERS + "wall = 1", "chronik.toml, line 14: peers[1].wall is not a setting; did you mean wal?"),
        (
            PEERS.replace("id = 2", "id = 1"),
            "chronik.toml, line 9: peers[1].id: 1 is already another peer's id",
        ),
        (
            PEERS.replace("id = 2", "id = '2'"),
            "chronik.toml, line 9: peers[1].id: '2' is no node id, 0 to 2147483647",
        ),
        (PEERS.replace(":9292", ""), "chronik.toml, line 11: peers[1].wal: 'localhost' is no host:port"),
        (PEERS.replace(":9292", ":0"), "chronik.toml, line 11: peers[1].wal: 'localhost:0' is no host:port"),
        (
            "node_id = 7\n" + PEERS,
            "chronik.toml, line 3: peers lists nodes 1, 2, but not this node's id 7",
        ),
    ],
)
def test_mistakes_among_the_peers(text: str, sentence: str, tmp_path: Path) -> None:
    assert complaint(text, tmp_path) == sentence


def test_a_missing_or_unreadable_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        load_settings({}, {}, tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_settings({}, {}, tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"bind = '\xff'")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_settings({}, {}, tmp_path / "latin.toml")


def test_a_bad_variable_is_an_error_and_an_unknown_one_a_warning() -> None:
    with pytest.raises(ConfigError, match="environment: CHRONIK_KAFKA_PORT: 'x' is no whole number"):
        load(env={"CHRONIK_KAFKA_PORT": "x"})
    (warning,) = load(env={"CHRONIK_WAL_PROFIL": "ultra", "PATH": "x"}).warnings
    assert "CHRONIK_WAL_PROFIL is not a setting" in warning
    assert "did you mean CHRONIK_WAL_PROFILE?" in warning


def test_an_empty_variable_is_not_set() -> None:
    assert load(env={"CHRONIK_KAFKA_PORT": ""}).origins["kafka_port"] == "default"


def test_one_file_serves_every_node_of_a_cluster(tmp_path: Path) -> None:
    resolved = load("replication_factor = 2\n" + PEERS, tmp_path=tmp_path, node_id="2", wal_port="7777")
    settings = resolved.settings
    assert [peer.id for peer in settings.peers] == [1, 2]
    assert (settings.kafka_port, settings.raft_port, settings.http_port) == (9093, 5002, 10002)
    assert settings.wal_port == 7777
    assert settings.advertise == Address("localhost", 9093)
    assert settings.default_replication_factor == 2
    assert resolved.origins["kafka_port"].endswith("line 9: peers[1]")


def test_listening_everywhere_without_an_advertised_name_warns() -> None:
    resolved = load(bind="0.0.0.0")
    assert resolved.settings.advertised(kafka_port=1) == Address(socket.gethostname(), 1)
    assert "--advertise" in resolved.warnings[0]
    named = load(bind="0.0.0.0", advertise="broker.example")
    assert named.settings.advertised(kafka_port=1) == Address("broker.example", 1)
    assert not named.warnings
    assert load(advertise="b:2").settings.advertised(kafka_port=1) == Address("b", 2)
    assert load(advertise="[::1]:2").settings.advertised(kafka_port=1) == Address("::1", 2)


def test_secrets_are_hidden_and_have_no_flag() -> None:
    resolved = load(env={"CHRONIK_CLUSTER_SECRET": "swordfish"})
    assert resolved.settings.cluster_secret == "swordfish"
    assert "swordfish" not in str(list(resolved.rows()))
    assert table()["cluster_secret"].flag is None


def test_every_default_obeys_its_own_rule() -> None:
    for setting in table().values():
        if setting.default is not None:
            assert setting.parse(setting.default, "default") == setting.default
        else:
            assert setting.optional


@pytest.mark.parametrize("text", ["1", "true", "YES", "on"])
def test_booleans_read_as_people_write_them(text: str) -> None:
    assert load(env={"CHRONIK_DISABLE_METADATA_WAL": text}).settings.disable_metadata_wal is True
    assert load(auto_create_topics="false").settings.auto_create_topics is False


toml_scalars = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(string.ascii_letters + string.digits + " .:-_/[]", max_size=20),
)


def as_toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)


@given(st.dictionaries(st.sampled_from([*table(), "peers", "kafka_prot"]), toml_scalars))
def test_any_file_is_either_taken_as_it_is_or_refused_in_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, object]
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.toml"
    file.write_text("".join(f"{key} = {as_toml(value)}\n" for key, value in values.items()))
    try:
        resolved = load_settings({}, {}, file)
    except ConfigError as error:
        assert "\n" not in str(error)
        return
    for key, value in values.items():
        got = getattr(resolved.settings, key)
        assert str(got).strip() == str(value).strip() or isinstance(got, Path | Address)
        assert "any.toml" in resolved.origins[key]


@given(st.binary(max_size=200))
def test_no_bytes_make_it_stumble(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "bytes.toml"
    file.write_bytes(data)
    try:
        load_settings({}, {}, file)
    except ConfigError as error:
        assert str(file) in str(error)


@given(st.sampled_from(list(table())), st.text(max_size=30))
def test_any_text_in_a_variable_is_parsed_or_refused(name: str, text: str) -> None:
    setting = table()[name]
    try:
        value = setting.parse(text, setting.env)
    except ConfigError:
        return
    assert isinstance(value, setting.kind)
    if setting.kind is int:
        assert setting.rule.minimum is not None
        assert setting.rule.maximum is not None
        assert setting.rule.minimum <= int(text) <= setting.rule.maximum


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("chronik.rfat=debug", "there is no module 'chronik.rfat'; did you mean chronik.raft?"),
        ("chronik.raft=debgu", "did you mean debug?"),
        ("debug", "'debug' is no MODULE=LEVEL"),
        ("json=debug", "there is no module 'json'"),
        ("chronik.raft.made_up=debug", "there is no module 'chronik.raft.made_up'"),
    ],
)
def test_a_wrong_log_level_is_one_sentence(given: str, told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        load(env={"CHRONIK_LOG": given})


def test_log_levels_by_module() -> None:
    found = parse_log_levels("chronik.raft=debug, chronik.metadata.store=WARNING,", "log")
    assert found == {"chronik.raft": "debug", "chronik.metadata.store": "warning"}
    with pytest.raises(ConfigError, match="there is no module"):
        parse_log_levels("chronik.raft.x\n2026 ERROR chronik=debug", "log")
