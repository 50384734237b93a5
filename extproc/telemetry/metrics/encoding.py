"""The two text formats of Prometheus: OpenMetrics 1.0, and the one before it (0.0.4).

prometheus-client's encoders look at the names and labels of each sample again, in places character by character, and
take two to four times as long, which is too long with hundreds of engines (`fairlane bench metrics`). The bytes are the
same as theirs for what we have: counters, gauges and histograms without exemplars and times, with plain names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.core import Metric
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

Encode = Callable[[Sequence[Metric]], bytes]

_OPENMETRICS: Final = "application/openmetrics-text"


def chosen(accept: str) -> tuple[Encode, str]:
    """The encoder for a header `Accept`, and its content type. OpenMetrics for whoever can read its version 1."""
    for kind in accept.split(","):
        name, *parameters = (part.strip() for part in kind.lower().split(";"))
        versions = [each.partition("=")[2] for each in parameters if each.startswith("version=")]
        if name == _OPENMETRICS and all(version.startswith("1.") for version in versions):
            return openmetrics, CONTENT_TYPE_LATEST
    return plain, CONTENT_TYPE_PLAIN_0_0_4


def openmetrics(families: Sequence[Metric]) -> bytes:
    lines: list[str] = []
    line = _Lines()
    for family in families:
        _head(lines, family.name, _quoted(family.documentation), family.type)
        lines += [line.of(sample) for sample in family.samples]
    lines.append("# EOF\n")
    return "".join(lines).encode()


def plain(families: Sequence[Metric]) -> bytes:
    """Here a counter's name has its `_total`, and times of creation are gauges."""
    lines: list[str] = []
    line = _Lines()
    for family in families:
        text = family.documentation.replace("\\", r"\\").replace("\n", r"\n")
        _head(lines, f"{family.name}_total" if family.type == "counter" else family.name, text, family.type)
        name = f"{family.name}_created"
        created: list[str] = []
        for sample in family.samples:
            (created if sample.name == name else lines).append(line.of(sample))
        if created:
            _head(lines, name, text, "gauge")
            lines += created
    return "".join(lines).encode()


class _Lines:
    """Lines of one page. Labels that samples share, and all that is the same, are put into text once."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}  # by the labels' identity: the page's families keep them as they are
        self._quoted = _Quoted()
        self._numbers = _Numbers()

    def of(self, sample: Sample) -> str:
        labels = sample.labels
        text = self._texts.get(id(labels))
        if text is None:
            text = self._texts[id(labels)] = self._text(labels)
        return f"{sample.name}{text} {self._numbers[sample.value]}\n"

    def _text(self, labels: Mapping[str, str]) -> str:
        quoted = self._quoted
        pairs = [f'{name}="{quoted[labels[name]]}"' for name in sorted(labels)]
        return f"{{{','.join(pairs)}}}" if pairs else ""


class _Quoted(dict[str, str]):
    """Value of a label -> as it is written."""

    def __missing__(self, value: str) -> str:
        text = self[value] = _quoted(value)
        return text


class _Numbers(dict[float, str]):
    def __missing__(self, value: float) -> str:
        text: str = floatToGoString(value)  # type: ignore[no-untyped-call]
        self[value] = text
        return text


def _quoted(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _head(lines: list[str], name: str, text: str, kind: str) -> None:
    lines.append(f"# HELP {name} {text}\n# TYPE {name} {kind}\n")
