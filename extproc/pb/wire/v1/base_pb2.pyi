from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import wrappers_pb2 as _wrappers_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HttpStatusCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HTTP_STATUS_CODE_EMPTY: _ClassVar[HttpStatusCode]
    HTTP_STATUS_CODE_CONTINUE: _ClassVar[HttpStatusCode]
    HTTP_STATUS_CODE_OK: _ClassVar[HttpStatusCode]
    HTTP_STATUS_CODE_CREATED: _ClassVar[HttpStatusCode]
    HTTP_STATUS_CODE_ACCEPTED: _ClassVar[HttpStatusCode]
    HTTP_STATUS_CODE_NO_CONTENT: _ClassVar[HttpStatusCode]
    HTTP_STATUS_CODE_BAD_REQUEST: _ClassVar[HttpStatusCode]
    HTTP_STATUS_CODE_UNAUTHORIZED: _ClassVar[HttpStatusCode]
    HTTP_STATUS_CODE_PAYMENT_REQUIRED: _ClassVar[HttpStatusCode]
    HTTP_STATUS_CODE_FORBIDDEN: _ClassVar[HttpStatusCode]
    HTTP_STATUS_CODE_NOT_FOUND: _ClassVar[HttpStatusCode]
    HTTP_STATUS_CODE_METHOD_NOT_ALLOWED: _ClassVar[HttpStatusCode]
    HTTP_STATUS_CODE_NOT_ACCEPTABLE: _ClassVar[HttpStatusCode]
    HTTP_STATUS_CODE_REQUEST_TIMEOUT: _ClassVar[HttpStatusCode]
    HTTP_STATUS_CODE_CONFLICT: _ClassVar[HttpStatusCode]
    HTTP_STATUS_CODE_GONE: _ClassVar[HttpStatusCode]
    HTTP_STATUS_CODE_LENGTH_REQUIRED: _ClassVar[HttpStatusCode]
    HTTP_STATUS_CODE_PAYLOAD_TOO_LARGE: _ClassVar[HttpStatusCode]
    HTTP_STATUS_CODE_UNSUPPORTED_MEDIA_TYPE: _ClassVar[HttpStatusCode]
    HTTP_STATUS_CODE_UNPROCESSABLE_ENTITY: _ClassVar[HttpStatusCode]
    HTTP_STATUS_CODE_TOO_MANY_REQUESTS: _ClassVar[HttpStatusCode]
    HTTP_STATUS_CODE_REQUEST_HEADER_FIELDS_TOO_LARGE: _ClassVar[HttpStatusCode]
    HTTP_STATUS_CODE_INTERNAL_SERVER_ERROR: _ClassVar[HttpStatusCode]
    HTTP_STATUS_CODE_NOT_IMPLEMENTED: _ClassVar[HttpStatusCode]
    HTTP_STATUS_CODE_BAD_GATEWAY: _ClassVar[HttpStatusCode]
    HTTP_STATUS_CODE_SERVICE_UNAVAILABLE: _ClassVar[HttpStatusCode]
    HTTP_STATUS_CODE_GATEWAY_TIMEOUT: _ClassVar[HttpStatusCode]
HTTP_STATUS_CODE_EMPTY: HttpStatusCode
HTTP_STATUS_CODE_CONTINUE: HttpStatusCode
HTTP_STATUS_CODE_OK: HttpStatusCode
HTTP_STATUS_CODE_CREATED: HttpStatusCode
HTTP_STATUS_CODE_ACCEPTED: HttpStatusCode
HTTP_STATUS_CODE_NO_CONTENT: HttpStatusCode
HTTP_STATUS_CODE_BAD_REQUEST: HttpStatusCode
HTTP_STATUS_CODE_UNAUTHORIZED: HttpStatusCode
HTTP_STATUS_CODE_PAYMENT_REQUIRED: HttpStatusCode
HTTP_STATUS_CODE_FORBIDDEN: HttpStatusCode
HTTP_STATUS_CODE_NOT_FOUND: HttpStatusCode
HTTP_STATUS_CODE_METHOD_NOT_ALLOWED: HttpStatusCode
HTTP_STATUS_CODE_NOT_ACCEPTABLE: HttpStatusCode
HTTP_STATUS_CODE_REQUEST_TIMEOUT: HttpStatusCode
HTTP_STATUS_CODE_CONFLICT: HttpStatusCode
HTTP_STATUS_CODE_GONE: HttpStatusCode
HTTP_STATUS_CODE_LENGTH_REQUIRED: HttpStatusCode
HTTP_STATUS_CODE_PAYLOAD_TOO_LARGE: HttpStatusCode
HTTP_STATUS_CODE_UNSUPPORTED_MEDIA_TYPE: HttpStatusCode
HTTP_STATUS_CODE_UNPROCESSABLE_ENTITY: HttpStatusCode
HTTP_STATUS_CODE_TOO_MANY_REQUESTS: HttpStatusCode
HTTP_STATUS_CODE_REQUEST_HEADER_FIELDS_TOO_LARGE: HttpStatusCode
HTTP_STATUS_CODE_INTERNAL_SERVER_ERROR: HttpStatusCode
HTTP_STATUS_CODE_NOT_IMPLEMENTED: HttpStatusCode
HTTP_STATUS_CODE_BAD_GATEWAY: HttpStatusCode
HTTP_STATUS_CODE_SERVICE_UNAVAILABLE: HttpStatusCode
HTTP_STATUS_CODE_GATEWAY_TIMEOUT: HttpStatusCode

class HeaderValue(_message.Message):
    __slots__ = ("key", "value", "raw_value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    RAW_VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    raw_value: bytes
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ..., raw_value: _Optional[bytes] = ...) -> None: ...

class HeaderMap(_message.Message):
    __slots__ = ("headers",)
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    headers: _containers.RepeatedCompositeFieldContainer[HeaderValue]
    def __init__(self, headers: _Optional[_Iterable[_Union[HeaderValue, _Mapping]]] = ...) -> None: ...

class HeaderValueOption(_message.Message):
    __slots__ = ("header", "append", "append_action", "keep_empty_value")
    class AppendAction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        APPEND_ACTION_APPEND_IF_EXISTS_OR_ADD: _ClassVar[HeaderValueOption.AppendAction]
        APPEND_ACTION_ADD_IF_ABSENT: _ClassVar[HeaderValueOption.AppendAction]
        APPEND_ACTION_OVERWRITE_IF_EXISTS_OR_ADD: _ClassVar[HeaderValueOption.AppendAction]
        APPEND_ACTION_OVERWRITE_IF_EXISTS: _ClassVar[HeaderValueOption.AppendAction]
    APPEND_ACTION_APPEND_IF_EXISTS_OR_ADD: HeaderValueOption.AppendAction
    APPEND_ACTION_ADD_IF_ABSENT: HeaderValueOption.AppendAction
    APPEND_ACTION_OVERWRITE_IF_EXISTS_OR_ADD: HeaderValueOption.AppendAction
    APPEND_ACTION_OVERWRITE_IF_EXISTS: HeaderValueOption.AppendAction
    HEADER_FIELD_NUMBER: _ClassVar[int]
    APPEND_FIELD_NUMBER: _ClassVar[int]
    APPEND_ACTION_FIELD_NUMBER: _ClassVar[int]
    KEEP_EMPTY_VALUE_FIELD_NUMBER: _ClassVar[int]
    header: HeaderValue
    append: _wrappers_pb2.BoolValue
    append_action: HeaderValueOption.AppendAction
    keep_empty_value: bool
    def __init__(self, header: _Optional[_Union[HeaderValue, _Mapping]] = ..., append: _Optional[_Union[_wrappers_pb2.BoolValue, _Mapping]] = ..., append_action: _Optional[_Union[HeaderValueOption.AppendAction, str]] = ..., keep_empty_value: _Optional[bool] = ...) -> None: ...

class Metadata(_message.Message):
    __slots__ = ("filter_metadata",)
    class FilterMetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _struct_pb2.Struct
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...
    FILTER_METADATA_FIELD_NUMBER: _ClassVar[int]
    filter_metadata: _containers.MessageMap[str, _struct_pb2.Struct]
    def __init__(self, filter_metadata: _Optional[_Mapping[str, _struct_pb2.Struct]] = ...) -> None: ...

class SocketAddress(_message.Message):
    __slots__ = ("protocol", "address", "port_value", "named_port", "resolver_name", "ipv4_compat")
    class Protocol(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        PROTOCOL_TCP: _ClassVar[SocketAddress.Protocol]
        PROTOCOL_UDP: _ClassVar[SocketAddress.Protocol]
    PROTOCOL_TCP: SocketAddress.Protocol
    PROTOCOL_UDP: SocketAddress.Protocol
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PORT_VALUE_FIELD_NUMBER: _ClassVar[int]
    NAMED_PORT_FIELD_NUMBER: _ClassVar[int]
    RESOLVER_NAME_FIELD_NUMBER: _ClassVar[int]
    IPV4_COMPAT_FIELD_NUMBER: _ClassVar[int]
    protocol: SocketAddress.Protocol
    address: str
    port_value: int
    named_port: str
    resolver_name: str
    ipv4_compat: bool
    def __init__(self, protocol: _Optional[_Union[SocketAddress.Protocol, str]] = ..., address: _Optional[str] = ..., port_value: _Optional[int] = ..., named_port: _Optional[str] = ..., resolver_name: _Optional[str] = ..., ipv4_compat: _Optional[bool] = ...) -> None: ...

class Pipe(_message.Message):
    __slots__ = ("path", "mode")
    PATH_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    path: str
    mode: int
    def __init__(self, path: _Optional[str] = ..., mode: _Optional[int] = ...) -> None: ...

class EnvoyInternalAddress(_message.Message):
    __slots__ = ("server_listener_name", "endpoint_id")
    SERVER_LISTENER_NAME_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    server_listener_name: str
    endpoint_id: str
    def __init__(self, server_listener_name: _Optional[str] = ..., endpoint_id: _Optional[str] = ...) -> None: ...

class Address(_message.Message):
    __slots__ = ("socket_address", "pipe", "envoy_internal_address")
    SOCKET_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PIPE_FIELD_NUMBER: _ClassVar[int]
    ENVOY_INTERNAL_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    socket_address: SocketAddress
    pipe: Pipe
    envoy_internal_address: EnvoyInternalAddress
    def __init__(self, socket_address: _Optional[_Union[SocketAddress, _Mapping]] = ..., pipe: _Optional[_Union[Pipe, _Mapping]] = ..., envoy_internal_address: _Optional[_Union[EnvoyInternalAddress, _Mapping]] = ...) -> None: ...

class HttpStatus(_message.Message):
    __slots__ = ("code",)
    CODE_FIELD_NUMBER: _ClassVar[int]
    code: HttpStatusCode
    def __init__(self, code: _Optional[_Union[HttpStatusCode, str]] = ...) -> None: ...
