"""Filters: what they mean, how they are refused, and that they agree with a plain evaluation of the same expression."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.admin.errors import AdminError
from extproc.admin.filter import DEEPEST, MOST_CHARACTERS, parse
from extproc.core.model import Request, State

NOW = 1000.0


def a_request(**changes: Any) -> Request:
    values: dict[str, Any] = {
        "id": "m-17",
        "seq": 17,
        "tenant": "team-a",
        "cls": "batch",
        "arrival": NOW - 31.0,
        "body_bytes": 4096,
        "prompt_tokens": 0.0,
        "output_tokens": 0.0,
        "max_output": None,
        "slots": 2,
        "deadline": NOW + 29.0,
        "expires_at": NOW + 29.0,
        "cost": 1200.5,
    }
    return Request(**(values | changes))


HELD = a_request()  # it has waited for 31 s, and may wait for 29 s more
INSIDE = a_request(
    id="m-3",
    tenant="acme/ml",
    cls="interactive",
    state=State.RUNNING,
    arrival=NOW - 90.25,
    released_at=NOW - 90.0,
    endpoint="10.0.0.1:8000",
    adapter="lora-*",
)


def meant(text: str, request: Request = HELD, *, pool: str = "llama", observed: bool = False) -> bool:
    return parse(text).matches(request, NOW, pool, observed)


@pytest.mark.parametrize(
    ("text", "held", "inside"),
    [
        ("", True, True),
        ("   ", True, True),
        ('tenant = "team-a" AND class = batch AND waited > 30s', True, False),
        ("tenant = 'team-a'", True, False),
        ("tenant=team-a", True, False),
        ("tenant != team-a", False, True),
        ("tenant = team*", True, False),
        ('tenant = "acme/*"', False, True),
        ("tenant != acme*", True, False),
        ("tenant = *", True, True),
        (r'adapter = "lora-\*"', False, True),
        (r'adapter = "lor\*"', False, False),
        ('adapter = ""', True, False),
        ("endpoint = 10.0.0.1:8000", False, True),
        ('endpoint != ""', False, True),
        ("pool = llama", True, True),
        ("pool = lama", False, False),
        ("id = m-17", True, False),
        ("state = queued", True, False),
        ("state = QUEUED OR state = Running", True, True),
        ("state != queued", False, True),
        ("waited >= 31s", True, False),
        ("waited > 31000ms", False, False),
        ("waited <= 250ms", False, True),
        ("inside > 1m", False, True),
        ("inside < 0.025h", True, False),  # 90 s
        ("inside <= 0.025h", True, True),
        ("timeout_in < 30s", True, False),
        ("timeout_in >= 0s", True, False),  # there is none inside
        ("timeout_in != 29s", False, True),
        ("NOT timeout_in < 30s", False, True),
        ("timeout_in > -5s", True, False),
        ("cost >= 1.2e3", True, True),
        ("cost = 1200.5", True, True),
        ("body_bytes = 4096 AND slots < 3", True, True),
        ("slots != 2", False, False),
        ("observed = false", True, True),
        ("observed != false", False, False),
        ("observed = TRUE", False, False),
        ("NOT NOT class = batch", True, False),
        ("NOT (class = batch OR slots = 1)", False, True),
        ("NOT class = batch AND slots = 2", False, True),
        ("(((class = batch)))", True, False),
        ("(tenant = team-a AND class = batch) OR state = running", True, True),
        ("class = batch AND (tenant = acme/ml OR slots = 2)", True, False),
        ("class\n=\tbatch", True, False),
        ("tenant = NOTABLE", False, False),
        ('tenant = "AND"', False, False),
    ],
)
def test_meaning(text: str, held: bool, inside: bool) -> None:
    assert (meant(text), meant(text, INSIDE)) == (held, inside)


def test_quotes_and_backslashes() -> None:
    odd = a_request(tenant='a "b" \\ *')
    assert meant(r'tenant = "a \"b\" \\ \*"', odd)
    assert meant(r"""tenant = 'a "b" \\ \*'""", odd)
    assert meant(r'tenant = "a \"b\"*"', odd)
    assert not meant(r'tenant = "a"', odd)


def test_observed_and_pool_come_with_the_request() -> None:
    assert meant("observed = true AND pool = chat", observed=True, pool="chat")


def test_the_fields_that_are_named() -> None:
    assert parse("state = queued AND NOT (tenant = a OR state = ended)").fields == {"state", "tenant"}
    assert parse("").fields == frozenset()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tennant = a", "at 1: 'tennant' is no field of a request; did you mean tenant?"),
        ("slots = 1 AND Class = batch", "at 15: 'Class' is no field of a request; did you mean class?"),
        ("xyzzy = 1", "known here: id, pool, tenant"),
        ("tenant", "at 7: expected one of = != < <= > >= after tenant, found the end"),
        ("tenant =", "at 9: expected a value for tenant, found the end"),
        ("tenant = AND", "at 10: expected a value for tenant, found 'AND'"),
        ("tenant : a", "at 8: expected one of"),
        ("tenant < a", "at 8: tenant can be compared by = and !=, not by <"),
        ("state >= queued", "state can be compared by = and !="),
        ("observed > true", "observed can be compared by = and !="),
        ("observed = yes", "at 12: observed is true or false, not 'yes'"),
        ("state = qeued", "at 9: 'qeued' is no state; did you mean queued?"),
        ("state = settled", "is no state"),
        ('state = "q*"', "is no state"),
        ("waited > 30", "at 10: waited is a duration with its unit, such as 250ms, 30s, 5m or 1h, not '30'"),
        ("waited > 30d", "is a duration with its unit"),
        ("waited > 1m30s", "is a duration with its unit"),
        ("waited > nans", "is a duration with its unit"),
        ("cost > many", "at 8: cost is a number, such as 1000 or 0.5, not 'many'"),
        ("cost > nan", "is a number"),
        ("cost > inf", "is a number"),
        ("cost > 1_000", "is a number"),
        ("tenant = *a", "at 10: a * may stand at the end"),
        ("tenant = a**", "a * may stand at the end"),
        ("tenant = a AND", "at 15: expected a comparison such as class = batch, found the end"),
        ("AND tenant = a", "at 1: expected a comparison such as class = batch, found 'AND'"),
        ("tenant = a slots = 1", "at 12: expected AND or OR, found 'slots'"),
        ("tenant = a and slots = 1", "at 12: did you mean AND? Its letters are capitals"),
        ("tenant = a AND slots = 1 OR slots = 2", "at 26: AND and OR side by side"),
        ("tenant = a OR slots = 1 AND slots = 2", "at 25: AND and OR side by side"),
        ("(tenant = a", "at 12: expected AND, OR or ), found the end"),
        ("tenant = a)", "at 11: this parenthesis was never opened"),
        ("()", "at 2: expected a comparison"),
        ("NOT", "at 4: expected a comparison"),
        ('tenant = "a', "at 10: this quote is never closed"),
        ("tenant ! a", "at 8: cannot be read: '!'"),
        ("tenant = a\\", "a backslash must stand before a character"),
        ('"tenant" = a', "at 1: expected a comparison"),
        ("= a", "at 1: expected a comparison"),
        (f"tenant = {'a' * MOST_CHARACTERS}", "4096 are the most"),
        ("(" * 40 + "slots = 1" + ")" * 40, f"at {DEEPEST + 1}: more than {DEEPEST} parentheses and NOTs"),
        ("NOT " * 1000 + "slots = 1", f"more than {DEEPEST} parentheses and NOTs"),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(AdminError) as caught:
        parse(text)
    assert caught.value.code.name == "INVALID_ARGUMENT"
    assert message in caught.value.message
    assert [violation.field for violation in caught.value.violations] == ["filter"]


@pytest.mark.parametrize("opening", ["(", "NOT "])
def test_as_deep_as_it_may_be(opening: str) -> None:
    closing = ")" * DEEPEST if opening == "(" else ""
    assert meant(opening * DEEPEST + "slots = 2" + closing)


# -- against a plain evaluation -----------------------------------------------------------------------

# An expression is ("and" | "or", [expressions]), ("not", expression) or ("is", field, operator, value in the text,
# value). It is written down with more parentheses than needed, and evaluated by a table.
_TEXTS = ["", "a", "ab", "b", 'x "y"', "*", "a*"]
_NUMBERS = [0, 1, 2, 2.5, 4096]
_SECONDS = {"0s": 0.0, "250ms": 0.25, "30s": 30.0, "0.5m": 30.0, "1h": 3600.0}
_KINDS = {
    **dict.fromkeys(["id", "pool", "tenant", "class", "endpoint", "adapter"], "text"),
    **dict.fromkeys(["cost", "body_bytes", "slots"], "number"),
    **dict.fromkeys(["waited", "inside", "timeout_in"], "duration"),
    "state": "state",
    "observed": "bool",
}


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("*", "\\*") + '"'


Expression = tuple[Any, ...]


def _an_expression(rng: random.Random, depth: int) -> Expression:
    kind = rng.choice(["is", "is", "not", "and", "or"]) if depth else "is"
    if kind == "not":
        return ("not", _an_expression(rng, depth - 1))
    if kind in ("and", "or"):
        return (kind, [_an_expression(rng, depth - 1) for _ in range(rng.randint(2, 3))])
    field = rng.choice(sorted(_KINDS))
    return ("is", field, rng.choice(_signs(_KINDS[field])), _a_value(rng, _KINDS[field]))


def _signs(kind: str) -> list[str]:
    return ["=", "!=", "<", "<=", ">", ">="] if kind in ("number", "duration") else ["=", "!="]


def _a_value(rng: random.Random, kind: str) -> tuple[str, Any]:
    """(as it is written, what it means; (beginning,) for what may go on)."""
    if kind == "text":
        text = rng.choice(_TEXTS)
        return rng.choice([(_quoted(text), text), (_quoted(text)[:-1] + '*"', (text,))])
    if kind == "number":
        number = rng.choice(_NUMBERS)
        return str(number), number
    if kind == "duration":
        return rng.choice(list(_SECONDS.items()))
    word = rng.choice(["queued", "released", "running", "ended"] if kind == "state" else ["true", "false"])
    return word, word if kind == "state" else word == "true"


def _some_request(rng: random.Random) -> dict[str, Any]:
    """What each field is; there is no time out of a request that is not held, and it is inside only then."""
    choices = {"text": _TEXTS, "number": _NUMBERS, "duration": sorted(_SECONDS.values()), "bool": [True, False]}
    found = {field: rng.choice(choices[kind]) for field, kind in _KINDS.items() if kind != "state"}
    found["state"] = rng.choice(["queued", "queued", "released", "running", "ended"])
    found["inside" if found["state"] == "queued" else "timeout_in"] = 0.0 if found["state"] == "queued" else None
    return found


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("*", "\\*") + '"'


def _written(expression: Expression) -> str:
    match expression:
        case ("is", field, sign, (text, _)):
            return f"{field} {sign} {text}"
        case ("not", inner):
            return f"NOT ({_written(inner)})"
        case (joint, parts):
            return f" {joint.upper()} ".join(f"({_written(part)})" for part in parts)
    raise AssertionError(expression)


def _evaluated(expression: Expression, request: dict[str, Any]) -> bool:
    match expression:
        case ("is", field, sign, (_, wanted)):
            found = request[field]
            if isinstance(wanted, tuple):
                same = str(found)[: len(wanted[0])] == wanted[0]
                return same if sign == "=" else not same
            if found is None:
                return sign == "!="
            order = (found > wanted) - (found < wanted)
            return {"=": [0], "!=": [-1, 1], "<": [-1], "<=": [-1, 0], ">": [1], ">=": [0, 1]}[sign].count(order) == 1
        case ("not", inner):
            return not _evaluated(inner, request)
        case ("and", parts):
            return [_evaluated(part, request) for part in parts].count(False) == 0
        case ("or", parts):
            return [_evaluated(part, request) for part in parts].count(True) > 0
    raise AssertionError(expression)


def test_agrees_with_a_plain_evaluation() -> None:
    rng = random.Random(160)
    outcomes = [_compare(_an_expression(rng, rng.randint(0, 3)), _some_request(rng)) for _ in range(3000)]
    assert 1000 < outcomes.count(True) < 2000


def _compare(expression: Expression, request: dict[str, Any]) -> bool:
    held = request["state"] == "queued"
    released_at = 0.0 if held else NOW - request["inside"]
    seen = a_request(
        id=request["id"],
        tenant=request["tenant"],
        cls=request["class"],
        state=State(request["state"]),
        released_at=released_at,
        arrival=(NOW if held else released_at) - request["waited"],
        expires_at=NOW + request["timeout_in"] if held else 0.0,
        endpoint=request["endpoint"],
        cost=request["cost"],
        body_bytes=request["body_bytes"],
        slots=request["slots"],
        adapter=request["adapter"],
    )
    found = parse(_written(expression)).matches(seen, NOW, request["pool"], request["observed"])
    assert found is _evaluated(expression, request), (_written(expression), request)
    return found


@settings(derandomize=True, deadline=None, max_examples=150)
@given(st.lists(st.sampled_from([*"()\"'\\=!<>* ANDORT019sm.-\né", "tenant", "waited", " AND ", "NOT "]), max_size=40))
def test_any_text_is_read_or_refused(parts: list[str]) -> None:
    try:
        parse("".join(parts))
    except AdminError as error:
        assert error.code.name == "INVALID_ARGUMENT"
