"""Base of all configuration sections: frozen, strict about keys, documented."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, get_args

from proxy import declarations
from proxy.declarations import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo
import ast
import inspect
from functools import cache

KAFKA_BROKER = "Kafka (broker)"
KAFKA_CLIENT = "Kafka (client)"
LIBRDKAFKA = "librdkafka"
OWN = "reauth-proxy"


class KeyProblemError(ValueError):
    """A check across settings failed; `key` is the section's setting to correct."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(problem)
        self.key = key


class Section(BaseModel):
    """Mapping in the file. Keys are the attributes' names with dots: Kafka's own names."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        alias_generator=lambda name: name.replace("_", "."),
    )


def setting(
    default: Any = ...,
    *,
    source: str,
    reloadable: bool = False,
    unit: str | None = None,
    alias: str | None = None,
    repeated_or_one: bool = False,
) -> Any:
    """Declare a setting; the string below it is its documentation (see `meanings`).

    `source`: the program from which the setting has its name, default and meaning. `reloadable`: a
    reload may change it. `repeated_or_one`: a single value is accepted in place of a list.
    """
    if not declarations.validates:
        return None
    extra: dict[str, Any] = {"reloadable": reloadable, "source": source}
    if unit:
        extra["unit"] = unit

    def amend(schema: dict[str, Any]) -> None:
        if repeated_or_one:
            schema["anyOf"] = [dict(schema["items"]), {"type": "array", "items": schema["items"]}]
            for moved in ("type", "items", "minItems"):
                schema.pop(moved, None)
        schema.update({f"x-{key}": value for key, value in extra.items()})

    field: FieldInfo = Field(default, alias=alias, json_schema_extra=amend)
    field.metadata.append(Described(**extra))
    return field


class Described:
    """Metadata of a setting, in addition to its type, default and documentation."""

    def __init__(self, *, source: str, reloadable: bool, unit: str | None = None) -> None:
        self.source = source
        self.reloadable = reloadable
        self.unit = unit


def described(field: "FieldInfo") -> Described | None:
    """Return the metadata that `setting` added to a field; None for a section."""
    return next((item for item in field.metadata if isinstance(item, Described)), None)


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
            found.update(_strings_below(declaring))
    return found


def _strings_below(section: type[Section]) -> Iterator[tuple[str, str]]:
    (declaration,) = ast.parse(inspect.getsource(section)).body
    assert isinstance(declaration, ast.ClassDef)
    for statement, below in zip(declaration.body, declaration.body[1:], strict=False):
        match statement, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, inspect.cleandoc(text)
