"""Which routes of a virtual host a queued path can reach, told by trying paths.

A path that requests.queued names whole is tried as it is. `*/v1/completions` stands for paths without end, of which
some are tried: with segments before it, and with what a route itself asks for. A pattern (safe_regex) cannot be told in
this way, and counts as reached where there is such an ending. So False is meant, and True may be "it cannot be told".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from envoy_data_plane.envoy.config.route.v3 import RouteMatch

from extproc.wiring.doctor import matching

# Of several kinds, so that an earlier route for some prefixes is not taken for one that takes them all.
_BEFORE = ("", "/x", "/Team-1.a_b", "/a/b/c/d")


def reached(matches: Sequence[RouteMatch | None], queued: Sequence[str]) -> list[bool]:
    """One for each route, in the order of the virtual host. `queued`: as in requests.queued."""
    endings = [path[1:] for path in queued if path.startswith("*")]
    whole = [path for path in queued if path.startswith("/")]
    found = [False] * len(matches)
    tried = [before + ending for before in _BEFORE for ending in endings]
    for path in [*whole, *tried]:
        for number in _takers(matches, path):
            found[number] = True
    for number, match in enumerate(matches if endings else ()):
        if match is not None and not found[number]:
            if match.safe_regex is not None:  # unless routes before it take whatever has such an ending
                found[number] = any(not any(matching.route(m, path) for m in matches[:number] if m) for path in tried)
            else:
                found[number] = any(number in _takers(matches, path) for path in _own(match, endings))
    return found


def _takers(matches: Sequence[RouteMatch | None], path: str) -> Iterator[int]:
    """Those that may take a POST to `path`; behind one that surely does come no others."""
    for number, match in enumerate(matches):
        verdict = matching.route(match, path) if match is not None else None
        if verdict is not False:
            yield number
        if verdict:
            return


def _own(match: RouteMatch, endings: Sequence[str]) -> Iterator[str]:
    """Paths with one of the endings that a route with a path or a prefix takes."""
    if match.path is not None:
        yield from (match.path for ending in endings if match.path.endswith(ending))
    start = match.prefix if match.prefix is not None else match.path_separated_prefix
    if start is not None:
        for ending in endings:
            yield start.removesuffix("/") + ending
            shared = (length for length in range(2, len(ending)) if start.endswith(ending[:length]))
            yield from (start + ending[length:] for length in shared)
