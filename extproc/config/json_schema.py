"""The JSON Schema of `fairlane.yaml`, for editors: what `Config` takes, as users write it.

It is made of the model. What the model takes, the schema takes: YAML's `off` for the word, a number in quotes, the
short forms of endpoints. What the model refuses by type or by a bound of one value, the schema refuses, and two or none
of keys of which exactly one is to be given; what else several values say together (a rank given twice, a pick that
mixes pools up) is for `fairlane check-config`.

Dialect: JSON Schema 2020-12.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import core_schema

from extproc.config.endpoints import Dns, Endpoints, File, Kubernetes
from extproc.config.identity import ApiKeySource, ClaimSource, ClassSource, Source
from extproc.config.model import Config
from extproc.config.patch import plain_number
from extproc.config.section import Section

Descriptions = Mapping[tuple[type[Section], str], str]

_INTEGER_TEXT = r"^\s*[+-]?[0-9][0-9_]*(\.0*)?\s*$"
_NUMBER_TEXT = r"^\s*[+-]?([iI][nN][fF]([iI][nN][iI][tT][yY])?|[nN][aA][nN]|[0-9_]*\.?[0-9_]*([eE][+-]?[0-9_]+)?)\s*$"
_SWITCH_TEXT = (
    r"^\s*([01]|[tTfFyYnN]|[oO][nN]|[oO][fF][fF]|[tT][rR][uU][eE]|[fF][aA][lL][sS][eE]|[yY][eE][sS]|[nN][oO])\s*$"
)

_GIVEN = {"not": {"type": "null"}}
# Keys of which exactly one is given; null gives none.
_ONE_OF: dict[type[Section], tuple[str, ...]] = {
    Endpoints: tuple(Endpoints.model_fields),
    Kubernetes: ("service", "selector"),
    ClaimSource: ("path", "paths"),
    ApiKeySource: ("sha256", "file"),
    Source: tuple(Source.model_fields),
    ClassSource: tuple(ClassSource.model_fields),
}
_PORT_BY_RECORD = {
    "if": {"required": ["record"], "properties": {"record": {"const": "srv"}}},
    "then": {"properties": {"port": {"type": "null"}}},
    "else": {"required": ["port"], "properties": {"port": _GIVEN}},
}


def json_schema(descriptions: Descriptions | None = None) -> dict[str, Any]:
    """`descriptions`: of keys, by section and key."""

    class Generator(_Generator):
        told = descriptions or {}

    schema = Config.model_json_schema(by_alias=True, schema_generator=Generator)
    return {"$schema": Generator.schema_dialect, **schema, "title": "Fairlane's configuration"}


class _Generator(GenerateJsonSchema):
    told: ClassVar[Descriptions] = {}

    def generate(self, schema: Any, mode: JsonSchemaMode = "validation") -> JsonSchemaValue:
        schema_of_all: JsonSchemaValue = _untitled(super().generate(schema, mode))
        return schema_of_all

    def int_schema(self, schema: core_schema.IntSchema) -> JsonSchemaValue:
        return _or_text(super().int_schema(schema), _INTEGER_TEXT)

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        return _or_text(super().float_schema(schema), _NUMBER_TEXT)

    def bool_schema(self, schema: core_schema.BoolSchema) -> JsonSchemaValue:
        return {"anyOf": [super().bool_schema(schema), {"enum": [0, 1]}, {"type": "string", "pattern": _SWITCH_TEXT}]}

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        """Pydantic lets names that do not match the pattern of the keys pass, with any value."""
        found = super().dict_schema(schema)
        for pattern, inside in found.pop("patternProperties", {}).items():
            found |= {"propertyNames": {"pattern": pattern}, "additionalProperties": inside}
        return found

    def literal_schema(self, schema: core_schema.LiteralSchema) -> JsonSchemaValue:
        """YAML reads `off` and `on` as switches, and `Section` takes them back for the words."""
        words = list(schema["expected"])
        switches = [value for word, value in (("off", False), ("on", True)) if word in words]
        return {"enum": [*words, *switches]}

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """Defaults are said by `model_schema`, in the file's notation."""
        return self.generate_inner(schema["schema"])

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        section = schema["cls"]
        found = super().model_schema(schema)
        if not issubclass(section, Section):
            return found
        defaults = section.model_construct().model_dump(mode="json", by_alias=True, warnings=False)
        for key, inside in found["properties"].items():
            if (text := self.told.get((section, key))) is not None:
                inside["description"] = text
            default = defaults.get(key)
            if default is not None and not isinstance(default, dict):  # sections have the defaults of their keys
                inside["default"] = _plain(default)
        if section in _ONE_OF:
            found["oneOf"] = [{"required": [key], "properties": {key: _GIVEN}} for key in _ONE_OF[section]]
        if section is Dns:
            found |= _PORT_BY_RECORD
        if section is Endpoints:  # or the list alone
            return {"anyOf": [found["properties"]["static"]["anyOf"][0], found]}
        if section is File:  # or the path alone
            return {"anyOf": [found["properties"]["path"], found]}
        return found


def _or_text(schema: JsonSchemaValue, pattern: str) -> JsonSchemaValue:
    """Pydantic takes a number in quotes, too."""
    return {"anyOf": [schema, {"type": "string", "pattern": pattern}]}


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items() if each is not None}
    return plain_number(value) if isinstance(value, float) else value


def _untitled(schema: Any) -> Any:
    """Titles that pydantic makes of names say nothing that the names do not."""
    if isinstance(schema, dict):
        return {
            key: _untitled(value) for key, value in schema.items() if not (key == "title" and isinstance(value, str))
        }
    return [_untitled(each) for each in schema] if isinstance(schema, list) else schema
