"""Loader of the configuration file: every problem is one sentence with the key's path."""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from metrics.extras import missing
from proxy.config.model import Config
from proxy.config.section import KeyProblemError, Section, described, keys, meanings, nested_section
from proxy.config.values import shown
from proxy.errors import ConfigError

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

_MAX_KEY = 120
"""Maximum length in characters of a key that is shown in full: no key of ours is longer."""
_WRONG: Final = object()
"""Placeholder for a wrong or missing value."""

_Location = tuple[int | str, ...]
"""Keys and indices on the way to a setting, as in pydantic's errors."""


def load(path: Path) -> Config:
    """Read and check a configuration file, and the files that it names.

    Raise `ConfigError` with the first problem. Paths in the result are absolute.
    """
    return judged(read(path), path)


def read(path: Path) -> bytes:
    """Return the content of a configuration file. Raises ConfigError."""
    from proxy.config import document

    try:
        with path.open("rb") as file:
            return file.read(document.MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError("", f"cannot be read: {error.strerror}") from None


def judged(text: bytes, path: Path) -> Config:
    """Return the configuration in the content of the file at `path`; check the files that it names.

    Raises ConfigError.
    """
    config, problems = judged_entirely(text, path)
    if config is None or problems:
        raise problems[0]
    return config


def judged_entirely(text: bytes, path: Path) -> tuple[Config | None, list[ConfigError]]:
    """Return the configuration and all problems in order; None if it is invalid even without its
    wrong settings.

    Contradictions are reported only between settings that are valid by themselves, and problems of
    files only for the configuration that is returned.
    """
    from pydantic import ValidationError

    from proxy.config import document

    try:
        mapping = document.parse(text)
    except ConfigError as error:
        return None, [error]
    base_dir = path.absolute().parent
    found: list[ConfigError] = []
    try:
        config = Config.model_validate(mapping, context={"base_dir": base_dir})
    except ValidationError as error:
        found = _config_errors(error)
        every = error.errors(include_url=False)
        wrong = {one["loc"] for one in every} | _meant(every)
        checks = _CrossChecks(wrong, base_dir)
        checks.make(Config, mapping)
        found = list({str(one): one for one in (*found, *checks.problems)}.values())
        _repair(mapping, every)
        try:
            config = from_mapping(mapping, base_dir=base_dir)
        except ConfigError:
            return None, found
    return config, [*found, *unreported(_file_problems(config), found)]


def unreported(more: Iterable[ConfigError], found: Iterable[ConfigError]) -> list[ConfigError]:
    """Return the problems of settings, except those that `found` has a problem of."""
    known = tuple(one.path for one in found if one.path)
    return [one for one in more if not one.path.startswith(known)]


class Located(NamedTuple):
    """Problem of a configuration file, with its place."""

    line: int | None
    """From 1; None if the problem is not in the text."""
    key: str | None
    """The setting concerned, such as `listeners[0].address`; None if it is the whole file."""
    problem: str
    """The problem and its solution, in one sentence."""

    def described(self, path: Path) -> str:
        """Return one line of output with the file, the line and the key."""
        place = f"{path}:{self.line}" if self.line else str(path)
        return ": ".join(filter(None, (place, self.key, self.problem)))


def located(problems: Iterable[ConfigError], text: bytes) -> list[Located]:
    """Return the problems of a file with this content, in the order of their lines."""
    from proxy.config import document

    try:
        document.parse(text)
    except document.NotADocument:
        lines = None
    else:
        lines = document.Lines(text)
    found = []
    for one in problems:
        if isinstance(one, document.NotADocument):
            found.append(Located(one.line, None, one.problem))
        else:
            line = None if lines is None else lines.near(one.path)
            found.append(Located(line, one.path or None, one.problem))
    return sorted(found, key=lambda one: one.line or 0)


def from_mapping(mapping: dict[str, Any], *, base_dir: Path) -> Config:
    """Return the configuration in a parsed file. Relative paths are relative to `base_dir`.

    Raises ConfigError.
    """
    from pydantic import ValidationError

    try:
        return Config.model_validate(mapping, context={"base_dir": base_dir})
    except ValidationError as error:
        raise _config_errors(error)[0] from None


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the configuration file, with the documentation of each setting."""
    from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

    class DocumentedSchema(GenerateJsonSchema):
        def model_schema(self, schema: Any) -> JsonSchemaValue:
            made = super().model_schema(schema)
            documented = meanings(schema["cls"])
            for key, name, field in keys(schema["cls"]):
                of_setting = made["properties"][key]
                if (known := described(field)) is not None:
                    of_setting |= {"x-reloadable": known.reloadable, "x-source": known.source}
                    of_setting |= {"x-unit": known.unit} if known.unit else {}
                if name in documented:
                    of_setting["description"] = documented[name]
            return made

    schema = Config.model_json_schema(by_alias=True, schema_generator=DocumentedSchema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


_CLOUDS: Final = ("aws", "gcp", "azure")
"""Extras of the providers of tokens whose names begin with them."""


def _file_problems(config: Config) -> Iterator[ConfigError]:
    for index, listener in enumerate(config.listeners):
        if listener.groups_file is not None:
            yield from _unreadable(f"listeners[{index}].groups.file", listener.groups_file)
        if (users := listener.sasl_plain_htpasswd_file) is not None:
            yield from _unreadable(f"listeners[{index}].sasl.plain.htpasswd.file", users)
        for key, source in listener.jwks_sources():
            if isinstance(source, Path):
                yield from _unreadable(f"listeners[{index}].{key}", source)
    if config.store.users_file is not None:
        yield from _unreadable("store.users.file", config.store.users_file)
    yield from _missing_extras(config)
    if not config.store.path().parent.is_dir():
        yield ConfigError("store.url", f"{config.store.path().parent} is not a directory")


def _missing_extras(config: Config) -> Iterator[ConfigError]:
    needed = {}
    provider = (config.upstream.sasl_login_provider or "").partition("-")[0]
    if provider in _CLOUDS:
        needed["upstream.sasl.login.provider"] = provider
    if config.events.deliver.to is not None:
        needed["events.deliver.to"] = "kafka"
    for index, listener in enumerate(config.listeners):
        if listener.sasl_plain_htpasswd_file is not None:
            needed[f"listeners[{index}].sasl.plain.htpasswd.file"] = "htpasswd"
    for key, extra in needed.items():
        if (problem := missing(extra)) is not None:
            yield ConfigError(key, problem)


def _unreadable(key: str, path: Path) -> Iterator[ConfigError]:
    try:
        if path.is_file() and os.access(path, os.R_OK):
            return
        path.stat()
    except OSError as error:
        yield ConfigError(key, f"{path} cannot be read: {error.strerror}")
    else:
        yield ConfigError(key, f"{path} cannot be read: no permission, or not a file")


def _config_errors(error: "ValidationError") -> list[ConfigError]:
    """Return all problems, misspelt keys first, without the missing keys that they replace."""
    every = error.errors(include_url=False)
    misspelt = [one for one in every if one["type"] == "extra_forbidden"]
    others = [one for one in every if one["type"] != "extra_forbidden"]
    meant = _meant(every)
    causes = [
        one
        for one in others
        if not (one["type"] == "missing" and one["loc"] in meant) and not _is_emptied(one, every)
    ]
    return [ConfigError(_key_path(_location(one)), _problem(one)) for one in misspelt + causes]


def _repair(mapping: dict[str, Any], every: "Sequence[ErrorDetails]") -> None:
    """Remove the wrong settings from a mapping, and spell the misspelt ones right."""
    for error in every:
        if _is_emptied(error, every):
            continue
        parts = list(_location(error))
        while isinstance(parts[-1], int):  # an item of a list
            del parts[-1]
        section: Any = mapping
        for part in parts[:-1]:
            section = section[part]
        value = section.pop(parts[-1], None)
        if error["type"] == "extra_forbidden" and (nearest := _nearest_key(parts)):
            section.setdefault(nearest, value)


def _meant(every: "Sequence[ErrorDetails]") -> set[_Location]:
    """Return the locations of the keys that were probably misspelt."""
    return {
        (*one["loc"][:-1], nearest)
        for one in every
        if one["type"] == "extra_forbidden" and (nearest := _nearest_key(one["loc"]))
    }


def _is_emptied(error: "ErrorDetails", every: "Sequence[ErrorDetails]") -> bool:
    """Return whether a list counts as empty because its items have problems."""
    location = error["loc"]
    return error["type"] == "too_short" and any(
        len(one["loc"]) > len(location) and one["loc"][: len(location)] == location for one in every
    )


def _location(error: "ErrorDetails") -> _Location:
    cause = error.get("ctx", {}).get("error")
    return (*error["loc"], cause.key) if isinstance(cause, KeyProblemError) else error["loc"]


def _key_path(location: Sequence[int | str]) -> str:
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            key = part if part.isprintable() and len(part) <= _MAX_KEY else shown(part)
            path += f".{key}" if path else key
    return path


_SENTENCES = {
    "missing": "is required",
    "greater_than_equal": "must be at least {ge}, got {given}",
    "less_than_equal": "must be at most {le}, got {given}",
    "bool_parsing": "must be true or false, got {given}",
    "bool_type": "must be true or false, got {given}",
    "literal_error": "must be {expected}, got {given}",
    "enum": "must be {expected}, got {given}",
    "model_type": "must be a mapping, got {given}",
    "tuple_type": "must be a list, got {given}",
    "dict_type": "must be a mapping, got {given}",
    "too_short": "must not be empty",
    "string_type": "must be text, got {given}",
    "string_pattern_mismatch": "must match {pattern}, got {given}",
}
"""Messages by pydantic's type of error."""


def _problem(error: "ErrorDetails") -> str:
    match error["type"]:
        case "value_error":
            return str(error["ctx"]["error"])
        case "extra_forbidden":
            return _unknown_key(error["loc"])
        case kind:
            sentence = _SENTENCES.get(kind, error["msg"] + ", got {given}")
            return sentence.format_map({**error.get("ctx", {}), "given": shown(error["input"])})


_REMOVED: Final = dict.fromkeys(
    ("store.copy.file", "store.zookeeper"),
    "was removed with the ZooKeeper store: delete it (docs/store.md)",
)
"""What to do with each removed setting."""


def _unknown_key(location: Sequence[int | str]) -> str:
    if (removed := _REMOVED.get(_key_path(location))) is not None:
        return removed
    nearest = _nearest_key(location)
    return "unknown key" + (f", did you mean {nearest}?" if nearest else "")


def _nearest_key(location: Sequence[int | str]) -> str | None:
    import difflib

    section: type[Section] | None = Config
    for part in location[:-1]:
        if section and isinstance(part, str):
            fields = {key: field for key, _, field in keys(section)}
            section = nested_section(fields[part].annotation) if part in fields else None
    known = [key for key, _, _ in keys(section)] if section else []
    wanted = str(location[-1]).replace("_", ".")
    nearest = difflib.get_close_matches(wanted, known, n=1)
    return nearest[0] if nearest else None


class _CrossChecks:
    """Checks across settings of a configuration in which some settings are wrong.

    pydantic runs these checks only if every setting of a section is valid by itself. Here a section
    is built without its wrong settings, and a check that reads one of them is skipped.
    """

    def __init__(self, wrong: Collection[_Location], base_dir: Path) -> None:
        """`wrong` has the locations of pydantic's errors, and those of the keys that were probably
        misspelt."""
        self._wrong = wrong
        self._context = {"base_dir": base_dir}
        self.problems: list[ConfigError] = []
        """Contradictions between settings that are valid by themselves."""

    def make(self, section: type[Section], given: object, at: _Location = ()) -> Any:
        """Check a section, and return it with its valid settings; `_WRONG` if not a mapping."""
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
        instance.__dict__.clear()  # of defaults, which also replace wrong settings
        instance.__dict__.update(made)
        for check in type(instance).__pydantic_decorators__.model_validators:
            try:
                getattr(instance, check)()
            except KeyProblemError as problem:
                self.problems.append(ConfigError(_key_path((*at, problem.key)), str(problem)))
            except AttributeError:  # the check reads a wrong setting
                continue
        return instance

    def _setting(
        self, field: "FieldInfo", given: Mapping[str, Any], key: str, at: _Location
    ) -> Any:
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
