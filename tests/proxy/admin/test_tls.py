"""`ssl.*` of a properties file: PEM in files and in properties, PKCS12, and what is refused."""

import ssl
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.admin import ClientSettings, read_client_properties
from proxy.errors import ConfigError
from proxy.net.tls_material import read_pkcs12
from tests.support.certificates import HOUR, Authority
from tests.support.tls import (
    PASSWORD,
    context,
    escaped,
    keystore,
    server_context,
    trusting,
    truststore,
    value,
    written,
)


def showing(path: Path, kind: str = "PEM") -> tuple[str, ...]:
    return (f"ssl.keystore.type={kind}", f"ssl.keystore.location={path}")


def shake_hands(
    client: ssl.SSLContext, server: ssl.SSLContext, host: str = "localhost"
) -> tuple[str | None, int | None]:
    """The version of TLS, and the serial number that the server was shown. Raises ssl.SSLError."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(down, up, server_hostname=host)
    theirs = server.wrap_bio(up, down, server_side=True)
    waiting = [ours, theirs]
    for _ in range(10):
        for one in tuple(waiting):
            try:
                one.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(one)
    assert waiting == []
    shown = theirs.getpeercert()
    return theirs.version(), int(str(shown["serialNumber"]), 16) if shown else None


AUTHORITY, OTHERS = Authority(), Authority("others")
SERVER = server_context(AUTHORITY.issue("broker"))
UNTRUSTED = server_context(OTHERS.issue("broker"))
WITH_CLIENTS = server_context(AUTHORITY.issue("broker"), clients_of=AUTHORITY)
ME = AUTHORITY.issue("me")
ENCRYPTED = ME.encrypted("key-secret")
KEY, CERTIFICATES = ENCRYPTED.split(b"-----END ENCRYPTED PRIVATE KEY-----\n")
KEY += b"-----END ENCRYPTED PRIVATE KEY-----\n"


@pytest.fixture
def trust(tmp_path: Path) -> tuple[str, ...]:
    return trusting(AUTHORITY.write(tmp_path))


# --- who is trusted


@pytest.mark.parametrize("form", ["file", "folded", "escaped", "PKCS12", "JKS", "pkcs12"])
def test_whoever_comes_from_the_truststore_is_trusted_and_nobody_else(
    tmp_path: Path, form: str
) -> None:
    """Java distinguishes JKS and PKCS12 by the file's content: JKS is the default of the type."""
    pem = AUTHORITY.certificate
    if form == "file":
        lines = trusting(AUTHORITY.write(tmp_path))
    elif form in ("folded", "escaped"):
        text = value(pem) if form == "folded" else escaped(pem)
        lines = ("ssl.truststore.type=PEM", f"ssl.truststore.certificates={text}")
    else:
        store = written(tmp_path / "trust.p12", truststore(pem))
        lines = (*trusting(store, form), f"ssl.truststore.password={PASSWORD}")
    found = context(tmp_path, *lines)
    shake_hands(found, SERVER)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"self-signed|issuer"):
        shake_hands(found, UNTRUSTED)


def test_several_authorities(tmp_path: Path) -> None:
    both = AUTHORITY.certificate + OTHERS.certificate
    pem = written(tmp_path / "both.pem", b"# of theirs\n" + both)
    store = written(tmp_path / "both.p12", truststore(AUTHORITY.certificate, OTHERS.certificate))
    for lines in (
        trusting(pem),
        ("ssl.truststore.type=PEM", f"ssl.truststore.certificates={value(both)}"),
        (*trusting(store, "PKCS12"), f"ssl.truststore.password={PASSWORD}"),
    ):
        for server in (SERVER, UNTRUSTED):
            shake_hands(context(tmp_path, *lines), server)


def test_without_a_truststore_the_systems_authorities_are_trusted(tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(context(tmp_path), SERVER)


# --- what is shown


@pytest.mark.parametrize("form", ["file", "encrypted", "folded", "escaped", "PKCS12", "JKS"])
def test_our_certificate_is_shown(tmp_path: Path, trust: tuple[str, ...], form: str) -> None:
    password = "ssl.key.password=key-secret"
    inline = "ssl.keystore.type=PEM\nssl.keystore.key={}\nssl.keystore.certificate.chain={}"
    if form in ("file", "encrypted"):
        pem = ME.pem if form == "file" else ENCRYPTED
        lines = (*showing(written(tmp_path / "me.pem", pem)), password)
    elif form == "folded":
        lines = (inline.format(value(KEY), value(CERTIFICATES)), password)
    elif form == "escaped":
        lines = (inline.format(escaped(ME.key), escaped(ME.certificate)),)
    else:
        store = written(tmp_path / "me.p12", keystore(ME, AUTHORITY.certificate))
        lines = (*showing(store, form), f"ssl.keystore.password={PASSWORD}")
    _, shown = shake_hands(context(tmp_path, *trust, *lines), WITH_CLIENTS)
    assert shown == ME.serial


def test_none_is_shown_where_there_is_none(tmp_path: Path, trust: tuple[str, ...]) -> None:
    with pytest.raises(ssl.SSLError, match=r"RETURN_A_CERTIFICATE"):
        shake_hands(context(tmp_path, *trust), WITH_CLIENTS)


def test_a_chain_is_shown_from_the_bottom_to_the_top() -> None:
    """TLS 1.2 has it in this order; the file in any, with others that nobody asked for."""
    middle, leaf = AUTHORITY.issue("middle", ()), Authority("middle").issue("leaf")
    found = read_pkcs12(
        keystore(leaf, OTHERS.certificate, AUTHORITY.certificate, middle.certificate), PASSWORD
    )
    assert found.chain == leaf.certificate + middle.certificate + AUTHORITY.certificate
    assert found.key.startswith(b"-----BEGIN PRIVATE KEY-----")
    assert "PRIVATE" not in repr(found)


def test_an_expired_certificate_is_for_the_broker_to_refuse(
    tmp_path: Path, trust: tuple[str, ...]
) -> None:
    """Its clock counts, not ours."""
    old = AUTHORITY.issue("me", begins=-2 * HOUR, ends=-HOUR)
    found = context(tmp_path, *trust, *showing(written(tmp_path / "old.pem", old.pem)))
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        shake_hands(found, WITH_CLIENTS)


# --- how it is spoken


def test_the_certificate_must_be_for_the_host_unless_told_otherwise(
    tmp_path: Path, trust: tuple[str, ...]
) -> None:
    key = "ssl.endpoint.identification.algorithm"
    for line in ("", f"{key}=https", f"{key}=HTTPS"):
        with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
            shake_hands(context(tmp_path, *trust, line), SERVER, "elsewhere")
    anybody = context(tmp_path, *trust, f"{key}=")
    shake_hands(anybody, SERVER, "elsewhere")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(anybody, UNTRUSTED, "elsewhere")


@pytest.mark.parametrize(
    ("enabled", "spoken"),
    [("TLSv1.2", "TLSv1.2"), ("TLSv1.2, TLSv1.3", "TLSv1.3"), ("TLSv1.3", "TLSv1.3"), ("", None)],
)
def test_versions(tmp_path: Path, trust: tuple[str, ...], enabled: str, spoken: str | None) -> None:
    found = context(tmp_path, *trust, f"ssl.enabled.protocols={enabled}")
    assert shake_hands(found, SERVER)[0] == (spoken or "TLSv1.3")


# --- mistakes


OUR_KEY, OUR_CHAIN = "ssl.keystore.key", "ssl.keystore.certificate.chain"
TRUSTED, TRUSTED_FILE = "ssl.truststore.certificates", "ssl.truststore.location"
OUR_FILE, IDENTIFIED = "ssl.keystore.location", "ssl.endpoint.identification.algorithm"
SECRET_KEY = f"{OUR_KEY}=-----BEGIN PRIVATE KEY-----c2VjcmV0-----END PRIVATE KEY-----"
OTHER_KEY = f"{OUR_KEY}={escaped(AUTHORITY.issue('other').key)}"
CHAIN, WRONG = f"{OUR_CHAIN}={escaped(ME.certificate)}", "ssl.key.password=secret"
PEM_KEYS, PEM_TRUST = "ssl.keystore.type=PEM", "ssl.truststore.type=PEM"


@pytest.mark.parametrize(
    ("lines", "key", "problem"),
    [
        (["ssl.enabled.protocols=TLSv1.1"], "ssl.enabled.protocols", "TLSv1.2, TLSv1.3"),
        ([f"{IDENTIFIED}=secret"], IDENTIFIED, "https or empty"),
        (["ssl.truststore.type=secret", f"{TRUSTED_FILE}=x"], TRUSTED_FILE, "cannot be read"),
        ([f"{TRUSTED}=secret"], "ssl.truststore.type", f"PEM with {TRUSTED}"),
        ([PEM_TRUST, f"{TRUSTED}=secret"], TRUSTED, "holds no certificate in PEM"),
        (
            [PEM_TRUST, f"{TRUSTED}=secret", f"{TRUSTED_FILE}=x"],
            TRUSTED,
            "give either this or ssl.",
        ),
        ([PEM_KEYS, SECRET_KEY], OUR_KEY, "give both .*"),
        ([PEM_KEYS, CHAIN], OUR_CHAIN, "give both .*"),
        ([PEM_KEYS, SECRET_KEY, CHAIN], OUR_KEY, "cannot be used"),
        ([PEM_KEYS, f"{OUR_KEY}=secret", CHAIN], OUR_KEY, "no private key"),
        ([PEM_KEYS, SECRET_KEY, f"{OUR_CHAIN}=secret"], OUR_CHAIN, "holds no certificate"),
        ([PEM_KEYS, OTHER_KEY, CHAIN], OUR_KEY, "does not belong to the certificate"),
        (
            [PEM_KEYS, f"{OUR_KEY}={escaped(KEY)}", CHAIN],
            OUR_KEY,
            "encrypted: set ssl.key.password",
        ),
        ([PEM_KEYS, f"{OUR_KEY}={value(KEY)}", CHAIN, WRONG], OUR_KEY, "cannot be decrypted"),
        ([f"{OUR_FILE}={escaped(ME.key)}"], OUR_FILE, "File name too long|No such file"),
        ([f"{OUR_FILE}=\\u0000secret"], OUR_FILE, "is not a path"),
    ],
)
def test_mistakes_name_the_key_and_no_secret(
    tmp_path: Path, lines: list[str], key: str, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        context(tmp_path, *lines)
    assert caught.value.path == key
    said = str(caught.value)
    assert "secret" not in said
    assert "BEGIN" not in said
    assert "\n" not in said


JKS = b"\xfe\xed\xfe\xed\0\0\0\2\0\0\0\1"
HALF = ME.pem[:-40]


@pytest.mark.parametrize(
    ("data", "kind", "problem"),
    [
        (b"", "PEM", "holds no certificate"),
        (b"secret", "PEM", "holds no certificate"),
        (HALF, "PEM", "cut off"),
        (JKS, "JKS", "keytool -importkeystore .* -deststoretype PKCS12"),
        (JKS, "PKCS12", "is a JKS keystore"),
        (JKS, "PEM", "is a JKS keystore"),
        (ME.pem, "PKCS12", "is PKCS12, but the file is PEM"),
        (ME.pem, "", "is JKS, but the file is PEM"),
        (keystore(ME), "PEM", "is PEM, but the file is PKCS12"),
        (keystore(ME)[:-40], "PKCS12", "is not a PKCS12 file, or"),
        (b"\x30\x80" + bytes(1000), "PKCS12", "is not a PKCS12 file, or"),
        (ME.pem, "BCFKS", "must be PEM or PKCS12"),
    ],
)
@pytest.mark.parametrize("store", ["truststore", "keystore"])
def test_files_that_are_not_what_they_should_be(
    tmp_path: Path, data: bytes, kind: str, problem: str, store: str
) -> None:
    file = written(tmp_path / "store", data)
    lines = (f"ssl.{store}.type={kind}", f"ssl.{store}.location={file}")
    with pytest.raises(ConfigError, match=problem) as caught:
        context(tmp_path, *lines, f"ssl.{store}.password={PASSWORD}")
    assert caught.value.path in (f"ssl.{store}.location", f"ssl.{store}.type")
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("store", ["truststore", "keystore"])
def test_paths_that_lead_astray(tmp_path: Path, store: str) -> None:
    """A directory, nothing, more than fits the memory, and without end."""
    huge = tmp_path / "huge"
    with huge.open("wb") as file:
        file.truncate(100_000_000)
    for path, problem in (
        (tmp_path, "Is a directory"),
        (tmp_path / "missing", "No such file"),
        (huge, "is larger than 4194304 bytes"),
        (Path("/dev/zero"), "is larger than 4194304 bytes"),
    ):
        with pytest.raises(ConfigError, match=problem) as caught:
            context(tmp_path, f"ssl.{store}.type=PEM", f"ssl.{store}.location={path}")
        assert caught.value.path == f"ssl.{store}.location"


@pytest.mark.parametrize("password", ["", "ssl.keystore.password=secret"])
def test_a_keystore_that_does_not_open(tmp_path: Path, password: str) -> None:
    store = written(tmp_path / "me.p12", keystore(ME))
    with pytest.raises(ConfigError, match=r"or ssl.keystore.password is not its password"):
        context(tmp_path, *showing(store, "PKCS12"), password)


def test_stores_of_the_wrong_kind(tmp_path: Path) -> None:
    """Java trusts the certificate of a key alone, without those above it, which look the same."""
    keys = written(tmp_path / "me.p12", keystore(ME, OTHERS.certificate))
    with pytest.raises(ConfigError, match="must contain no private key"):
        context(tmp_path, *trusting(keys, "PKCS12"), f"ssl.truststore.password={PASSWORD}")
    trust = written(tmp_path / "trust.p12", truststore(AUTHORITY.certificate))
    with pytest.raises(ConfigError, match="must contain a private key with its certificate"):
        context(tmp_path, *showing(trust, "PKCS12"), f"ssl.keystore.password={PASSWORD}")
    with pytest.raises(ConfigError, match="holds no private key in PEM"):
        context(tmp_path, *showing(AUTHORITY.write(tmp_path)))


def test_an_encrypted_file_without_a_password_asks_nobody(tmp_path: Path) -> None:
    """OpenSSL would ask the terminal, and a script would hang."""
    file = written(tmp_path / "me.pem", ENCRYPTED)
    with pytest.raises(ConfigError, match=r"encrypted: set ssl.key.password"):
        context(tmp_path, *showing(file))
    with pytest.raises(ConfigError, match=r"cannot be decrypted with ssl.key.password"):
        context(tmp_path, *showing(file), "ssl.key.password=wrong")


def test_without_tls_nothing_of_it_is_looked_at(tmp_path: Path) -> None:
    """As by Kafka's tools: the file may have been written for both."""
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=PLAINTEXT\nssl.truststore.location=missing\n")
    assert read_client_properties(file) == ClientSettings()


STORE = keystore(ME, AUTHORITY.certificate)


@given(
    position=st.integers(0, len(STORE) - 1),
    byte=st.integers(0, 255),
    length=st.integers(0, len(STORE)),
)
def test_damaged_pkcs12_is_an_error_of_ours(position: int, byte: int, length: int) -> None:
    """Never a crash, never another exception."""
    damaged = bytearray(STORE)
    damaged[position] = byte
    for data in (bytes(damaged), bytes(damaged[:length])):
        try:
            found = read_pkcs12(data, PASSWORD)
        except ValueError:
            continue
        assert found.key
