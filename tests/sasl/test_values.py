import dataclasses

import pytest

from sasl.values import value


@value
class Pair:
    left: int
    right: int = 2


def test_a_value_is_told_by_its_fields() -> None:
    assert Pair(left=1) == Pair(left=1, right=2) != Pair(left=2)
    assert len({Pair(left=1), Pair(left=1, right=2)}) == 1
    assert dataclasses.replace(Pair(left=1), right=3) == Pair(left=1, right=3)


def test_a_misspelt_field_is_noticed() -> None:
    """The type checker sees to what assigns to a field; slots see to what invents one."""
    with pytest.raises(AttributeError):
        setattr(Pair(left=1), "middle", 3)  # noqa: B010 - mypy would refuse the statement
    with pytest.raises(TypeError):
        Pair(1)  # type: ignore[call-arg]
