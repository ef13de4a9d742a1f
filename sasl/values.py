"""Values that are made for every authentication: frozen to the type checker, cheap to make."""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

_T = TypeVar("_T")


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
def value(cls: type[_T]) -> type[_T]:
    """Make a dataclass with slots and keyword arguments alone, which nobody changes.

    `frozen=True` would say that to the interpreter too, which then sets each field by way of
    `object.__setattr__`: three times as long, for two dozen values per authentication.
    """
    return dataclass(slots=True, kw_only=True, unsafe_hash=True)(cls)
