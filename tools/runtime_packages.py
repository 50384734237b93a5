"""Which of the installed packages Fairlane runs with: what it requires, and what those require, with the extras that
production uses. Tests, linters and Envoy's wheel are not among them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

EXTRAS = ("fast", "otel", "cluster")


def required_by(name: str, extras: tuple[str, ...] = ()) -> Mapping[str, tuple[str, ...]]:
    """What an installed package requires here: canonical name -> extras of it. Raises SystemExit where `name` is not
    installed."""
    try:
        package = distribution(name)
    except PackageNotFoundError:
        raise SystemExit(f"{name} is not installed: run `make test-fast` once, which installs everything") from None
    found: dict[str, tuple[str, ...]] = {}
    for line in package.requires or ():
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            required = canonicalize_name(requirement.name)
            found[required] = tuple(sorted({*found.get(required, ()), *requirement.extras}))
    return found


def runtime_packages() -> dict[str, Distribution]:
    """By canonical name, without Fairlane itself."""
    seen: set[tuple[str, tuple[str, ...]]] = set()
    to_see = [*required_by("fairlane", EXTRAS).items()]
    while to_see:
        one = to_see.pop()
        if one not in seen:
            seen.add(one)
            to_see += required_by(*one).items()
    return {name: distribution(name) for name in sorted({name for name, _ in seen})}
