"""Whether the engines obey the priority that Fairlane tells them; asked at the engines, where that is wanted.

vLLM has no page that always shows its scheduling policy: /server_info does, in its development mode alone. What is
always there is /version, and older versions do not read the header. An engine that takes priorities without obeying
them answers as well as any other; so what cannot be seen is a note.
"""

from __future__ import annotations

import http.client
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from extproc.config.model import Config
from extproc.config.scheduling import Pool
from extproc.wiring.doctor.check import Check
from extproc.wiring.doctor.facts import edited
from extproc.wiring.doctor.finding import Hit, Severity
from extproc.wiring.doctor.setup import Answer, Setup

_TIMEOUT_S = 3.0
_LARGEST = 4 * 1024**2
_HEADER_SINCE = (0, 28)  # vLLM
_WITHOUT = ("llamacpp", "tgi", "tensorrt_llm", "triton")  # engines that take no priority
_VERSION = re.compile(r"(\d+)\.(\d+)")
_POLICY = re.compile(r"""["']?\b(?:scheduling_)?policy\b["']?\s*[:=]\s*["'](\w+)["']""")


@dataclass(frozen=True, slots=True)
class _Page:
    text: str
    error: str = ""  # why there is none; empty: there is one
    reached: bool = True


def ask(config: Config) -> dict[str, Answer]:
    """What each engine says of itself, by its address. Takes up to six seconds for one that does not answer."""
    return {address: _ask(address) for pool in _told(config) for address in pool.endpoints.known}


def _told(config: Config) -> Iterable[Pool]:
    """Pools whose engines are told a priority that they may obey."""
    return [pool for pool in config.pools if pool.priority_via != "off" and pool.engine not in _WITHOUT]


def _ask(address: str) -> Answer:
    page = _get(f"http://{address}/version")
    if not page.reached:
        return Answer(error=page.error)
    info = _get(f"http://{address}/server_info?config_format=json")
    policy = _POLICY.search(info.text)
    return Answer(version=_version(page.text), policy=policy[1] if policy is not None else None)


def _version(text: str) -> str | None:
    try:
        data = json.loads(text)
    except ValueError:
        return None
    version = data.get("version") if isinstance(data, dict) else None
    return version if isinstance(version, str) and _VERSION.match(version) else None


def _get(url: str) -> _Page:
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - http, written above
            return _Page(answer.read(_LARGEST).decode("utf-8", "replace"))
    except urllib.error.HTTPError as error:
        return _Page("", f"answered {error.code}")
    except (OSError, ValueError, http.client.HTTPException) as error:
        return _Page("", str(getattr(error, "reason", error)) or type(error).__name__, reached=False)


def _each(setup: Setup) -> Iterator[tuple[Pool, str, Answer]]:
    answers: Mapping[str, Answer] = setup.answers or {}
    for pool in _told(setup.config):
        for address in pool.endpoints.known:
            if address in answers:
                yield pool, address, answers[address]


def _not_asked(setup: Setup) -> Iterator[Hit]:
    names = [pool.name for pool in _told(setup.config)]
    if setup.answers is None and names:
        yield Hit("pools", f"the engines of {', '.join(names)} were not asked; --check-engines asks them")


def _unreachable(setup: Setup) -> Iterator[Hit]:
    for pool, address, answer in _each(setup):
        if answer.error:
            yield Hit(f"pools: {pool.name}: {address}", f"cannot be reached: {answer.error}")


def _too_old(setup: Setup) -> Iterator[Hit]:
    for pool, address, answer in _each(setup):
        version = _VERSION.match(answer.version or "")
        numbers = (int(version[1]), int(version[2])) if version is not None else _HEADER_SINCE
        by_header = pool.priority_via == "header" or (pool.priority_via == "auto" and not _edited(setup))
        if by_header and numbers < _HEADER_SINCE:
            yield Hit(f"pools: {pool.name}: {address}", f"is vLLM {answer.version}")


def _edited(setup: Setup) -> bool:
    return all(edited(gateway) for gateway in setup.gateways)


def _policy_off(setup: Setup) -> Iterator[Hit]:
    for pool, address, answer in _each(setup):
        if answer.policy is not None and answer.policy != "priority":
            yield Hit(f"pools: {pool.name}: {address}", f"its scheduling policy is {answer.policy}")


def _policy_unknown(setup: Setup) -> Iterator[Hit]:
    for pool, address, answer in _each(setup):
        if not answer.error and answer.policy is None:
            kind = f"vLLM {answer.version}" if answer.version is not None else "an engine without /version"
            yield Hit(f"pools: {pool.name}: {address}", f"{kind} does not show its scheduling policy")


_FIX = "# start vLLM with --scheduling-policy priority, or set priority_via: off for the pool"

CHECKS = (
    Check(
        "engines_not_asked",
        Severity.NOTE,
        "vLLM takes a priority and ignores it unless it was started with --scheduling-policy priority.",
        _FIX,
        _not_asked,
    ),
    Check(
        "engine_unreachable",
        Severity.WARNING,
        "Fairlane sends requests to the endpoints in fairlane.yaml, and reads their metrics there.",
        "# pools[].endpoints of fairlane.yaml",
        _unreachable,
    ),
    Check(
        "engine_too_old",
        Severity.ERROR,
        "vLLM reads the header X-Vllm-Priority since 0.28; an older one goes by `priority` in the body, which any "
        "client can write.",
        "# in fairlane.yaml, for the pool: priority_via: body; and Envoy's configuration as fairlane envoy-config then "
        "writes it",
        _too_old,
    ),
    Check(
        "engine_policy",
        Severity.ERROR,
        "Without --scheduling-policy priority vLLM takes requests in the order of their arrival.",
        _FIX,
        _policy_off,
    ),
    Check(
        "engine_policy_unknown",
        Severity.NOTE,
        "vLLM shows its policy on /server_info in its development mode alone.",
        _FIX,
        _policy_unknown,
    ),
)
