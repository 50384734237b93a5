"""Checks Kubernetes objects against the published schemas: every field known, of the right type, none missing.

    python tools/check_manifests.py deploy/kubernetes/overlays/single my.yaml
    kubectl kustomize my-overlay | python tools/check_manifests.py -
    python tools/check_manifests.py --kubernetes 1.31 --crds crds/ my.yaml

A path is a file of YAML, `-` for standard input, or a folder: built by `kustomize` (or `kubectl kustomize`), if it has
a kustomization.yaml, else all YAML files in it.

Objects of Kubernetes itself are checked against the schemas in the package `kubernetes-validate`, for several releases.
Others need the schema of their CustomResourceDefinition: from `--crds FOLDER`, any number of YAML files with CRDs in
them; or, for the Prometheus operator, cert-manager and Istio, from the packages cloudcoil-models-prometheus-operator,
-cert-manager and -istio. The extra `dev` has all of them. An object without a schema is a fault, and not passed by.

What no schema says is not checked: rules in CEL (x-kubernetes-validations), defaults, references between objects,
admission by a cluster's policies. Exit codes: 0 good; 1 faults, one a line; 2 cannot be checked.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml
from referencing import Registry, Resource

Json = dict[str, Any]
RELEASES = ("1.30", "1.32", "1.34", "1.36")
_IN_PACKAGES = {
    "monitoring.coreos.com": "prometheus_operator",
    "cert-manager.io": "cert_manager",
    "networking.istio.io": "istio.networking",
}
_FLAGS = re.compile(r"\(\?([aimsx]+)\)")


class CheckError(Exception):
    """Nothing can be said of the objects."""


@dataclass(frozen=True, slots=True)
class Fault:
    source: str  # path of the file, or folder that was built
    what: str  # kind, namespace and name
    cause: str

    def __str__(self) -> str:
        return f"{self.source}: {self.what}: {self.cause}"


# -- reading ------------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice, of which Kubernetes would silently take the last."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> Json:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if key_node.tag != "tag:yaml.org,2002:merge" and key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} stands twice", key_node.start_mark)
        seen.add(key)
    loader.flatten_mapping(node)
    return dict(loader.construct_pairs(node, deep=True))


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
# "=" is a string, as in Kubernetes' own reader, and not the tag of YAML 1.1
_Loader.add_constructor("tag:yaml.org,2002:value", lambda loader, node: loader.construct_scalar(node))


def objects(path: str) -> list[Json]:
    """Those of a path, lists taken apart. Raises CheckError."""
    place = Path(path)
    if path != "-" and place.is_dir():
        if any((place / name).is_file() for name in ("kustomization.yaml", "kustomization.yml", "Kustomization")):
            return _parsed(build(place), path)
        files = sorted(each for pattern in ("*.yaml", "*.yml") for each in place.rglob(pattern))
        if not files:
            raise CheckError(f"{path}: has no YAML files")
        return [found for each in files for found in objects(str(each))]
    try:
        return _parsed(sys.stdin.read() if path == "-" else place.read_text(encoding="utf-8"), path)
    except (OSError, UnicodeDecodeError) as error:
        raise CheckError(f"{path}: cannot be read: {error}") from error


def build(folder: Path) -> str:
    """What `kustomize build` makes of a folder. Raises CheckError."""
    command = builder()
    if command is None:
        raise CheckError(f"{folder}: needs kustomize, or a kubectl of 1.21 or later, on the PATH")
    done = subprocess.run(  # noqa: S603 - found on the PATH
        [*command, str(folder)], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode != 0:
        raise CheckError(f"{folder}: {' '.join(command)} fails: {done.stderr.strip()}")
    return done.stdout


def builder() -> list[str] | None:
    for name, words in (("kustomize", ["build"]), ("kubectl", ["kustomize"])):
        found = shutil.which(name)
        if found is not None:
            return [found, *words]
    return None


def _parsed(text: str, source: str) -> list[Json]:
    try:
        documents = [each for each in yaml.load_all(text, Loader=_Loader) if each is not None]
    except yaml.YAMLError as error:
        raise CheckError(f"{source}: is no YAML: {error}") from error
    found: list[Json] = []
    for document in documents:
        listed = isinstance(document, dict) and document.get("kind") == "List"
        found += document.get("items") or [] if listed else [document]
    return found


# -- schemas ------------------------------------------------------------------------------------------


class Crds:
    """Schemas of what Kubernetes itself does not have, by group, version and kind."""

    def __init__(self, folders: Iterable[str] = ()) -> None:
        """Raises CheckError."""
        self._known: dict[tuple[str, str, str], Json] = {}
        for folder in folders:
            before = len(self._known)
            for each in objects(folder):
                if isinstance(each, dict) and each.get("kind") == "CustomResourceDefinition":
                    self._add(each, folder)
            if len(self._known) == before:
                raise CheckError(f"{folder}: has no CustomResourceDefinition with a schema")

    def _add(self, crd: Json, folder: str) -> None:
        try:
            spec = crd["spec"]
            for version in spec["versions"]:
                schema = _whole(version["schema"]["openAPIV3Schema"])
                self._known[spec["group"], version["name"], spec["names"]["kind"]] = schema
        except (KeyError, TypeError) as error:
            raise CheckError(f"{folder}: a CustomResourceDefinition without {error}") from error

    def schema(self, api_version: str, kind: str) -> Json | None:
        group, _, version = api_version.partition("/")
        key = (group, version, kind)
        if key not in self._known and group in _IN_PACKAGES:
            try:
                module = importlib.import_module(f"cloudcoil.models.{_IN_PACKAGES[group]}.{version}")
                model = getattr(module, kind)
            except (ImportError, AttributeError):
                return None
            self._known[key] = _whole(model.model_json_schema(by_alias=True))
        return self._known.get(key)


def _whole(schema: Json) -> Json:
    """Strict, and with what every object has."""
    strict = _strict(schema)
    properties = strict.setdefault("properties", {})
    properties |= {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}
    strict["required"] = sorted({*strict.get("required", ()), "apiVersion", "kind", "metadata"})
    strict["additionalProperties"] = False
    return strict


def _strict(schema: Any) -> Any:
    """OpenAPI of a CRD as JSON Schema that refuses fields which are not named, as an API server with strict validation
    does."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _of_keyword(key, value) for key, value in schema.items() if not key.startswith("x-kubernetes-")}
    if schema.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
        made["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if made.pop("nullable", False) and isinstance(made.get("type"), str):
        made["type"] = [made["type"], "null"]
        if "enum" in made:
            made["enum"] = [*made["enum"], None]
    opened = schema.get("x-kubernetes-preserve-unknown-fields") or schema.get("x-kubernetes-embedded-resource")
    if made.get("properties") and not opened:
        made.setdefault("additionalProperties", False)
    return made


def _of_keyword(key: str, value: Any) -> Any:
    if key in ("properties", "$defs") and isinstance(value, dict):  # names, not keywords
        return {name: _strict(each) for name, each in value.items()}
    if key in ("default", "enum", "example", "const"):
        return value
    if key == "pattern" and isinstance(value, str):
        return _pattern(value)
    return _strict(value)


def _pattern(pattern: str) -> str:
    """Go takes flags anywhere, Python at the beginning alone."""
    flags = "".join(_FLAGS.findall(pattern))
    return f"(?{flags}){_FLAGS.sub('', pattern)}" if flags else pattern


# -- checking -----------------------------------------------------------------------------------------


def check(source: str, found: Iterable[Any], crds: Crds, releases: Iterable[str] = RELEASES) -> Iterator[Fault]:
    """Raises CheckError: a release without schemas."""
    seen: set[tuple[str, str]] = set()
    for number, each in enumerate(found, 1):
        if not isinstance(each, dict) or not all(isinstance(each.get(key), str) for key in ("apiVersion", "kind")):
            yield Fault(source, f"document {number}", "is no object: apiVersion and kind are missing")
            continue
        metadata = each.get("metadata")
        if not isinstance(metadata, Mapping) or not (metadata.get("name") or metadata.get("generateName")):
            yield Fault(source, f"{each['kind']}, document {number}", "metadata.name is missing")
            continue
        what = "/".join(str(part) for part in (each["kind"], metadata.get("namespace"), metadata.get("name")) if part)
        key = (each["apiVersion"].partition("/")[0], what)
        if key in seen:
            yield Fault(source, what, "stands twice")
        seen.add(key)
        schema = crds.schema(each["apiVersion"], each["kind"])
        causes = (
            _of_kubernetes(each, releases) if schema is None else _causes(jsonschema.Draft202012Validator(schema), each)
        )
        yield from (Fault(source, what, cause) for cause in causes)


def _of_kubernetes(found: Json, releases: Iterable[str]) -> Iterator[str]:
    told: set[str] = set()
    for release in releases:
        validator = _validator(release, found["apiVersion"], found["kind"])
        if validator is None:
            causes = [
                f"there is no schema for {found['kind']} of {found['apiVersion']}: name a folder with its CRD (--crds)"
            ]
        else:
            causes = list(_causes(validator, found))
        yield from (f"{cause} (Kubernetes {release})" for cause in causes if cause not in told)
        told.update(causes)


@functools.cache
def _validator(release: str, api_version: str, kind: str) -> jsonschema.Draft202012Validator | None:
    """None: this release has no such kind. Raises CheckError."""
    group, _, version = api_version.rpartition("/")
    if "." in group and not group.endswith(".k8s.io"):
        return None
    name = "-".join(part for part in (kind.lower(), group.partition(".")[0], version) if part)
    try:
        schema = kubernetes_validate.utils.schema_contents(f"{_folder(release)}/{name}.json", release)
    except FileNotFoundError:
        return None
    return jsonschema.Draft202012Validator(schema, registry=Resource.from_contents(schema) @ _definitions(release))


@functools.cache
def _definitions(release: str) -> Registry[Any]:
    schema = kubernetes_validate.utils.schema_contents(f"{_folder(release)}/_definitions.json", release)
    return Resource.from_contents(schema) @ Registry()


@functools.cache
def _folder(release: str) -> str:
    known = {kubernetes_validate.utils.major_minor(each): each for each in kubernetes_validate.utils.all_versions()}
    if release not in known:
        there = ", ".join(sorted(known, key=lambda each: [int(part) for part in each.split(".")]))
        raise CheckError(f"there are no schemas for Kubernetes {release}; there are: {there}")
    return f"kubernetes-json-schema/v{known[release]}-local-strict"


def _causes(validator: jsonschema.Draft202012Validator, found: Json) -> Iterator[str]:
    try:
        for error in validator.iter_errors(found):
            yield _told(jsonschema.exceptions.best_match([error]) or error)
    except re.error as error:
        raise CheckError(f"the schema of {found['kind']} has a pattern that cannot be read: {error}") from error


def _told(error: jsonschema.ValidationError) -> str:
    path = ".".join(str(part) for part in error.absolute_path)
    return f"{path or '(the whole)'}: {error.message[:400]}"


def main(arguments: list[str], say: Callable[[str], None] = print) -> int:
    parser = argparse.ArgumentParser(description="Checks Kubernetes objects against the published schemas.")
    parser.add_argument("paths", nargs="+", metavar="PATH", help="file, folder, or - for standard input")
    parser.add_argument(
        "--crds", action="append", default=[], metavar="PATH", help="folder or file with CRDs; repeat it"
    )
    parser.add_argument(
        "--kubernetes", action="append", metavar="RELEASE", help=f"repeat it; default: {' '.join(RELEASES)}"
    )
    options = parser.parse_args(arguments)
    releases = options.kubernetes or RELEASES
    count, faults = 0, 0
    try:
        crds = Crds(options.crds)
        for path in options.paths:
            found = objects(path)
            count += len(found)
            for fault in check(path, found, crds, releases):
                faults += 1
                say(str(fault))
    except CheckError as error:
        print(error, file=sys.stderr)
        return 2
    if not count:
        print(f"{' '.join(options.paths)}: there are no objects", file=sys.stderr)
        return 2
    say(f"{count} objects, {faults} faults. Kubernetes {', '.join(releases)}.")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
