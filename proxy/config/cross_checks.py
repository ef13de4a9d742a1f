"""Checks across settings, of a configuration in which some settings are wrong.

pydantic makes them once every setting of a section, and of those in it, is right by itself. Here a
section is made without its wrong settings, and a check that reads one of these is left out.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from proxy.config.section import KeyProblemError, Section, keys, nested_section

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

Location = tuple[int | str, ...]
"""Keys and indices on the way to a setting, as pydantic has them."""
_WRONG: Final = object()
"""Stands for a value that is wrong, or missing."""


class CrossChecks:
    """Checks of the sections in which, or in whose settings, something is wrong."""

    def __init__(self, wrong: Collection[Location], base_dir: Path) -> None:
        self._wrong = wrong
        self._context = {"base_dir": base_dir}
        self.problems: list[tuple[Location, KeyProblemError]] = []
        """Problems between settings, each with the location of its section."""

    def make(self, section: type[Section], given: object, at: Location = ()) -> Any:
        """Return a section with its right settings, after its checks; `_WRONG` if it is none."""
        if not any(one[: len(at)] == at for one in self._wrong):
            return self._validated(section, given)
        if not isinstance(given, Mapping):
            return _WRONG
        made = {
            name: value
            for key, name, field in keys(section)
            if (value := self._setting(field, given, key, (*at, key))) is not _WRONG
        }
        given_names = {name for key, name, _ in keys(section) if key in given and name in made}
        instance = section.model_construct(given_names)
        instance.__dict__.clear()  # of defaults, which stand for what is wrong, too
        instance.__dict__.update(made)
        for check in type(instance).__pydantic_decorators__.model_validators:
            try:
                getattr(instance, check)()
            except KeyProblemError as problem:
                self.problems.append((at, problem))
            except AttributeError:  # it reads what is wrong
                continue
        return instance

    def _setting(self, field: "FieldInfo", given: Mapping[str, Any], key: str, at: Location) -> Any:
        if not any(one[: len(at)] == at for one in self._wrong):
            value = given[key] if key in given else field.get_default()
            return self._validated(field.rebuild_annotation(), value)
        section = nested_section(field.annotation)
        if section is None or key not in given:
            return _WRONG
        if isinstance(field.annotation, type):
            return self.make(section, given[key], at)
        if not isinstance(given[key], Sequence) or isinstance(given[key], str):
            return _WRONG
        made = [self.make(section, one, (*at, index)) for index, one in enumerate(given[key])]
        return _WRONG if any(one is _WRONG for one in made) else tuple(made)

    def _validated(self, kind: Any, value: object) -> Any:
        from pydantic import TypeAdapter

        return TypeAdapter(kind).validate_python(value, context=self._context)


def cross_problems(
    section: type[Section], given: object, wrong: Collection[Location], base_dir: Path
) -> Iterator[tuple[Location, str]]:
    """Yield where settings contradict each other, and how, if those concerned are right.

    `wrong`: the locations of what pydantic found, and of what is missing as its key is misspelt.
    """
    checks = CrossChecks(wrong, base_dir)
    checks.make(section, given)
    for at, problem in checks.problems:
        yield (*at, problem.key), str(problem)
