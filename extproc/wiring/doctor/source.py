"""Getting at the configuration: from a file, or from the admin interface of a running Envoy.

Envoy's YAML reader follows YAML 1.1 further than PyYAML does: it takes a plain y, n, Y or N for a boolean, so that
`key: n` (a member of OpenAI's requests) arrives as false, and the file is refused. PyYAML would hide that by reading
text. Here such a word is text too, so that the rest can be checked, but text that knows what Envoy makes of it.
"""

from __future__ import annotations

import http.client
import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from extproc.wiring.doctor.finding import NotReadableError

_TIMEOUT_S = 10.0
_LARGEST = 256 * 1024**2  # bytes of an answer of the admin interface
_MOST_NODES = 2_000_000  # of a file; aliases of aliases make a small file endless
_DEEPEST = 100
_CAMEL = re.compile(r"[a-z][a-z0-9]*(?:[A-Z][a-z0-9]*)+\Z")
# Their keys are names that users choose, and stay as they are.
_NAMED = frozenset({"typed_per_filter_config", "typed_extension_protocol_options", "filter_metadata", "source_codes"})


class Misread(str):
    """A plain y or n of a YAML file: text here, true or false to Envoy."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Source:
    """`data`: names of members in snake_case. `version`: of the Envoy that was asked; None: not known."""

    name: str
    data: dict[str, Any]
    version: str | None = None


class _Loader(yaml.SafeLoader):
    pass


_Loader.yaml_implicit_resolvers = {
    letter: [*resolvers] for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("!misread", re.compile(r"[yYnN]\Z"), list("yYnN"))
_Loader.add_constructor("!misread", lambda _loader, node: Misread(node.value))


def read_file(path: Path) -> Source:
    """YAML or JSON. Raises NotReadableError."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise NotReadableError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise NotReadableError(f"{path}: is no text in UTF-8: {error}") from error
    return Source(str(path), parse(text, str(path)))


def read_admin(url: str) -> Source:
    """What the Envoy at `url` runs with, such as http://127.0.0.1:9901. Raises NotReadableError."""
    base = (url if "://" in url else f"http://{url}").rstrip("/")
    if not base.startswith(("http://", "https://")):
        raise NotReadableError(f"{url}: expected the address of Envoy's admin interface, like http://127.0.0.1:9901")
    data = parse(_get(f"{base}/config_dump?include_eds"), f"{base}/config_dump")
    info = parse(_get(f"{base}/server_info"), f"{base}/server_info")
    return Source(base, data, str(info["version"]) if "version" in info else None)


def parse(text: str, name: str) -> dict[str, Any]:
    """The mapping that `text` holds. Raises NotReadableError."""
    try:
        data = _json_or_yaml(text, name)
        if not isinstance(data, dict):
            found = "nothing" if data is None else f"a {type(data).__name__}"
            raise NotReadableError(f"{name}: expected a mapping as Envoy's configuration is one, found {found}")
        return dict(_normal(data, _counter(name), 0))
    except RecursionError as error:
        raise NotReadableError(f"{name}: is nested too deeply to be a configuration of Envoy") from error


def _json_or_yaml(text: str, name: str) -> object:
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except ValueError as error:
            reason = str(error)  # may be YAML in flow style
            if '"@type"' in text[:2000] or '"configs"' in text[:200]:
                raise NotReadableError(
                    f"{name}: is not JSON: {reason}; if it is a dump of Envoy's admin interface, it was cut short: "
                    "save it again, with curl -sS and without head"
                ) from error
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader with one more scalar
    except (yaml.YAMLError, ValueError) as error:  # ValueError: 2026-99-99 has the form of a date
        raise NotReadableError(f"{name}: is neither YAML nor JSON: {' '.join(str(error).split())}") from error


def _counter(name: str) -> Callable[[int], None]:
    count = 0

    def one_more(depth: int) -> None:
        nonlocal count
        count += 1
        if count > _MOST_NODES or depth > _DEEPEST:
            raise NotReadableError(f"{name}: is too large or nested too deeply to be a configuration of Envoy")

    return one_more


def _normal(value: Any, one_more: Callable[[int], None], depth: int, names: bool = False) -> Any:
    """Names of members in snake_case: Envoy takes camelCase too, as protobuf's JSON does."""
    one_more(depth)
    if isinstance(value, dict):
        return {
            (key if names else _snake(key)): _normal(inner, one_more, depth + 1, not names and _snake(key) in _NAMED)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [_normal(inner, one_more, depth + 1) for inner in value]
    return value


def _snake(key: object) -> str:
    if isinstance(key, Misread):
        return key
    text = str(key)
    return re.sub(r"[A-Z]", lambda m: "_" + m[0].lower(), text) if _CAMEL.match(text) else text


def _get(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - http or https, looked at above
            body: bytes = answer.read(_LARGEST + 1)
    except urllib.error.HTTPError as error:
        raise NotReadableError(
            f"{url}: answered {error.code}; is this Envoy's admin interface? (`admin.address` in its configuration)"
        ) from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise NotReadableError(
            f"{url}: cannot be reached: {reason}; give the address of Envoy's admin interface (`admin.address` in its "
            "configuration), or save its /config_dump and use --envoy FILE"
        ) from error
    if len(body) > _LARGEST:
        raise NotReadableError(f"{url}: answered more than {_LARGEST // 1024**2} MiB; use --envoy FILE")
    return body.decode("utf-8", "replace")
