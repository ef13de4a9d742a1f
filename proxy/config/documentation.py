"""Docstrings of settings, parsed only when needed to keep the start fast."""

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from proxy.config.section import Section, keys


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


class DocumentedSchema(GenerateJsonSchema):
    """Generator of a JSON Schema in which each setting has its documentation."""

    def model_schema(self, schema: Any) -> JsonSchemaValue:
        """Return the schema of a section."""
        made = super().model_schema(schema)
        section = schema["cls"]
        documented = meanings(section)
        for key, name, _ in keys(section):
            if name in documented:
                made["properties"][key]["description"] = documented[name]
        return made
