"""Base of all configuration sections: frozen, strict about keys, documented."""

import ast
import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_args

from proxy import declarations
from proxy.declarations import BaseModel, ConfigDict, Field, model_validator

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

KAFKA_BROKER = "Kafka (broker)"
KAFKA_CLIENT = "Kafka (client)"
LIBRDKAFKA = "librdkafka"
OWN = "reauth-proxy"


class KeyProblemError(ValueError):
    """A check across settings failed; `key` is the section's setting to correct."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(problem)
        self.key = key


Problems = Iterator[tuple[str, str]]
"""Keys of settings to correct, each with the problem in words."""
S = TypeVar("S", bound="Section")


def check(problems: Callable[[S], Problems]) -> Any:
    """Declare a method that yields contradictions between settings; the first one is reported."""

    @wraps(problems)
    def refuse(section: S) -> S:
        for key, problem in problems(section):
            raise KeyProblemError(key, problem)
        return section

    return model_validator(mode="after")(refuse)


class Section(BaseModel):
    """Mapping in the file. Keys are the attributes' names with dots: Kafka's own names."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        defer_build=True,  # only the validator of the whole file is used, which contains the others
        validate_default=True,
        alias_generator=lambda name: name.replace("_", "."),
    )

    @classmethod
    def key_of(cls, name: str) -> str:
        """Return the key of a setting by the attribute's name."""
        return str(cls.model_fields[name].alias)

    def given(self, names: Iterable[str], problem: str) -> Problems:
        """Yield the problem of each of these settings, by attribute, that the file sets."""
        for name in sorted(self.model_fields_set.intersection(names)):
            yield self.key_of(name), problem


class Unit(str):
    """Unit of a number, among the annotations of its type."""


class Described(NamedTuple):
    """Metadata of a setting, in addition to its type, default and documentation."""

    source: str
    """The program from which the setting has its name, default and meaning."""
    reloadable: bool
    """True if a reload may change it."""
    unit: str | None
    """None if the type has the unit, or values have no unit."""


def setting(
    default: Any = ...,
    *,
    source: str = OWN,
    reloadable: bool = False,
    unit: str | None = None,
    alias: str | None = None,
) -> Any:
    """Declare a setting; the string below it is its documentation (see `meanings`)."""
    if not declarations.validates:
        return None
    field: FieldInfo = Field(default, alias=alias)
    field.metadata.append(Described(source, reloadable, unit))
    return field


def described(field: "FieldInfo") -> Described | None:
    """Return the metadata that `setting` added to a field, with the unit; None for a section."""
    known = next((item for item in field.metadata if isinstance(item, Described)), None)
    if known is None or known.unit:
        return known
    return known._replace(unit=_unit((field.annotation, *field.metadata)))


def _unit(annotations: Iterable[Any]) -> str | None:
    for one in annotations:
        if isinstance(one, Unit):
            return one
        if (found := _unit(get_args(one))) is not None:
            return found
    return None


def keys(section: type[Section]) -> Iterator[tuple[str, str, "FieldInfo"]]:
    """Yield each key of a section, with the attribute's name and its field."""
    for name, field in section.model_fields.items():
        assert field.alias is not None
        yield field.alias, name, field


def nested_section(annotation: Any) -> type[Section] | None:
    """Return the class of a field's section, or of its list of sections; None for other fields."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((found for part in get_args(annotation) if (found := nested_section(part))), None)


@cache
def meanings(section: type[Section]) -> dict[str, str]:
    """Return the docstrings of a section's settings, by attribute, including inherited ones."""
    found: dict[str, str] = {}
    for declaring in reversed(section.__mro__):
        if issubclass(declaring, Section):
            found.update(strings_below(declaring))
    return found


def strings_below(declared: type) -> Iterator[tuple[str, str]]:
    """Yield each attribute of a class that has a docstring below it, with the docstring."""
    (declaration,) = ast.parse(inspect.getsource(declared)).body
    assert isinstance(declaration, ast.ClassDef)
    for statement, below in zip(declaration.body, declaration.body[1:], strict=False):
        match statement, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, inspect.cleandoc(text)
