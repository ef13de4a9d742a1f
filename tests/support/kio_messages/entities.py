"""Messages in whichever version is needed: kio has a class per version."""

import datetime
from dataclasses import fields
from functools import cache
from typing import Any, Final, get_args

from kio.static.primitive import i32Timedelta

NOT_THROTTLED: Final = i32Timedelta.parse(datetime.timedelta())
"""Throttle time of 0."""


def item_type(entity_type: Any, array: str) -> type[Any]:
    """Return the class of the items of an array field."""
    (kind,) = (field.type for field in fields(entity_type) if field.name == array)
    candidates = (kind, *get_args(kind))  # the array, or a nullable array
    (item,) = (get_args(one)[0] for one in candidates if getattr(one, "__origin__", None) is tuple)
    assert isinstance(item, type)
    return item


@cache
def _field_names(entity_type: Any) -> frozenset[str]:
    return frozenset(field.name for field in fields(entity_type))


def make(entity_type: Any, /, **values: Any) -> Any:
    """Return an entity with those `values` for which this version has a field."""
    names = _field_names(entity_type)
    return entity_type(**{name: value for name, value in values.items() if name in names})
