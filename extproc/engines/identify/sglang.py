"""How an SGLang is told a priority: by the member `priority` of the body, the highest number first.

Both can be asked for. `/server_info` (`/get_server_info` in older versions, deprecated in 0.5.23) has the
start parameters: `enable_priority_scheduling` (off by default; absent in versions that have none),
`schedule_low_priority_values_first` turns the order round, and `abort_on_priority_when_disabled` makes an engine that
has priorities off answer 503 to a request that has one. With an API key set the page wants it.

Unlike vLLM it stops requests that run for one that is better by more than `priority_scheduling_preemption_threshold`
(10), unless `disable_priority_preemption`; Fairlane's classes lie further apart than that, so it is told in the log.
A request without a priority counts as the worst. `n` > 1: all choices have the request's number; no fault is known.
"""

from __future__ import annotations

from extproc.core.priority import PriorityWay
from extproc.engines.identify.facts import EngineFacts
from extproc.engines.identify.question import Questions

_PAGES = ("/server_info", "/get_server_info")


async def identify_sglang(ask: Questions) -> EngineFacts:
    answer = await ask.get(_PAGES[0])
    if answer.status == 404:
        answer = await ask.get(_PAGES[1])
    version, where = answer.text("version"), answer.path
    told = f"SGLang {version or '(version not known)'}"
    if not isinstance(answer.value, dict) or not answer.ok:
        why = answer.problem or "an answer of another shape"
        return EngineFacts(
            engine="sglang",
            version=None,
            way=PriorityWay(high_first=True),
            told=f"{told}: not known whether it takes priorities, so none is told",
            warning=(
                f"{where}, which shows whether it runs with `--enable-priority-scheduling`, gave {why}; "
                "if it does, set `priority_via: body`"
            ),
        )

    high_first = answer.get("schedule_low_priority_values_first") is not True
    if answer.get("enable_priority_scheduling") is not True:
        aborts = answer.get("abort_on_priority_when_disabled") is True
        refuses = "has priorities switched off and answers 503 to a request with one" if aborts else None
        return EngineFacts(
            engine="sglang",
            version=version,
            way=PriorityWay(high_first=high_first),
            told=f"{told}: no priorities ({where})",
            warning="it runs without priorities, in order of arrival; start it with `--enable-priority-scheduling`",
            refuses=refuses,
        )
    order = "highest" if high_first else "lowest"
    preempts = answer.get("disable_priority_preemption") is not True
    return EngineFacts(
        engine="sglang",
        version=version,
        way=PriorityWay(body=True, high_first=high_first),
        told=f"{told}: priorities by the body only, {order} first{_preemption(preempts)} ({where})",
    )


def _preemption(preempts: bool) -> str:
    return ", and running requests are stopped for better ones" if preempts else ""
