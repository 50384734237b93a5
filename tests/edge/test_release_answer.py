"""The answer that is written byte by byte, against the generated classes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.edge.release_answer import release
from extproc.edge.wire import request_headers_answer
from extproc.pb.wire.v1 import ext_proc_pb2

names = st.sampled_from(["x-vllm-priority", "x-fairlane-ticket", "x-fairlane-class", "n" * 200])
values = st.text(max_size=300) | st.sampled_from(["", "0", "1000000", "v" * 127, "v" * 128, "v" * 20_000])


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.dictionaries(names, values),
    st.sampled_from(["10.0.0.1:8000", "[::1]:8000", "10.0.0.1:8000,10.0.0.2:8000,[fe80::1]:8000", "a" * 300, None]),
    st.sampled_from([None, "", '"priority":3', '"model":"' + "ö" * 200 + '"']),
    st.lists(names, unique=True, max_size=3),
)
@pytest.mark.slow
def test_it_says_what_the_generated_classes_say(
    headers: dict[str, str], address: str | None, append: str | None, remove: list[str]
) -> None:
    wanted = ext_proc_pb2.ProcessingResponse.FromString(request_headers_answer(headers, remove))
    if address is not None:
        wanted.dynamic_metadata.update({"fairlane.endpoint": {"address": address}})
    if append is not None:
        wanted.dynamic_metadata.update({"fairlane.body": {"append": append}})
    assert ext_proc_pb2.ProcessingResponse.FromString(release(headers, address, append, tuple(remove))) == wanted
