"""How a vLLM is told a priority. Lower numbers run first, in every version.

By version, from vLLM's sources:
- since 0.28: the header X-Vllm-Priority, which overrides the member of the body, on every generating route.
- 0.11 to 0.27: the member `priority` of the body, always taken.
- before: the member, unless the engine has it switched off. The first engine (V0, gone in 0.11) refuses any number but
  0 with status 400 under `--scheduling-policy fcfs`, the early V1 (before 0.9.2) always, and versions before 0.6.3 know
  no such member. So these are sent a request of one token with a priority, and the answer decides.

Since 0.9.2 an engine under fcfs, the default, takes a priority and ignores it without a word. That shows on its HTTP
side only in development mode (VLLM_SERVER_DEV_MODE=1), as `/server_info?config_format=json`, since 0.11. Elsewhere the
warning says what to check. Sending requests to see in which order they run would need a full engine, so it is not done.

`n` > 1: all choices of a request become requests of their own with one number and one time of arrival. From 0.9.2 until
0.12 the queue under `--scheduling-policy priority` cannot order two such, and the engine's process ends (issue 29747),
whatever the number is and also without any. So keeping the priority back would protect nobody: the rule is one
priority for all choices, and a warning to update.
"""

from __future__ import annotations

from typing import Final

from extproc.core.priority import PriorityWay
from extproc.engines.identify.facts import NO_WAY, EngineFacts
from extproc.engines.identify.question import Answer, Questions, shown
from extproc.engines.identify.versions import Release, Version, parse

_HEADER: Final = PriorityWay(header=True)
_BODY: Final = PriorityWay(body=True)
_BOTH: Final = PriorityWay(header=True, body=True)

_HEADER_SINCE: Final = (0, 28, 0)
_ALWAYS_TAKEN_SINCE: Final = (0, 11, 0)
_IGNORED_SINCE: Final = (0, 9, 2)  # a priority under fcfs, without a word

# what ends an engine under `--scheduling-policy priority`: since, fixed in, in words
_FAULTS: Final[tuple[tuple[Release, Release, str], ...]] = (
    ((0, 9, 2), (0, 12, 0), "a request with n > 1 ends this version, whatever its priority (vLLM issue 29747)"),
    ((0, 9, 2), (0, 10, 2), "it may end when it preempts (vLLM issue 23347)"),
)
_SWITCHED_OFF: Final = ("priority scheduling is not enabled", "does not support priority")
_START: Final = "start it with `--scheduling-policy priority`"


async def identify_vllm(ask: Questions, model: str | None) -> EngineFacts:
    """`model`: a name that it serves, for the probe; None: the first that it names."""
    answer = await ask.get("/version")
    text = answer.text("version")
    version = None if text is None else parse(text)
    if version is not None and version.release < _ALWAYS_TAKEN_SINCE:
        return await _by_probe(ask, text, version, model)

    policy = await _policy(ask)
    warnings = []
    if version is None:
        way, found = _HEADER, "by X-Vllm-Priority, as versions since 0.28 read it"
        why = answer.problem or (f"it calls itself {text!r}" if text else "no version in the answer")
        warnings.append(
            f"which vLLM this is could not be seen at /version ({why}); versions before 0.28 ignore that header"
        )
    elif version.release >= _HEADER_SINCE:
        way, found = _HEADER, "by X-Vllm-Priority"
    elif version.dev and version.release >= (0, 27, 0):
        way, found = _BOTH, "by the body, and by X-Vllm-Priority if this build has it already"
    else:
        way, found = _BODY, "by the body only"
    if policy is not None:
        found += f"; it runs `--scheduling-policy {policy}` (/server_info)"
    warnings += _doubts(policy)
    if version is not None and policy in (None, "priority"):
        warnings += _faults(version)
    return _facts(text, way, f"priorities {found} (/version)", warnings)


async def _policy(ask: Questions) -> str | None:
    """`--scheduling-policy`, in development mode. None: it does not show."""
    answer = await ask.get("/server_info?config_format=json")
    value = answer.get("vllm_config", "scheduler_config", "policy")
    return shown(value, 40) if isinstance(value, str) and value else None


def _doubts(policy: str | None) -> list[str]:
    if policy == "priority":
        return []
    if policy is not None:
        return [f"it takes priorities and ignores them under `--scheduling-policy {policy}`; {_START}"]
    return [
        "whether it heeds priorities does not show: under `--scheduling-policy fcfs`, the default, it ignores them "
        f"without a word; check its command line and {_START}"
    ]


def _faults(version: Version) -> list[str]:
    return [
        f"under `--scheduling-policy priority` {what}; update to {'.'.join(map(str, fixed))} or later"
        for since, fixed, what in _FAULTS
        if since <= version.release < fixed
    ]


def _facts(
    text: str | None, way: PriorityWay, found: str, warnings: list[str], refuses: str | None = None
) -> EngineFacts:
    told = f"vLLM {text or '(version not known)'}: {found}"
    return EngineFacts("vllm", text, way, told, "; ".join(warnings) or None, refuses)


# old versions


async def _by_probe(ask: Questions, text: str | None, version: Version, model: str | None) -> EngineFacts:
    name = model or await _served(ask)
    if name is None:
        return _facts(
            text,
            NO_WAY,
            "not known whether it takes priorities, so none is told",
            ["it names no model at /v1/models to be asked with; say what it does with `priority_via`"],
        )
    body = {"model": name, "prompt": "a", "max_tokens": 1, "priority": 1}
    answer = await ask.post("/v1/completions", body)
    if answer.status == 200:
        doubts = _doubts(None) if version.release >= _IGNORED_SINCE else []
        found = "priorities by the body only (a request with one was taken)"
        return _facts(text, _BODY, found, doubts + _faults(version))
    words = answer.complaint
    if answer.status == 400 and any(sign in words.lower() for sign in _SWITCHED_OFF):
        cure = _START if "not enabled" in words.lower() else "update it to 0.9.2 or later"
        return _refusing(text, answer, f"it has priorities switched off ({words!r}); {cure}")
    if answer.status in (400, 422) and "extra" in words.lower():
        return _refusing(text, answer, f"it knows no priorities ({words!r}); update it")
    return _facts(
        text,
        NO_WAY,
        "not known whether it takes priorities, so none is told",
        [f"the request that was to show it got {_got(answer)}; say what the engine does with `priority_via`"],
    )


async def _served(ask: Questions) -> str | None:
    models = (await ask.get("/v1/models")).get("data")
    first = models[0] if isinstance(models, list) and models else None
    name = first.get("id") if isinstance(first, dict) else None
    return name if isinstance(name, str) else None


def _refusing(text: str | None, answer: Answer, warning: str) -> EngineFacts:
    refuses = f"answers {answer.status} to a request with a priority in its body"
    return _facts(text, NO_WAY, "no priorities (a request with one was refused)", [warning], refuses)


def _got(answer: Answer) -> str:
    words = answer.complaint
    return f"{answer.problem or 'an answer'}" + (f" ({words!r})" if words else "")
