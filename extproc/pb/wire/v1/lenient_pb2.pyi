from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LenientMetadata(_message.Message):
    __slots__ = ("filter_metadata",)
    class FilterMetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    FILTER_METADATA_FIELD_NUMBER: _ClassVar[int]
    filter_metadata: _containers.ScalarMap[str, bytes]
    def __init__(self, filter_metadata: _Optional[_Mapping[str, bytes]] = ...) -> None: ...

class LenientProcessingRequest(_message.Message):
    __slots__ = ("metadata_context", "attributes")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    METADATA_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    metadata_context: LenientMetadata
    attributes: _containers.ScalarMap[str, bytes]
    def __init__(self, metadata_context: _Optional[_Union[LenientMetadata, _Mapping]] = ..., attributes: _Optional[_Mapping[str, bytes]] = ...) -> None: ...

class LenientStruct(_message.Message):
    __slots__ = ("fields",)
    class FieldsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    fields: _containers.ScalarMap[str, bytes]
    def __init__(self, fields: _Optional[_Mapping[str, bytes]] = ...) -> None: ...

class LenientAccessLogs(_message.Message):
    __slots__ = ("http_logs",)
    class Entries(_message.Message):
        __slots__ = ("log_entry",)
        LOG_ENTRY_FIELD_NUMBER: _ClassVar[int]
        log_entry: _containers.RepeatedCompositeFieldContainer[LenientAccessLogs.Entry]
        def __init__(self, log_entry: _Optional[_Iterable[_Union[LenientAccessLogs.Entry, _Mapping]]] = ...) -> None: ...
    class Entry(_message.Message):
        __slots__ = ("common_properties", "request", "response")
        COMMON_PROPERTIES_FIELD_NUMBER: _ClassVar[int]
        REQUEST_FIELD_NUMBER: _ClassVar[int]
        RESPONSE_FIELD_NUMBER: _ClassVar[int]
        common_properties: LenientAccessLogs.Common
        request: LenientAccessLogs.Request
        response: bytes
        def __init__(self, common_properties: _Optional[_Union[LenientAccessLogs.Common, _Mapping]] = ..., request: _Optional[_Union[LenientAccessLogs.Request, _Mapping]] = ..., response: _Optional[bytes] = ...) -> None: ...
    class Common(_message.Message):
        __slots__ = ("time_to_last_downstream_tx_byte", "upstream_remote_address", "response_flags", "metadata", "upstream_request_attempt_count", "intermediate_log_entry")
        TIME_TO_LAST_DOWNSTREAM_TX_BYTE_FIELD_NUMBER: _ClassVar[int]
        UPSTREAM_REMOTE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
        RESPONSE_FLAGS_FIELD_NUMBER: _ClassVar[int]
        METADATA_FIELD_NUMBER: _ClassVar[int]
        UPSTREAM_REQUEST_ATTEMPT_COUNT_FIELD_NUMBER: _ClassVar[int]
        INTERMEDIATE_LOG_ENTRY_FIELD_NUMBER: _ClassVar[int]
        time_to_last_downstream_tx_byte: bytes
        upstream_remote_address: bytes
        response_flags: bytes
        metadata: bytes
        upstream_request_attempt_count: int
        intermediate_log_entry: bool
        def __init__(self, time_to_last_downstream_tx_byte: _Optional[bytes] = ..., upstream_remote_address: _Optional[bytes] = ..., response_flags: _Optional[bytes] = ..., metadata: _Optional[bytes] = ..., upstream_request_attempt_count: _Optional[int] = ..., intermediate_log_entry: _Optional[bool] = ...) -> None: ...
    class Request(_message.Message):
        __slots__ = ("request_id", "request_headers")
        class RequestHeadersEntry(_message.Message):
            __slots__ = ("key", "value")
            KEY_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            key: str
            value: bytes
            def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
        REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
        REQUEST_HEADERS_FIELD_NUMBER: _ClassVar[int]
        request_id: bytes
        request_headers: _containers.ScalarMap[str, bytes]
        def __init__(self, request_id: _Optional[bytes] = ..., request_headers: _Optional[_Mapping[str, bytes]] = ...) -> None: ...
    HTTP_LOGS_FIELD_NUMBER: _ClassVar[int]
    http_logs: LenientAccessLogs.Entries
    def __init__(self, http_logs: _Optional[_Union[LenientAccessLogs.Entries, _Mapping]] = ...) -> None: ...
