"""Envoy's matchers, as far as a request's method, path and headers decide them.

True and False are certain; None is "it depends on what is not known here". Patterns are RE2 in Envoy and Python's here:
for those that people write in routes the two agree, and one that Python refuses is None.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from envoy_data_plane.envoy.config.accesslog.v3 import AccessLogFilter
from envoy_data_plane.envoy.config.route.v3 import HeaderMatcher, RouteMatch
from envoy_data_plane.envoy.type.matcher.v3 import StringMatcher

Verdict = bool | None


def every(verdicts: Iterable[Verdict]) -> Verdict:
    found = list(verdicts)
    return False if False in found else None if None in found else True


def some(verdicts: Iterable[Verdict]) -> Verdict:
    found = list(verdicts)
    return True if True in found else None if None in found else False


def full_match(pattern: str, text: str) -> Verdict:
    try:
        return re.fullmatch(pattern, text) is not None
    except re.error:
        return None


def string(matcher: StringMatcher, text: str) -> Verdict:
    if matcher.safe_regex is not None:
        return full_match(matcher.safe_regex.regex, text)
    lower: Callable[[str], str] = str.lower if matcher.ignore_case else str
    text = lower(text)
    if matcher.exact is not None:
        return text == lower(matcher.exact)
    if matcher.prefix is not None:
        return text.startswith(lower(matcher.prefix))
    if matcher.suffix is not None:
        return text.endswith(lower(matcher.suffix))
    if matcher.contains is not None:
        return lower(matcher.contains) in text
    return None


def header(matcher: HeaderMatcher, headers: Mapping[str, str]) -> Verdict:
    """`headers`: those that are known; any other may be there or not."""
    text = headers.get(matcher.name.lower())
    if text is None:
        return None
    verdict: Verdict
    if matcher.string_match is not None:
        verdict = string(matcher.string_match, text)
    elif matcher.exact_match is not None:
        verdict = text == matcher.exact_match
    elif matcher.prefix_match is not None:
        verdict = text.startswith(matcher.prefix_match)
    elif matcher.suffix_match is not None:
        verdict = text.endswith(matcher.suffix_match)
    elif matcher.contains_match is not None:
        verdict = matcher.contains_match in text
    elif matcher.safe_regex_match is not None:
        verdict = full_match(matcher.safe_regex_match.regex, text)
    elif matcher.range_match is not None:
        verdict = None
    else:  # present_match, or nothing: whether it is there
        verdict = matcher.present_match is not False
    return not verdict if matcher.invert_match and verdict is not None else verdict


def route(match: RouteMatch, path: str, method: str = "POST") -> Verdict:
    """Whether a route takes the request. `path`: without its query."""
    return every([_path(match, path), _conditions(match, {":method": method, ":path": path})])


def access_log(condition: AccessLogFilter | None, path: str, status: int = 200) -> Verdict:
    """Whether a request is logged that was queued and answered."""
    if condition is None:
        return True
    if condition.and_filter is not None:
        return every(access_log(each, path, status) for each in condition.and_filter.filters)
    if condition.or_filter is not None:
        return some(access_log(each, path, status) for each in condition.or_filter.filters)
    if condition.header_filter is not None and condition.header_filter.header is not None:
        return header(condition.header_filter.header, {":method": "POST", ":path": path})
    if condition.not_health_check_filter is not None:
        return True
    if condition.response_flag_filter is not None:
        return False  # an answer that went well has no flag
    return None


def _path(match: RouteMatch, path: str) -> Verdict:
    lower: Callable[[str], str] = str.lower if match.case_sensitive is False else str
    if match.path is not None:
        return lower(path) == lower(match.path)
    if match.prefix is not None:
        return lower(path).startswith(lower(match.prefix))
    if match.safe_regex is not None:
        return full_match(match.safe_regex.regex, path)
    if match.path_separated_prefix is not None:
        return (lower(path) + "/").startswith(lower(match.path_separated_prefix) + "/")
    return None if match.path_match_policy is not None else False


def _conditions(match: RouteMatch, headers: Mapping[str, str]) -> Verdict:
    uncertain = match.query_parameters or match.cookies or match.dynamic_metadata or match.filter_state
    if match.grpc is not None:
        return False
    other: Verdict = None if uncertain or match.runtime_fraction is not None or match.tls_context is not None else True
    return every([other, *(header(each, headers) for each in match.headers)])
