import json
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.config import (
    Address,
    Config,
    Listener,
    PortRange,
    compare,
    from_mapping,
    json_schema,
    load,
)
from proxy.config.document import parse
from proxy.config.section import Section, described, keys, meanings, nested_section
from proxy.errors import ConfigError
from proxy.process.start import Changed, validate_change
from sasl.identity import Identity
from sasl.states import Enforcement
from tests.support.proxy_process import BASE, SIDECAR
from tests.support.tables import table

LISTENER = "listeners[0]"


def _two(one: str, other: str, name: str = "https://b") -> str:
    """Two issuers, with more settings of each."""
    common = "A: kafka, J: file:jwks.json"
    return f"- {{E: https://a, {common}, {one}}}\n- {{E: {name}, {common}, {other}}}"


def with_issuers(issuers: str) -> str:
    """A file whose listener has these, abbreviated."""
    names = {
        "E": "expected.issuer",
        "A": "expected.audience",
        "J": "jwks.endpoint.url",
        "P": "principal.prefix",
        "R": "principal.mapping.rules",
        "G": "groups.claim.name",
    }
    for short, name in names.items():
        issuers = re.sub(rf"([{{ ]){short}: ", rf"\1sasl.oauthbearer.{name}: ", issuers)
    items = "".join(f"      {line}\n" for line in issuers.splitlines())
    return f"""\
upstream: {{bootstrap.servers: 'a:1'}}
listeners:
  - name: clients
    address: 127.0.0.1:9300
    routing: sidecar
    sasl.enabled.mechanisms: [OAUTHBEARER]
    sasl.oauthbearer.issuers:
{items}"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "jwks.json").write_text('{"keys": []}')
    return tmp_path


def loaded(directory: Path, text: str) -> Config:
    file = directory / "config.yaml"
    file.write_text(text)
    return load(file)


def refusal(directory: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(directory, text)
    return str(caught.value)


def terms(listener: Listener, principal: str, mechanism: str) -> tuple[Enforcement, int]:
    found = listener.enforcement_policy().terms_for(Identity(principal), mechanism)
    return found.enforcement, found.max_reauth_ms


def changed(*replacements: tuple[str, str], text: str = BASE) -> str:
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new, 1)
    return text


def test_the_file_of_the_design_is_read(directory: Path) -> None:
    config = loaded(directory, BASE)
    (listener,) = config.listeners

    assert config.upstream.bootstrap_servers == (Address("127.0.0.1", 9092),)
    assert listener.address == Address("0.0.0.0", 9094)  # noqa: S104 - a value, not bound
    assert listener.broker_ports == PortRange(9100, 9199)
    assert listener.sasl_oauthbearer_expected_audience == ("kafka",)
    assert terms(listener, "User:a", "OAUTHBEARER") == (Enforcement.ENFORCE, 3_600_000)
    assert config.authorizer.mode == "off"
    assert config.authorizer.super_users == ("User:admin",)


def test_a_setting_needs_its_extra(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else loads it."""
    for name in ("users", "k.pem"):
        (directory / name).touch()
    monkeypatch.setitem(sys.modules, "bcrypt", None)
    loaded(directory, BASE)
    settings = "sasl.plain.htpasswd.file: users\n    security.protocol: SASL_SSL"
    plain = f"PLAIN]\n    {settings}\n    ssl.keystore.location: k.pem"
    with pytest.raises(ConfigError, match=r"file: needs bcrypt, the extra htpasswd: .* 'bcrypt"):
        loaded(directory, changed(("SCRAM-SHA-512]", plain)))


def test_relative_paths_are_relative_to_the_file(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy is started from anywhere."""
    (directory / "elsewhere").mkdir()
    monkeypatch.chdir(directory / "elsewhere")
    (directory / "config.yaml").write_text(BASE)

    config = load(Path("..") / "config.yaml")

    jwks = config.listeners[0].jwks_source()
    assert isinstance(jwks, Path)
    assert jwks.resolve() == directory / "jwks.json"
    assert config.store.path().resolve() == directory / "state.db"
    assert config.events.directory is not None
    assert config.events.directory.resolve() == directory / "events"


def test_defaults_are_relative_to_the_file_too(directory: Path) -> None:
    config = loaded(directory, changed(("store:\n  url: sqlite:state.db\n", "")))
    assert config.store.path() == directory / "state.db"


def test_absolute_paths_stay(directory: Path) -> None:
    absolute = directory / "jw ks.json"
    absolute.write_text("{}")
    text = changed(
        ("file:jwks.json", absolute.as_uri()), ("sqlite:state.db", f"sqlite:{directory}/x.db")
    )
    config = loaded(directory, text)
    assert config.listeners[0].jwks_source() == absolute
    assert config.store.path() == directory / "x.db"


def test_kafkas_defaults_are_kafkas(directory: Path) -> None:
    """The numbers of Kafka 4.1's documentation."""
    config = loaded(directory, "upstream: {bootstrap.servers: 'b:1'}\nlisteners:\n" + SIDECAR)
    (listener,) = config.listeners
    assert (config.max_connections_per_ip, config.address_limits()) == (2**31 - 1, {})
    assert listener.connections_max_reauth_ms == 0
    assert listener.connections_max_idle_ms == 600_000
    assert listener.sasl_server_max_receive_size == 524_288
    assert listener.socket_request_max_bytes == 104_857_600
    assert listener.connection_failed_authentication_delay_ms == 100
    assert listener.sasl_oauthbearer_clock_skew_seconds == 30
    assert listener.sasl_oauthbearer_jwks_endpoint_refresh_ms == 3_600_000
    assert listener.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms == 100
    assert listener.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms == 10_000
    assert listener.sasl_oauthbearer_scope_claim_name == "scope"
    assert listener.sasl_oauthbearer_sub_claim_name == "sub"


@pytest.mark.parametrize(("old", "new", "problem"), table(__file__, "mistakes"))
def test_a_mistake_is_one_line_with_the_keys_path(
    directory: Path, old: str, new: str, problem: str
) -> None:
    """Each row is a replacement in BASE and the reported line; DIR is the file's directory."""
    assert refusal(directory, changed((old, new))) == problem.replace("DIR", str(directory))


@pytest.mark.parametrize(("override", "problem"), table(__file__, "mistakes_of_overrides"))
def test_overrides_that_say_nothing_or_too_much(
    directory: Path, override: str, problem: str
) -> None:
    """A row has one item of reauth.overrides or two, and what follows the list's path."""
    text = changed(("authorizer:", f"    reauth.overrides: [{override}]\nauthorizer:"))
    assert refusal(directory, text) == f"{LISTENER}.reauth.overrides{problem}"


@pytest.mark.parametrize(("issuers", "problem"), table(__file__, "mistakes_of_issuers"))
def test_issuers_that_are_not_told_apart(directory: Path, issuers: str, problem: str) -> None:
    expected = f"{LISTENER}.sasl.oauthbearer.issuers{problem}".replace("DIR", str(directory))
    assert refusal(directory, with_issuers(issuers)).startswith(expected)


def test_issuers_are_checked_before_their_mechanism_is_enabled(directory: Path) -> None:
    """A reload compares them by name."""
    text = with_issuers("- {A: kafka, J: file:jwks.json}").replace("OAUTHBEARER", "SCRAM-SHA-256")
    key = f"{LISTENER}.sasl.oauthbearer.issuers[0].sasl.oauthbearer.expected.issuer"
    assert refusal(directory, text).startswith(f"{key}: is required")


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("expected.issuer", "https://a", "set it for each issuer"),
        ("jwks.endpoint.url", "file:jwks.json", "set it for each issuer"),
        ("groups.claim.name", "groups", "set it for each issuer"),
        ("allow.unverified.issuer", "true", "`iss` selects the issuer"),
    ],
)
def test_what_each_issuer_has_is_not_given_for_all(
    directory: Path, key: str, value: str, why: str
) -> None:
    text = with_issuers(_two("P: ''", "P: 'b:'")) + f"    sasl.oauthbearer.{key}: {value}\n"
    problem = f"has no meaning with sasl.oauthbearer.issuers: {why}"
    assert refusal(directory, text) == f"{LISTENER}.sasl.oauthbearer.{key}: {problem}"


@pytest.mark.parametrize(
    ("one", "other"),
    [("P: ''", "P: 'b:'"), ("P: 'a:'", "P: 'b:'"), ("P: '', R: DEFAULT", "P: '', R: DEFAULT")],
)
def test_issuers_whose_names_differ_or_are_made_by_rules(
    directory: Path, one: str, other: str
) -> None:
    (listener,) = loaded(directory, with_issuers(_two(one, other))).listeners
    assert list(listener.issuers_by_name()) == ["https://a", "https://b"]


def test_a_reload_changes_issuers_but_not_which_there_are(directory: Path) -> None:
    before = loaded(directory, with_issuers(_two("P: ''", "P: 'b:'")))
    place = "listeners[clients].sasl.oauthbearer.issuers"
    issuer_a = "- {E: https://a, A: kafka, J: file:jwks.json, P: 'c:', G: roles}"
    fewer = _reload(directory, before, before, with_issuers(issuer_a))
    of_a = (
        f"{place}[https://a].sasl.oauthbearer.groups.claim.name",
        f"{place}[https://a].sasl.oauthbearer.principal.prefix",
    )
    assert (fewer.needs_restart, fewer.reloadable) == ((), (*of_a, f"{place}[https://b]"))
    in_effect = _in_effect(fewer)
    again = _reload(directory, before, in_effect, with_issuers(_two("P: ''", "P: 'b:'")))
    assert again.reloadable == fewer.reloadable, "its keys are still read"
    assert _in_effect(again) == before
    other = _two("P: 'c:', G: roles", "P: ''", "https://c")
    renamed = _reload(directory, before, before, with_issuers(other))
    assert renamed.needs_restart == (*of_a, f"{place}[https://b]", f"{place}[https://c]")
    assert renamed.reloadable == ()
    assert _in_effect(renamed) == before


_ONE = """\
    sasl.oauthbearer.expected.issuer: https://a
    sasl.oauthbearer.expected.audience: kafka
    sasl.oauthbearer.jwks.endpoint.url: file:jwks.json
"""


@pytest.mark.parametrize(
    ("mechanism", "tokens"), [("OAUTHBEARER", _ONE), ("SCRAM-SHA-256", _ONE), ("SCRAM-SHA-256", "")]
)
def test_tokens_stay_as_they_were_until_the_restart(
    directory: Path, mechanism: str, tokens: str
) -> None:
    """Without issuers all would be refused, and without an audience any accepted."""
    several = with_issuers(_two("P: ''", "P: 'b:'"))
    before = loaded(directory, several)
    head, _, _ = several.partition("    sasl.oauthbearer.issuers:")
    text = head.replace("OAUTHBEARER", mechanism) + tokens
    changed = _reload(directory, before, before, text)
    assert changed.reloadable == ()
    issuers = _in_effect(changed).listeners[0].issuers_by_name()
    assert issuers == before.listeners[0].issuers_by_name()


def _reload(directory: Path, start: Config, before: Config, text: str) -> Changed:
    path = directory / "reloaded.yaml"
    path.write_text(text)
    return validate_change(path, pickle.dumps(start), pickle.dumps(before))


def _in_effect(changed: Changed) -> Config:
    config: Config = pickle.loads(changed.config)  # noqa: S301 - made by the test
    return config


def test_overrides_and_mechanisms_reach_the_policy(directory: Path) -> None:
    config = loaded(
        directory,
        changed(
            (
                "    reauth.enforcement: enforce\n",
                "    reauth.enforcement: observe\n"
                "    oauthbearer.connections.max.reauth.ms: 1\n"
                "    scram-sha-256.connections.max.reauth.ms: 2\n"
                "    reauth.overrides:\n"
                "      - {principal: 'User:alice', reauth.enforcement: enforce}\n"
                "      - {principal.prefix: 'User:al', connections.max.reauth.ms: 5}\n",
            )
        ),
    )
    (listener,) = config.listeners
    assert terms(listener, "User:alice", "OAUTHBEARER") == (Enforcement.ENFORCE, 5)
    assert terms(listener, "User:bob", "OAUTHBEARER") == (Enforcement.OBSERVE, 1)
    assert terms(listener, "User:bob", "SCRAM-SHA-256") == (Enforcement.OBSERVE, 2)
    assert terms(listener, "User:bob", "SCRAM-SHA-512") == (Enforcement.OBSERVE, 3_600_000)


def test_a_sidecar_has_one_broker(directory: Path) -> None:
    text = "upstream: {bootstrap.servers: ['a:1', 'b:2']}\nlisteners:\n" + SIDECAR
    expected = "upstream.bootstrap.servers: must be one broker"
    assert refusal(directory, text).startswith(expected)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        *table(__file__, "no_configurations"),
        ("[" * 100_000, "line 1: is nested too deeply"),
        ("a: '" + "x" * 1_048_576 + "'", "is larger than 1048576 bytes"),
    ],
)
def test_yaml_that_is_not_a_configuration(directory: Path, text: str, problem: str) -> None:
    """Duplicate keys would hide a setting; aliases, tags and nesting are ways to attack."""
    assert refusal(directory, text) == problem


def test_text_that_is_not_utf_8(directory: Path) -> None:
    file = directory / "config.yaml"
    file.write_bytes(b"a: \xff")
    with pytest.raises(ConfigError, match=r"^is not UTF-8 text$"):
        load(file)


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_a_file_that_cannot_be_read(directory: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"^cannot be read: "):
        load(directory / name)


def test_words_and_numbers_are_those_of_yaml_1_2() -> None:
    """YAML 1.1 reads `off` as false, 010 as eight and 1:30 as ninety."""
    assert parse(b"{a: off, b: 010, c: 1:30, d: yes, e: true, f: ~, g: 1_000, h: 2020-01-01}") == {
        "a": "off",
        "b": 10,
        "c": "1:30",
        "d": "yes",
        "e": True,
        "f": None,
        "g": "1_000",
        "h": "2020-01-01",
    }


@pytest.mark.parametrize(
    "url", ["https://user:hunter2@idp/jwks", "https://user:hunter2@[bad/jwks", "//a:hunter2@h"]
)
def test_a_password_in_a_url_is_refused_and_not_repeated(directory: Path, url: str) -> None:
    """Error lines end in logs."""
    assert "hunter2" not in refusal(directory, changed(("file:jwks.json", f"'{url}'")))


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
VALUES = parse(BASE.encode())
paths = st.sampled_from(
    [("listeners", 0, key) for key in VALUES["listeners"][0]]
    + [(name, key) for name in ("upstream", "store", "events", "http") for key in VALUES[name]]
    + [("upstream",), ("listeners",), ("listeners", 0), ("workers",), ("store",)]
)


@given(path=paths, value=values)
def test_any_value_is_accepted_or_one_printable_line(path: tuple[Any, ...], value: object) -> None:
    """No value, however odd, is a traceback, or a line that steers a terminal."""
    mapping = parse(BASE.encode())
    parent: Any = mapping
    for part in path[:-1]:
        parent = parent[part]
    parent[path[-1]] = value
    try:
        from_mapping(mapping, base_dir=Path("/nowhere"))
        problem = ""
    except ConfigError as error:
        problem = str(error)
    assert problem.isprintable()
    assert len(problem) < 400


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:1", Address("127.0.0.1", 1)),
        ("[::1]:65535", Address("::1", 65535)),
        ("kafka-0.kafka.svc.cluster.local:9092", Address("kafka-0.kafka.svc.cluster.local", 9092)),
        ("localhost:0", Address("localhost", 0)),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert Address.parse(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    ["", ":1", "a:", "a:-1", "a:+1", "a:65536", "a:\uff11", "a:1:2", "[a]:1", "a b:1", "a/b:1", 5],
)
def test_not_addresses(text: object) -> None:
    with pytest.raises(ValueError, match=r"^must "):
        Address.parse(text)


def test_broker_ports() -> None:
    ports = PortRange.parse("9100-9102")
    assert [ports.port_of(broker_id) for broker_id in (-1, 0, 2, 3)] == [None, 9100, 9102, None]
    assert list(ports) == [9100, 9101, 9102]
    assert (9102 in ports, 9103 in ports, len(ports), str(ports)) == (True, False, 3, "9100-9102")


def test_broker_ports_by_id(directory: Path) -> None:
    text = BASE.replace("9100-9199", "{1001: 9101, '1003': 9100}")
    (listener,) = (one for one in loaded(directory, text).listeners if one.broker_ports)
    ports = listener.broker_ports
    assert ports is not None
    assert [ports.port_of(broker_id) for broker_id in (1001, 1002, 1003)] == [9101, None, 9100]
    assert list(ports) == [9101, 9100]
    assert (9101 in ports, 9102 in ports, len(ports)) == (True, False, 2)
    assert str(ports) == "1001: 9101, 1003: 9100"
    assert listener.model_dump(by_alias=True)["broker.ports"] == {1001: 9101, 1003: 9100}


def test_the_same_file_has_no_changes(directory: Path) -> None:
    changes = compare(loaded(directory, BASE), loaded(directory, BASE))
    assert (changes.reloadable, changes.needs_restart) == ((), ())


def test_changes_are_told_apart(directory: Path) -> None:
    old = loaded(directory, BASE)
    new = loaded(
        directory,
        changed(
            ("connections.max.reauth.ms: 3600000", "connections.max.reauth.ms: 5"),
            ("enforcement: enforce", "enforcement: probe"),
            ("[kafka]", "[kafka, other]"),
            ("[User:admin]", "[]"),
            ("9100-9199", "9100-9150"),
            ("directory: events", "directory: other"),
            ("workers: 1", "workers: 2"),
            ("authorizer:", SIDECAR + "authorizer:"),
        ),
    )
    changes = compare(old, new)
    assert sorted(changes.reloadable) == [
        "authorizer.super.users",
        "listeners[clients].connections.max.reauth.ms",
        "listeners[clients].reauth.enforcement",
        "listeners[clients].sasl.oauthbearer.expected.audience",
    ]
    assert sorted(changes.needs_restart) == [
        "events.directory",
        "listeners[clients].broker.ports",
        "listeners[sidecar]",
        "workers",
    ]


def test_the_order_of_listeners_means_nothing(directory: Path) -> None:
    base = parse(changed(("authorizer:", SIDECAR + "authorizer:")).encode())
    turned = {**base, "listeners": base["listeners"][::-1]}
    changes = compare(
        from_mapping(base, base_dir=directory), from_mapping(turned, base_dir=directory)
    )
    assert (changes.reloadable, changes.needs_restart) == ((), ())


def _sections(section: type[Section]) -> set[type[Section]]:
    found = {section}
    for _, _, field in keys(section):
        if nested := nested_section(field.annotation):
            found |= _sections(nested)
    return found


def test_every_setting_is_documented() -> None:
    """The reference is made from the model."""
    for section in _sections(Config):
        assert section.__doc__
        for key, name, field in keys(section):
            assert described(field), f"{section.__name__} {key}"
            assert meanings(section).get(name) or nested_section(field.annotation), key
            assert re.fullmatch(r"[a-z0-9.-]+", key)


def test_the_schema_names_every_key() -> None:
    text = json.dumps(json_schema())
    for section in _sections(Config):
        for key, _, _ in keys(section):
            assert f'"{key}"' in text
    assert json_schema()["additionalProperties"] is False


def test_lists_may_be_written_as_kafka_writes_them(directory: Path) -> None:
    """An operator pastes `bootstrap.servers` from a client's properties."""
    config = loaded(directory, changed(("127.0.0.1:9092", "one:9092, two:9093")))
    assert config.upstream.bootstrap_servers == (Address("one", 9092), Address("two", 9093))


@pytest.mark.parametrize(
    ("written", "limits"),
    [
        ("''", {}),
        ("'127.0.0.1:200, 10.0.0.7:0'", {"127.0.0.1": 200, "10.0.0.7": 0}),
        ("['[2001:DB8::1]:5', '::1:6']", {"2001:db8::1": 5, "::1": 6}),
        ("'::ffff:10.0.0.1:6'", {"10.0.0.1": 6}),
    ],
)
def test_limits_of_addresses(directory: Path, written: str, limits: dict[str, int]) -> None:
    overrides = f"max.connections.per.ip.overrides: {written}"
    assert loaded(directory, changed(("workers: 1", overrides))).address_limits() == limits
