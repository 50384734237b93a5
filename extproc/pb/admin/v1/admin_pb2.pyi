import datetime

from google.api import field_behavior_pb2 as _field_behavior_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import field_mask_pb2 as _field_mask_pb2
from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ClusterMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CLUSTER_MODE_UNSPECIFIED: _ClassVar[ClusterMode]
    SINGLE: _ClassVar[ClusterMode]
    STANDBY: _ClassVar[ClusterMode]
    PARTITION: _ClassVar[ClusterMode]
    SHARED: _ClassVar[ClusterMode]

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    VIEWER: _ClassVar[Role]
    OPERATOR: _ClassVar[Role]
    ADMIN: _ClassVar[Role]

class PoolMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    POOL_MODE_UNSPECIFIED: _ClassVar[PoolMode]
    ENFORCE: _ClassVar[PoolMode]
    OBSERVE: _ClassVar[PoolMode]
    OFF: _ClassVar[PoolMode]

class PercentageOf(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PERCENTAGE_OF_UNSPECIFIED: _ClassVar[PercentageOf]
    TENANTS: _ClassVar[PercentageOf]
    REQUESTS: _ClassVar[PercentageOf]

class Traffic(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRAFFIC_UNSPECIFIED: _ClassVar[Traffic]
    OPEN: _ClassVar[Traffic]
    PAUSED: _ClassVar[Traffic]
    DRAINING: _ClassVar[Traffic]

class Stance(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STANCE_UNSPECIFIED: _ClassVar[Stance]
    FRESH: _ClassVar[Stance]
    STALE: _ClassVar[Stance]
    OUTAGE: _ClassVar[Stance]
    STARTING: _ClassVar[Stance]
    DOWN: _ClassVar[Stance]
    STALLED: _ClassVar[Stance]

class RequestState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REQUEST_STATE_UNSPECIFIED: _ClassVar[RequestState]
    QUEUED: _ClassVar[RequestState]
    RELEASED: _ClassVar[RequestState]
    RUNNING: _ClassVar[RequestState]
    ENDED: _ClassVar[RequestState]

class ConfigView(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONFIG_VIEW_UNSPECIFIED: _ClassVar[ConfigView]
    EFFECTIVE: _ClassVar[ConfigView]
    FILE: _ClassVar[ConfigView]
    OVERRIDES: _ClassVar[ConfigView]

class Overflow(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OVERFLOW_UNSPECIFIED: _ClassVar[Overflow]
    SHED_HEAVIEST: _ClassVar[Overflow]
    REJECT_NEWEST: _ClassVar[Overflow]

class QueueOrder(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    QUEUE_ORDER_UNSPECIFIED: _ClassVar[QueueOrder]
    FIFO: _ClassVar[QueueOrder]
    SHORTEST_FIRST: _ClassVar[QueueOrder]
    DEADLINE: _ClassVar[QueueOrder]

class RevisionKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REVISION_KIND_UNSPECIFIED: _ClassVar[RevisionKind]
    START: _ClassVar[RevisionKind]
    CHANGE: _ClassVar[RevisionKind]
    ROLLBACK: _ClassVar[RevisionKind]
    EXPIRY: _ClassVar[RevisionKind]
    FILE_RELOAD: _ClassVar[RevisionKind]
    SET_ASIDE: _ClassVar[RevisionKind]
CLUSTER_MODE_UNSPECIFIED: ClusterMode
SINGLE: ClusterMode
STANDBY: ClusterMode
PARTITION: ClusterMode
SHARED: ClusterMode
ROLE_UNSPECIFIED: Role
VIEWER: Role
OPERATOR: Role
ADMIN: Role
POOL_MODE_UNSPECIFIED: PoolMode
ENFORCE: PoolMode
OBSERVE: PoolMode
OFF: PoolMode
PERCENTAGE_OF_UNSPECIFIED: PercentageOf
TENANTS: PercentageOf
REQUESTS: PercentageOf
TRAFFIC_UNSPECIFIED: Traffic
OPEN: Traffic
PAUSED: Traffic
DRAINING: Traffic
STANCE_UNSPECIFIED: Stance
FRESH: Stance
STALE: Stance
OUTAGE: Stance
STARTING: Stance
DOWN: Stance
STALLED: Stance
REQUEST_STATE_UNSPECIFIED: RequestState
QUEUED: RequestState
RELEASED: RequestState
RUNNING: RequestState
ENDED: RequestState
CONFIG_VIEW_UNSPECIFIED: ConfigView
EFFECTIVE: ConfigView
FILE: ConfigView
OVERRIDES: ConfigView
OVERFLOW_UNSPECIFIED: Overflow
SHED_HEAVIEST: Overflow
REJECT_NEWEST: Overflow
QUEUE_ORDER_UNSPECIFIED: QueueOrder
FIFO: QueueOrder
SHORTEST_FIRST: QueueOrder
DEADLINE: QueueOrder
REVISION_KIND_UNSPECIFIED: RevisionKind
START: RevisionKind
CHANGE: RevisionKind
ROLLBACK: RevisionKind
EXPIRY: RevisionKind
FILE_RELOAD: RevisionKind
SET_ASIDE: RevisionKind

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Status(_message.Message):
    __slots__ = ("version", "start_time", "serving", "revision", "etag", "file", "state", "override_count", "expiries", "recording", "pool_count", "queued_count", "in_flight_slots", "watcher_count", "caller", "caller_role", "observed_count", "cluster")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    OVERRIDE_COUNT_FIELD_NUMBER: _ClassVar[int]
    EXPIRIES_FIELD_NUMBER: _ClassVar[int]
    RECORDING_FIELD_NUMBER: _ClassVar[int]
    POOL_COUNT_FIELD_NUMBER: _ClassVar[int]
    QUEUED_COUNT_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_SLOTS_FIELD_NUMBER: _ClassVar[int]
    WATCHER_COUNT_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    CALLER_ROLE_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_COUNT_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    version: str
    start_time: _timestamp_pb2.Timestamp
    serving: bool
    revision: int
    etag: str
    file: FileStatus
    state: StateStatus
    override_count: int
    expiries: _containers.RepeatedCompositeFieldContainer[PendingExpiry]
    recording: RecordingStatus
    pool_count: int
    queued_count: int
    in_flight_slots: int
    watcher_count: int
    caller: str
    caller_role: Role
    observed_count: int
    cluster: ClusterStatus
    def __init__(self, version: _Optional[str] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., serving: _Optional[bool] = ..., revision: _Optional[int] = ..., etag: _Optional[str] = ..., file: _Optional[_Union[FileStatus, _Mapping]] = ..., state: _Optional[_Union[StateStatus, _Mapping]] = ..., override_count: _Optional[int] = ..., expiries: _Optional[_Iterable[_Union[PendingExpiry, _Mapping]]] = ..., recording: _Optional[_Union[RecordingStatus, _Mapping]] = ..., pool_count: _Optional[int] = ..., queued_count: _Optional[int] = ..., in_flight_slots: _Optional[int] = ..., watcher_count: _Optional[int] = ..., caller: _Optional[str] = ..., caller_role: _Optional[_Union[Role, str]] = ..., observed_count: _Optional[int] = ..., cluster: _Optional[_Union[ClusterStatus, _Mapping]] = ...) -> None: ...

class ClusterStatus(_message.Message):
    __slots__ = ("mode", "name", "replica", "active", "active_replica", "store_used", "store_lost", "store_lost_for", "store_error", "exchange_age", "exchange_count", "failure_count", "replicas", "expected_count", "replica_in_use", "other_versions")
    MODE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_REPLICA_FIELD_NUMBER: _ClassVar[int]
    STORE_USED_FIELD_NUMBER: _ClassVar[int]
    STORE_LOST_FIELD_NUMBER: _ClassVar[int]
    STORE_LOST_FOR_FIELD_NUMBER: _ClassVar[int]
    STORE_ERROR_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_AGE_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    FAILURE_COUNT_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_COUNT_FIELD_NUMBER: _ClassVar[int]
    REPLICA_IN_USE_FIELD_NUMBER: _ClassVar[int]
    OTHER_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    mode: ClusterMode
    name: str
    replica: str
    active: bool
    active_replica: str
    store_used: bool
    store_lost: bool
    store_lost_for: _duration_pb2.Duration
    store_error: str
    exchange_age: _duration_pb2.Duration
    exchange_count: int
    failure_count: int
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaStatus]
    expected_count: int
    replica_in_use: bool
    other_versions: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, mode: _Optional[_Union[ClusterMode, str]] = ..., name: _Optional[str] = ..., replica: _Optional[str] = ..., active: _Optional[bool] = ..., active_replica: _Optional[str] = ..., store_used: _Optional[bool] = ..., store_lost: _Optional[bool] = ..., store_lost_for: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., store_error: _Optional[str] = ..., exchange_age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., exchange_count: _Optional[int] = ..., failure_count: _Optional[int] = ..., replicas: _Optional[_Iterable[_Union[ReplicaStatus, _Mapping]]] = ..., expected_count: _Optional[int] = ..., replica_in_use: _Optional[bool] = ..., other_versions: _Optional[_Iterable[str]] = ...) -> None: ...

class ReplicaStatus(_message.Message):
    __slots__ = ("replica", "age", "version", "revision", "cluster_revision", "refused_error", "mode")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    AGE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_REVISION_FIELD_NUMBER: _ClassVar[int]
    REFUSED_ERROR_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    replica: str
    age: _duration_pb2.Duration
    version: str
    revision: int
    cluster_revision: int
    refused_error: str
    mode: str
    def __init__(self, replica: _Optional[str] = ..., age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., version: _Optional[str] = ..., revision: _Optional[int] = ..., cluster_revision: _Optional[int] = ..., refused_error: _Optional[str] = ..., mode: _Optional[str] = ...) -> None: ...

class FileStatus(_message.Message):
    __slots__ = ("path", "sha256", "load_time", "good", "error")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    LOAD_TIME_FIELD_NUMBER: _ClassVar[int]
    GOOD_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    path: str
    sha256: str
    load_time: _timestamp_pb2.Timestamp
    good: bool
    error: str
    def __init__(self, path: _Optional[str] = ..., sha256: _Optional[str] = ..., load_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., good: _Optional[bool] = ..., error: _Optional[str] = ...) -> None: ...

class StateStatus(_message.Message):
    __slots__ = ("path", "read_only", "error")
    PATH_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    path: str
    read_only: bool
    error: str
    def __init__(self, path: _Optional[str] = ..., read_only: _Optional[bool] = ..., error: _Optional[str] = ...) -> None: ...

class PendingExpiry(_message.Message):
    __slots__ = ("revision", "expire_time", "paths", "error")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    PATHS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    revision: int
    expire_time: _timestamp_pb2.Timestamp
    paths: _containers.RepeatedScalarFieldContainer[str]
    error: str
    def __init__(self, revision: _Optional[int] = ..., expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., paths: _Optional[_Iterable[str]] = ..., error: _Optional[str] = ...) -> None: ...

class RecordingStatus(_message.Message):
    __slots__ = ("active", "files", "stopped_by_error")
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    STOPPED_BY_ERROR_FIELD_NUMBER: _ClassVar[int]
    active: bool
    files: _containers.RepeatedScalarFieldContainer[str]
    stopped_by_error: bool
    def __init__(self, active: _Optional[bool] = ..., files: _Optional[_Iterable[str]] = ..., stopped_by_error: _Optional[bool] = ...) -> None: ...

class ListPoolsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListPoolsResponse(_message.Message):
    __slots__ = ("pools", "next_page_token")
    POOLS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    pools: _containers.RepeatedCompositeFieldContainer[Pool]
    next_page_token: str
    def __init__(self, pools: _Optional[_Iterable[_Union[Pool, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetPoolRequest(_message.Message):
    __slots__ = ("pool",)
    POOL_FIELD_NUMBER: _ClassVar[int]
    pool: str
    def __init__(self, pool: _Optional[str] = ...) -> None: ...

class Pool(_message.Message):
    __slots__ = ("name", "mode", "percentage", "percentage_of", "traffic", "models", "queued_count", "queued_bytes", "in_flight_slots", "known_count", "releases_per_second", "classes", "endpoints", "observed_count", "retiring", "endpoint_source", "endpoint_source_error", "since_release", "leaked_slots", "observed")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    PERCENTAGE_FIELD_NUMBER: _ClassVar[int]
    PERCENTAGE_OF_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_COUNT_FIELD_NUMBER: _ClassVar[int]
    QUEUED_BYTES_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_SLOTS_FIELD_NUMBER: _ClassVar[int]
    KNOWN_COUNT_FIELD_NUMBER: _ClassVar[int]
    RELEASES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_COUNT_FIELD_NUMBER: _ClassVar[int]
    RETIRING_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_SOURCE_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_SOURCE_ERROR_FIELD_NUMBER: _ClassVar[int]
    SINCE_RELEASE_FIELD_NUMBER: _ClassVar[int]
    LEAKED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_FIELD_NUMBER: _ClassVar[int]
    name: str
    mode: PoolMode
    percentage: float
    percentage_of: PercentageOf
    traffic: Traffic
    models: _containers.RepeatedScalarFieldContainer[str]
    queued_count: int
    queued_bytes: int
    in_flight_slots: int
    known_count: int
    releases_per_second: float
    classes: _containers.RepeatedCompositeFieldContainer[ClassStats]
    endpoints: _containers.RepeatedCompositeFieldContainer[Endpoint]
    observed_count: int
    retiring: bool
    endpoint_source: str
    endpoint_source_error: str
    since_release: _duration_pb2.Duration
    leaked_slots: int
    observed: Pool
    def __init__(self, name: _Optional[str] = ..., mode: _Optional[_Union[PoolMode, str]] = ..., percentage: _Optional[float] = ..., percentage_of: _Optional[_Union[PercentageOf, str]] = ..., traffic: _Optional[_Union[Traffic, str]] = ..., models: _Optional[_Iterable[str]] = ..., queued_count: _Optional[int] = ..., queued_bytes: _Optional[int] = ..., in_flight_slots: _Optional[int] = ..., known_count: _Optional[int] = ..., releases_per_second: _Optional[float] = ..., classes: _Optional[_Iterable[_Union[ClassStats, _Mapping]]] = ..., endpoints: _Optional[_Iterable[_Union[Endpoint, _Mapping]]] = ..., observed_count: _Optional[int] = ..., retiring: _Optional[bool] = ..., endpoint_source: _Optional[str] = ..., endpoint_source_error: _Optional[str] = ..., since_release: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., leaked_slots: _Optional[int] = ..., observed: _Optional[_Union[Pool, _Mapping]] = ...) -> None: ...

class ClassStats(_message.Message):
    __slots__ = ("name", "rank", "queued_count", "in_flight_slots", "tenant_count", "retiring", "oldest_wait", "hold", "sentence", "next", "gates", "wait_objective", "queued_cost", "releases_per_second", "jain_index", "tag_spread", "competing_count")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    QUEUED_COUNT_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_SLOTS_FIELD_NUMBER: _ClassVar[int]
    TENANT_COUNT_FIELD_NUMBER: _ClassVar[int]
    RETIRING_FIELD_NUMBER: _ClassVar[int]
    OLDEST_WAIT_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    GATES_FIELD_NUMBER: _ClassVar[int]
    WAIT_OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    QUEUED_COST_FIELD_NUMBER: _ClassVar[int]
    RELEASES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    JAIN_INDEX_FIELD_NUMBER: _ClassVar[int]
    TAG_SPREAD_FIELD_NUMBER: _ClassVar[int]
    COMPETING_COUNT_FIELD_NUMBER: _ClassVar[int]
    name: str
    rank: int
    queued_count: int
    in_flight_slots: int
    tenant_count: int
    retiring: bool
    oldest_wait: _duration_pb2.Duration
    hold: str
    sentence: str
    next: str
    gates: _containers.RepeatedCompositeFieldContainer[Gate]
    wait_objective: _duration_pb2.Duration
    queued_cost: float
    releases_per_second: float
    jain_index: float
    tag_spread: float
    competing_count: int
    def __init__(self, name: _Optional[str] = ..., rank: _Optional[int] = ..., queued_count: _Optional[int] = ..., in_flight_slots: _Optional[int] = ..., tenant_count: _Optional[int] = ..., retiring: _Optional[bool] = ..., oldest_wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., hold: _Optional[str] = ..., sentence: _Optional[str] = ..., next: _Optional[str] = ..., gates: _Optional[_Iterable[_Union[Gate, _Mapping]]] = ..., wait_objective: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., queued_cost: _Optional[float] = ..., releases_per_second: _Optional[float] = ..., jain_index: _Optional[float] = ..., tag_spread: _Optional[float] = ..., competing_count: _Optional[int] = ...) -> None: ...

class Gate(_message.Message):
    __slots__ = ("name", "closed_count")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CLOSED_COUNT_FIELD_NUMBER: _ClassVar[int]
    name: str
    closed_count: int
    def __init__(self, name: _Optional[str] = ..., closed_count: _Optional[int] = ...) -> None: ...

class ListEndpointsRequest(_message.Message):
    __slots__ = ("pool", "page_size", "page_token")
    POOL_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    pool: str
    page_size: int
    page_token: str
    def __init__(self, pool: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListEndpointsResponse(_message.Message):
    __slots__ = ("endpoints", "next_page_token")
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    endpoints: _containers.RepeatedCompositeFieldContainer[Endpoint]
    next_page_token: str
    def __init__(self, endpoints: _Optional[_Iterable[_Union[Endpoint, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class Endpoint(_message.Message):
    __slots__ = ("address", "pool", "stance", "in_flight_slots", "foreign_count", "capacity", "running_count", "waiting_count", "kv_usage_ratio", "time_per_output_token", "page_age", "dialect", "priority_told", "last_error", "turned_away_count", "failed_count", "limit", "room", "queue_target", "controller", "at_floor", "removed", "others_slots", "claim_slots")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    STANCE_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_SLOTS_FIELD_NUMBER: _ClassVar[int]
    FOREIGN_COUNT_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    RUNNING_COUNT_FIELD_NUMBER: _ClassVar[int]
    WAITING_COUNT_FIELD_NUMBER: _ClassVar[int]
    KV_USAGE_RATIO_FIELD_NUMBER: _ClassVar[int]
    TIME_PER_OUTPUT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PAGE_AGE_FIELD_NUMBER: _ClassVar[int]
    DIALECT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_TOLD_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    TURNED_AWAY_COUNT_FIELD_NUMBER: _ClassVar[int]
    FAILED_COUNT_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    ROOM_FIELD_NUMBER: _ClassVar[int]
    QUEUE_TARGET_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    AT_FLOOR_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    OTHERS_SLOTS_FIELD_NUMBER: _ClassVar[int]
    CLAIM_SLOTS_FIELD_NUMBER: _ClassVar[int]
    address: str
    pool: str
    stance: Stance
    in_flight_slots: int
    foreign_count: int
    capacity: float
    running_count: int
    waiting_count: int
    kv_usage_ratio: float
    time_per_output_token: _duration_pb2.Duration
    page_age: _duration_pb2.Duration
    dialect: str
    priority_told: str
    last_error: str
    turned_away_count: int
    failed_count: int
    limit: float
    room: float
    queue_target: float
    controller: str
    at_floor: bool
    removed: bool
    others_slots: int
    claim_slots: float
    def __init__(self, address: _Optional[str] = ..., pool: _Optional[str] = ..., stance: _Optional[_Union[Stance, str]] = ..., in_flight_slots: _Optional[int] = ..., foreign_count: _Optional[int] = ..., capacity: _Optional[float] = ..., running_count: _Optional[int] = ..., waiting_count: _Optional[int] = ..., kv_usage_ratio: _Optional[float] = ..., time_per_output_token: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., page_age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., dialect: _Optional[str] = ..., priority_told: _Optional[str] = ..., last_error: _Optional[str] = ..., turned_away_count: _Optional[int] = ..., failed_count: _Optional[int] = ..., limit: _Optional[float] = ..., room: _Optional[float] = ..., queue_target: _Optional[float] = ..., controller: _Optional[str] = ..., at_floor: _Optional[bool] = ..., removed: _Optional[bool] = ..., others_slots: _Optional[int] = ..., claim_slots: _Optional[float] = ...) -> None: ...

class ListFlowsRequest(_message.Message):
    __slots__ = ("pool", "top_k", "order_by")
    POOL_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    ORDER_BY_FIELD_NUMBER: _ClassVar[int]
    pool: str
    top_k: int
    order_by: str
    def __init__(self, pool: _Optional[str] = ..., top_k: _Optional[int] = ..., order_by: _Optional[str] = ...) -> None: ...

class ListFlowsResponse(_message.Message):
    __slots__ = ("flows", "total_count")
    FLOWS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_COUNT_FIELD_NUMBER: _ClassVar[int]
    flows: _containers.RepeatedCompositeFieldContainer[Flow]
    total_count: int
    def __init__(self, flows: _Optional[_Iterable[_Union[Flow, _Mapping]]] = ..., total_count: _Optional[int] = ...) -> None: ...

class Flow(_message.Message):
    __slots__ = ("pool", "tenant", "queued_count", "in_flight_slots", "tag", "weight", "oldest_wait", "next_request_id", "observed")
    POOL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    CLASS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_COUNT_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_SLOTS_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    OLDEST_WAIT_FIELD_NUMBER: _ClassVar[int]
    NEXT_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_FIELD_NUMBER: _ClassVar[int]
    pool: str
    tenant: str
    queued_count: int
    in_flight_slots: int
    tag: float
    weight: float
    oldest_wait: _duration_pb2.Duration
    next_request_id: str
    observed: bool
    def __init__(self, pool: _Optional[str] = ..., tenant: _Optional[str] = ..., queued_count: _Optional[int] = ..., in_flight_slots: _Optional[int] = ..., tag: _Optional[float] = ..., weight: _Optional[float] = ..., oldest_wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., next_request_id: _Optional[str] = ..., observed: _Optional[bool] = ..., **kwargs) -> None: ...

class ListRequestsRequest(_message.Message):
    __slots__ = ("filter", "page_size", "page_token")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    filter: str
    page_size: int
    page_token: str
    def __init__(self, filter: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListRequestsResponse(_message.Message):
    __slots__ = ("requests", "next_page_token")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[Request]
    next_page_token: str
    def __init__(self, requests: _Optional[_Iterable[_Union[Request, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("id", "pool", "tenant", "state", "waited", "inside", "timeout_in", "endpoint", "cost", "body_bytes", "slots", "adapter", "evicted", "observed")
    ID_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    CLASS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WAITED_FIELD_NUMBER: _ClassVar[int]
    INSIDE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_IN_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    BODY_BYTES_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_FIELD_NUMBER: _ClassVar[int]
    id: str
    pool: str
    tenant: str
    state: RequestState
    waited: _duration_pb2.Duration
    inside: _duration_pb2.Duration
    timeout_in: _duration_pb2.Duration
    endpoint: str
    cost: float
    body_bytes: int
    slots: int
    adapter: str
    evicted: bool
    observed: bool
    def __init__(self, id: _Optional[str] = ..., pool: _Optional[str] = ..., tenant: _Optional[str] = ..., state: _Optional[_Union[RequestState, str]] = ..., waited: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., inside: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., timeout_in: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., endpoint: _Optional[str] = ..., cost: _Optional[float] = ..., body_bytes: _Optional[int] = ..., slots: _Optional[int] = ..., adapter: _Optional[str] = ..., evicted: _Optional[bool] = ..., observed: _Optional[bool] = ..., **kwargs) -> None: ...

class ExplainRequestRequest(_message.Message):
    __slots__ = ("id", "x_request_id")
    ID_FIELD_NUMBER: _ClassVar[int]
    X_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    x_request_id: str
    def __init__(self, id: _Optional[str] = ..., x_request_id: _Optional[str] = ...) -> None: ...

class Explanation(_message.Message):
    __slots__ = ("request", "hold", "name", "value", "limit", "ahead_in_flow_count", "flow_position", "flow_count", "estimated_wait", "sentence", "next", "priority")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AHEAD_IN_FLOW_COUNT_FIELD_NUMBER: _ClassVar[int]
    FLOW_POSITION_FIELD_NUMBER: _ClassVar[int]
    FLOW_COUNT_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_WAIT_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    request: Request
    hold: str
    name: str
    value: float
    limit: float
    ahead_in_flow_count: int
    flow_position: int
    flow_count: int
    estimated_wait: _duration_pb2.Duration
    sentence: str
    next: str
    priority: int
    def __init__(self, request: _Optional[_Union[Request, _Mapping]] = ..., hold: _Optional[str] = ..., name: _Optional[str] = ..., value: _Optional[float] = ..., limit: _Optional[float] = ..., ahead_in_flow_count: _Optional[int] = ..., flow_position: _Optional[int] = ..., flow_count: _Optional[int] = ..., estimated_wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., sentence: _Optional[str] = ..., next: _Optional[str] = ..., priority: _Optional[int] = ...) -> None: ...

class WatchStatsRequest(_message.Message):
    __slots__ = ("interval", "pool")
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    interval: _duration_pb2.Duration
    pool: str
    def __init__(self, interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., pool: _Optional[str] = ...) -> None: ...

class Stats(_message.Message):
    __slots__ = ("time", "revision", "pools")
    TIME_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    time: _timestamp_pb2.Timestamp
    revision: int
    pools: _containers.RepeatedCompositeFieldContainer[Pool]
    def __init__(self, time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., revision: _Optional[int] = ..., pools: _Optional[_Iterable[_Union[Pool, _Mapping]]] = ...) -> None: ...

class DumpStateRequest(_message.Message):
    __slots__ = ("request_limit",)
    REQUEST_LIMIT_FIELD_NUMBER: _ClassVar[int]
    request_limit: int
    def __init__(self, request_limit: _Optional[int] = ...) -> None: ...

class DumpStateResponse(_message.Message):
    __slots__ = ("section", "content")
    SECTION_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    section: str
    content: _struct_pb2.Struct
    def __init__(self, section: _Optional[str] = ..., content: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class FieldChange(_message.Message):
    __slots__ = ("path", "before", "after")
    PATH_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    path: str
    before: _struct_pb2.Value
    after: _struct_pb2.Value
    def __init__(self, path: _Optional[str] = ..., before: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ..., after: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ...) -> None: ...

class Warning(_message.Message):
    __slots__ = ("path", "message")
    PATH_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    path: str
    message: str
    def __init__(self, path: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class ChangeResult(_message.Message):
    __slots__ = ("revision", "etag", "validate_only", "changes", "warnings", "expire_time", "cluster_revision", "replicas")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_REVISION_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    revision: int
    etag: str
    validate_only: bool
    changes: _containers.RepeatedCompositeFieldContainer[FieldChange]
    warnings: _containers.RepeatedCompositeFieldContainer[Warning]
    expire_time: _timestamp_pb2.Timestamp
    cluster_revision: int
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaTaken]
    def __init__(self, revision: _Optional[int] = ..., etag: _Optional[str] = ..., validate_only: _Optional[bool] = ..., changes: _Optional[_Iterable[_Union[FieldChange, _Mapping]]] = ..., warnings: _Optional[_Iterable[_Union[Warning, _Mapping]]] = ..., expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., cluster_revision: _Optional[int] = ..., replicas: _Optional[_Iterable[_Union[ReplicaTaken, _Mapping]]] = ...) -> None: ...

class ReplicaTaken(_message.Message):
    __slots__ = ("replica", "taken", "error")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    replica: str
    taken: bool
    error: str
    def __init__(self, replica: _Optional[str] = ..., taken: _Optional[bool] = ..., error: _Optional[str] = ...) -> None: ...

class GetConfigRequest(_message.Message):
    __slots__ = ("view",)
    VIEW_FIELD_NUMBER: _ClassVar[int]
    view: ConfigView
    def __init__(self, view: _Optional[_Union[ConfigView, str]] = ...) -> None: ...

class GetConfigResponse(_message.Message):
    __slots__ = ("config", "etag", "revision", "overrides")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    OVERRIDES_FIELD_NUMBER: _ClassVar[int]
    config: _struct_pb2.Struct
    etag: str
    revision: int
    overrides: _containers.RepeatedCompositeFieldContainer[Override]
    def __init__(self, config: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., etag: _Optional[str] = ..., revision: _Optional[int] = ..., overrides: _Optional[_Iterable[_Union[Override, _Mapping]]] = ...) -> None: ...

class Override(_message.Message):
    __slots__ = ("path", "value", "revision", "expire_time")
    PATH_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    path: str
    value: _struct_pb2.Value
    revision: int
    expire_time: _timestamp_pb2.Timestamp
    def __init__(self, path: _Optional[str] = ..., value: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ..., revision: _Optional[int] = ..., expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ExportConfigRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ExportConfigResponse(_message.Message):
    __slots__ = ("yaml", "etag")
    YAML_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    yaml: str
    etag: str
    def __init__(self, yaml: _Optional[str] = ..., etag: _Optional[str] = ...) -> None: ...

class ValidateConfigRequest(_message.Message):
    __slots__ = ("config", "update_mask", "yaml")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    UPDATE_MASK_FIELD_NUMBER: _ClassVar[int]
    YAML_FIELD_NUMBER: _ClassVar[int]
    config: _struct_pb2.Struct
    update_mask: _field_mask_pb2.FieldMask
    yaml: str
    def __init__(self, config: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., update_mask: _Optional[_Union[_field_mask_pb2.FieldMask, _Mapping]] = ..., yaml: _Optional[str] = ...) -> None: ...

class UpdateConfigRequest(_message.Message):
    __slots__ = ("config", "update_mask", "reason", "ttl", "etag", "validate_only")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    UPDATE_MASK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    config: _struct_pb2.Struct
    update_mask: _field_mask_pb2.FieldMask
    reason: str
    ttl: _duration_pb2.Duration
    etag: str
    validate_only: bool
    def __init__(self, config: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., update_mask: _Optional[_Union[_field_mask_pb2.FieldMask, _Mapping]] = ..., reason: _Optional[str] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., etag: _Optional[str] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class Tenant(_message.Message):
    __slots__ = ("name", "weight", "max_queued_requests", "max_queued_bytes", "max_queued_tokens", "max_in_flight_slots", "rate_cost_per_second", "rate_burst_cost", "burst_cost", "parent", "default_class", "classes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_IN_FLIGHT_SLOTS_FIELD_NUMBER: _ClassVar[int]
    RATE_COST_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    RATE_BURST_COST_FIELD_NUMBER: _ClassVar[int]
    BURST_COST_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_CLASS_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    name: str
    weight: float
    max_queued_requests: int
    max_queued_bytes: int
    max_queued_tokens: int
    max_in_flight_slots: int
    rate_cost_per_second: float
    rate_burst_cost: float
    burst_cost: float
    parent: str
    default_class: str
    classes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., weight: _Optional[float] = ..., max_queued_requests: _Optional[int] = ..., max_queued_bytes: _Optional[int] = ..., max_queued_tokens: _Optional[int] = ..., max_in_flight_slots: _Optional[int] = ..., rate_cost_per_second: _Optional[float] = ..., rate_burst_cost: _Optional[float] = ..., burst_cost: _Optional[float] = ..., parent: _Optional[str] = ..., default_class: _Optional[str] = ..., classes: _Optional[_Iterable[str]] = ...) -> None: ...

class SetTenantRequest(_message.Message):
    __slots__ = ("tenant", "update_mask", "reason", "ttl", "etag", "validate_only")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    UPDATE_MASK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    tenant: Tenant
    update_mask: _field_mask_pb2.FieldMask
    reason: str
    ttl: _duration_pb2.Duration
    etag: str
    validate_only: bool
    def __init__(self, tenant: _Optional[_Union[Tenant, _Mapping]] = ..., update_mask: _Optional[_Union[_field_mask_pb2.FieldMask, _Mapping]] = ..., reason: _Optional[str] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., etag: _Optional[str] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class Gates(_message.Message):
    __slots__ = ("max_waiting_requests", "max_time_per_output_token", "max_kv_usage_ratio", "max_time_to_first_token")
    MAX_WAITING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    MAX_TIME_PER_OUTPUT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    MAX_KV_USAGE_RATIO_FIELD_NUMBER: _ClassVar[int]
    MAX_TIME_TO_FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    max_waiting_requests: int
    max_time_per_output_token: _duration_pb2.Duration
    max_kv_usage_ratio: float
    max_time_to_first_token: _duration_pb2.Duration
    def __init__(self, max_waiting_requests: _Optional[int] = ..., max_time_per_output_token: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., max_kv_usage_ratio: _Optional[float] = ..., max_time_to_first_token: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Class(_message.Message):
    __slots__ = ("name", "rank", "priority", "queue_timeout", "max_waiting_requests", "max_queued_requests", "max_queued_bytes", "max_queued_tokens", "max_in_flight_slots", "min_share_ratio", "overflow", "order", "promote_after", "headroom_probability", "idle_only", "refuse_hopeless", "gates", "preemptible", "preempt_after", "wait_objective")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    QUEUE_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    MAX_WAITING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_IN_FLIGHT_SLOTS_FIELD_NUMBER: _ClassVar[int]
    MIN_SHARE_RATIO_FIELD_NUMBER: _ClassVar[int]
    OVERFLOW_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    PROMOTE_AFTER_FIELD_NUMBER: _ClassVar[int]
    HEADROOM_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    IDLE_ONLY_FIELD_NUMBER: _ClassVar[int]
    REFUSE_HOPELESS_FIELD_NUMBER: _ClassVar[int]
    GATES_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIBLE_FIELD_NUMBER: _ClassVar[int]
    PREEMPT_AFTER_FIELD_NUMBER: _ClassVar[int]
    WAIT_OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    name: str
    rank: int
    priority: int
    queue_timeout: _duration_pb2.Duration
    max_waiting_requests: int
    max_queued_requests: int
    max_queued_bytes: int
    max_queued_tokens: int
    max_in_flight_slots: int
    min_share_ratio: float
    overflow: Overflow
    order: QueueOrder
    promote_after: _duration_pb2.Duration
    headroom_probability: float
    idle_only: bool
    refuse_hopeless: bool
    gates: Gates
    preemptible: bool
    preempt_after: _duration_pb2.Duration
    wait_objective: _duration_pb2.Duration
    def __init__(self, name: _Optional[str] = ..., rank: _Optional[int] = ..., priority: _Optional[int] = ..., queue_timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., max_waiting_requests: _Optional[int] = ..., max_queued_requests: _Optional[int] = ..., max_queued_bytes: _Optional[int] = ..., max_queued_tokens: _Optional[int] = ..., max_in_flight_slots: _Optional[int] = ..., min_share_ratio: _Optional[float] = ..., overflow: _Optional[_Union[Overflow, str]] = ..., order: _Optional[_Union[QueueOrder, str]] = ..., promote_after: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., headroom_probability: _Optional[float] = ..., idle_only: _Optional[bool] = ..., refuse_hopeless: _Optional[bool] = ..., gates: _Optional[_Union[Gates, _Mapping]] = ..., preemptible: _Optional[bool] = ..., preempt_after: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., wait_objective: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class SetClassRequest(_message.Message):
    __slots__ = ("update_mask", "reason", "ttl", "etag", "validate_only")
    CLASS_FIELD_NUMBER: _ClassVar[int]
    UPDATE_MASK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    update_mask: _field_mask_pb2.FieldMask
    reason: str
    ttl: _duration_pb2.Duration
    etag: str
    validate_only: bool
    def __init__(self, update_mask: _Optional[_Union[_field_mask_pb2.FieldMask, _Mapping]] = ..., reason: _Optional[str] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., etag: _Optional[str] = ..., validate_only: _Optional[bool] = ..., **kwargs) -> None: ...

class SetPoolRequest(_message.Message):
    __slots__ = ("pool", "mode", "percentage", "percentage_of", "traffic", "reason", "ttl", "etag", "validate_only")
    POOL_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    PERCENTAGE_FIELD_NUMBER: _ClassVar[int]
    PERCENTAGE_OF_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    pool: str
    mode: PoolMode
    percentage: float
    percentage_of: PercentageOf
    traffic: Traffic
    reason: str
    ttl: _duration_pb2.Duration
    etag: str
    validate_only: bool
    def __init__(self, pool: _Optional[str] = ..., mode: _Optional[_Union[PoolMode, str]] = ..., percentage: _Optional[float] = ..., percentage_of: _Optional[_Union[PercentageOf, str]] = ..., traffic: _Optional[_Union[Traffic, str]] = ..., reason: _Optional[str] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., etag: _Optional[str] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class BoostTenantRequest(_message.Message):
    __slots__ = ("tenant", "factor", "reason", "ttl", "etag", "validate_only")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    FACTOR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    factor: float
    reason: str
    ttl: _duration_pb2.Duration
    etag: str
    validate_only: bool
    def __init__(self, tenant: _Optional[str] = ..., factor: _Optional[float] = ..., reason: _Optional[str] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., etag: _Optional[str] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class CancelRequestsRequest(_message.Message):
    __slots__ = ("filter", "reason", "validate_only")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    filter: str
    reason: str
    validate_only: bool
    def __init__(self, filter: _Optional[str] = ..., reason: _Optional[str] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class CancelRequestsResponse(_message.Message):
    __slots__ = ("cancelled_count", "refused_count", "evicted_count", "complete", "sample")
    CANCELLED_COUNT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_COUNT_FIELD_NUMBER: _ClassVar[int]
    EVICTED_COUNT_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    cancelled_count: int
    refused_count: int
    evicted_count: int
    complete: bool
    sample: _containers.RepeatedCompositeFieldContainer[Request]
    def __init__(self, cancelled_count: _Optional[int] = ..., refused_count: _Optional[int] = ..., evicted_count: _Optional[int] = ..., complete: _Optional[bool] = ..., sample: _Optional[_Iterable[_Union[Request, _Mapping]]] = ...) -> None: ...

class StartRecordingRequest(_message.Message):
    __slots__ = ("name", "hash_tenants", "max_file_bytes", "keep_files", "reason", "ttl", "etag", "validate_only")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HASH_TENANTS_FIELD_NUMBER: _ClassVar[int]
    MAX_FILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    KEEP_FILES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    name: str
    hash_tenants: bool
    max_file_bytes: int
    keep_files: int
    reason: str
    ttl: _duration_pb2.Duration
    etag: str
    validate_only: bool
    def __init__(self, name: _Optional[str] = ..., hash_tenants: _Optional[bool] = ..., max_file_bytes: _Optional[int] = ..., keep_files: _Optional[int] = ..., reason: _Optional[str] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., etag: _Optional[str] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class StopRecordingRequest(_message.Message):
    __slots__ = ("reason", "etag", "validate_only")
    REASON_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    reason: str
    etag: str
    validate_only: bool
    def __init__(self, reason: _Optional[str] = ..., etag: _Optional[str] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class Revision(_message.Message):
    __slots__ = ("revision", "create_time", "kind", "who", "reason", "changes", "expire_time", "file_sha256", "override_count", "rolled_back_to", "version")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    FILE_SHA256_FIELD_NUMBER: _ClassVar[int]
    OVERRIDE_COUNT_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_TO_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    revision: int
    create_time: _timestamp_pb2.Timestamp
    kind: RevisionKind
    who: str
    reason: str
    changes: _containers.RepeatedCompositeFieldContainer[FieldChange]
    expire_time: _timestamp_pb2.Timestamp
    file_sha256: str
    override_count: int
    rolled_back_to: int
    version: str
    def __init__(self, revision: _Optional[int] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., kind: _Optional[_Union[RevisionKind, str]] = ..., who: _Optional[str] = ..., reason: _Optional[str] = ..., changes: _Optional[_Iterable[_Union[FieldChange, _Mapping]]] = ..., expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., file_sha256: _Optional[str] = ..., override_count: _Optional[int] = ..., rolled_back_to: _Optional[int] = ..., version: _Optional[str] = ...) -> None: ...

class ListRevisionsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListRevisionsResponse(_message.Message):
    __slots__ = ("revisions", "next_page_token")
    REVISIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    revisions: _containers.RepeatedCompositeFieldContainer[Revision]
    next_page_token: str
    def __init__(self, revisions: _Optional[_Iterable[_Union[Revision, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class DiffRevisionsRequest(_message.Message):
    __slots__ = ("from_revision", "to_revision")
    FROM_REVISION_FIELD_NUMBER: _ClassVar[int]
    TO_REVISION_FIELD_NUMBER: _ClassVar[int]
    from_revision: int
    to_revision: int
    def __init__(self, from_revision: _Optional[int] = ..., to_revision: _Optional[int] = ...) -> None: ...

class DiffRevisionsResponse(_message.Message):
    __slots__ = ("changes", "from_revision", "to_revision")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    FROM_REVISION_FIELD_NUMBER: _ClassVar[int]
    TO_REVISION_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[FieldChange]
    from_revision: int
    to_revision: int
    def __init__(self, changes: _Optional[_Iterable[_Union[FieldChange, _Mapping]]] = ..., from_revision: _Optional[int] = ..., to_revision: _Optional[int] = ...) -> None: ...

class RollbackRequest(_message.Message):
    __slots__ = ("revision", "reason", "ttl", "etag", "validate_only")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    revision: int
    reason: str
    ttl: _duration_pb2.Duration
    etag: str
    validate_only: bool
    def __init__(self, revision: _Optional[int] = ..., reason: _Optional[str] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., etag: _Optional[str] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class ListAuditRecordsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "who", "failed_only")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    FAILED_ONLY_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    who: str
    failed_only: bool
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., who: _Optional[str] = ..., failed_only: _Optional[bool] = ...) -> None: ...

class ListAuditRecordsResponse(_message.Message):
    __slots__ = ("records", "next_page_token")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[AuditRecord]
    next_page_token: str
    def __init__(self, records: _Optional[_Iterable[_Union[AuditRecord, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class AuditRecord(_message.Message):
    __slots__ = ("id", "time", "who", "role", "peer", "method", "reason", "changes", "outcome", "message", "validate_only", "revision", "count")
    ID_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    id: int
    time: _timestamp_pb2.Timestamp
    who: str
    role: Role
    peer: str
    method: str
    reason: str
    changes: _containers.RepeatedCompositeFieldContainer[FieldChange]
    outcome: str
    message: str
    validate_only: bool
    revision: int
    count: int
    def __init__(self, id: _Optional[int] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., who: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., peer: _Optional[str] = ..., method: _Optional[str] = ..., reason: _Optional[str] = ..., changes: _Optional[_Iterable[_Union[FieldChange, _Mapping]]] = ..., outcome: _Optional[str] = ..., message: _Optional[str] = ..., validate_only: _Optional[bool] = ..., revision: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...
