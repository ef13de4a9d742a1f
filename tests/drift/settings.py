"""Names of settings that a release of Kafka shares with the proxy.

Java keeps each string literal of a class in its constant pool (Java Virtual Machine Specification,
section 4.4), so that the names can be read without running the code.
"""

import re
import struct
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

_NAME: Final = re.compile(
    rb"(?:sasl|quota|connections|authorizer|ssl|max\.connection)[a-z0-9]*(?:\.[a-z0-9]+)+"
)
_UTF8: Final = 1
_SIZES: Final = {
    3: 4,  # Integer
    4: 4,  # Float
    5: 8,  # Long
    6: 8,  # Double
    7: 2,  # Class
    8: 2,  # String
    9: 4,  # Fieldref
    10: 4,  # Methodref
    11: 4,  # InterfaceMethodref
    12: 4,  # NameAndType
    15: 3,  # MethodHandle
    16: 2,  # MethodType
    17: 4,  # Dynamic
    18: 4,  # InvokeDynamic
    19: 2,  # Module
    20: 2,  # Package
}
"""Length of a constant after its tag, by tag; a Utf8 has its own length."""
_TWO_ENTRIES: Final = frozenset({5, 6})


def read_settings(jars: Sequence[Path]) -> frozenset[str]:
    """Read the names from the classes of some jars.

    Raises OSError, zipfile.BadZipFile, and ValueError for a class that cannot be understood.
    """
    names: set[str] = set()
    for jar in jars:
        with zipfile.ZipFile(jar) as archive:
            for name in archive.namelist():
                if name.startswith("org/apache/kafka/") and name.endswith(".class"):
                    try:
                        names.update(_names(archive.read(name)))
                    except (struct.error, KeyError) as error:
                        raise ValueError(f"{jar.name}: {name} is not a class: {error}") from error
    return frozenset(names)


def _names(content: bytes) -> Iterator[str]:
    for text in _texts(content):
        if _NAME.fullmatch(text):
            yield text.decode()


def _texts(content: bytes) -> Iterator[bytes]:
    (count,) = struct.unpack_from(">H", content, 8)
    at, index = 10, 1
    while index < count:
        (tag,) = struct.unpack_from(">B", content, at)
        at += 1
        if tag == _UTF8:
            (length,) = struct.unpack_from(">H", content, at)
            yield content[at + 2 : at + 2 + length]
            at += 2 + length
        else:
            at += _SIZES[tag]
        index += 2 if tag in _TWO_ENTRIES else 1
