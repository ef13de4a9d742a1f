"""Declarations of settings: with pydantic, or without it in processes that only hold settings.

pydantic and the validators that it builds take 10 MiB, and a fifth of the CPU time of a start. So
`serve` validates in a short-lived child, and its lasting processes receive the result: there,
after `hold_only`, a section is a plain object, and constraints and checks have no effect.
"""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import (
        BaseModel,
        BeforeValidator,
        ConfigDict,
        Field,
        PlainSerializer,
        PlainValidator,
        StrictBool,
        WithJsonSchema,
        model_validator,
    )

__all__ = (
    "BaseModel",
    "BeforeValidator",
    "ConfigDict",
    "Field",
    "PlainSerializer",
    "PlainValidator",
    "StrictBool",
    "WithJsonSchema",
    "model_validator",
)

_CONFIG = "proxy.config"

validates = True
"""True if this process can validate settings; False if it only holds them."""


def hold_only() -> None:
    """Declare sections without pydantic from now on; called before `proxy.config` is imported."""
    _switch(validating=False)


def validate_too() -> None:
    """Declare sections with pydantic again; for a child of a process that only holds settings."""
    _switch(validating=True)


def _switch(*, validating: bool) -> None:
    global validates
    if validating is validates:
        return
    validates = validating
    for name in [name for name in sys.modules if f"{name}.".startswith(f"{_CONFIG}.")]:
        del sys.modules[name]


class _Held:
    """Section that was validated by another process, and pickled."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state["__dict__"])

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.__dict__ == self.__dict__

    __hash__ = None  # type: ignore[assignment]


def _no_constraint(*_arguments: object, **_options: object) -> None:
    """Replace a constraint or a validator, without effect."""


def _no_check(**_options: object) -> Any:
    """Replace the decorator of a check, without effect."""
    return lambda method: method


_WITHOUT_PYDANTIC: dict[str, Any] = {
    **dict.fromkeys(__all__, _no_constraint),
    "BaseModel": _Held,
    "ConfigDict": dict,
    "StrictBool": bool,
    "model_validator": _no_check,
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if not validates:
        return _WITHOUT_PYDANTIC[name]
    import pydantic

    return getattr(pydantic, name)
