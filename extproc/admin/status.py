"""The status of the whole: what is in force, what will end, what is held."""

from __future__ import annotations

from typing import TYPE_CHECKING

from extproc import __version__
from extproc.admin import messages
from extproc.admin.access import Caller
from extproc.admin.control import ClusterState, Control
from extproc.config.overlay import path_text
from extproc.pb.admin.v1 import admin_pb2 as pb

if TYPE_CHECKING:
    from extproc.admin.revisions import Revisions


def status(control: Control, revisions: Revisions, caller: Caller, watchers: int) -> pb.Status:
    """O(pools + settings of the overlay)."""
    running = control.running()
    file, state, recording = revisions.file, revisions.state, control.recording()
    return pb.Status(
        version=__version__,
        start_time=messages.timestamp(control.started_at),
        serving=control.serving,
        revision=revisions.revision,
        etag=revisions.etag,
        file=pb.FileStatus(
            path="" if file.path is None else str(file.path),
            sha256=file.sha256,
            load_time=messages.timestamp(file.loaded_at),
            good=revisions.file_error is None,
            error=revisions.file_error or "",
        ),
        state=pb.StateStatus(path=state.path, read_only=state.read_only, error=state.error),
        override_count=len(revisions.overlay.settings),
        expiries=[
            pb.PendingExpiry(
                revision=each.revision,
                expire_time=messages.timestamp(each.expires_at),
                paths=[path_text(path) for path in each.paths],
                error=each.error,
            )
            for each in revisions.expiries()
        ],
        recording=pb.RecordingStatus(
            active=recording.active, files=recording.files, stopped_by_error=recording.stopped_by_error
        ),
        pool_count=len(running),
        queued_count=sum(each.scheduler.queued for each in running),
        in_flight_slots=sum(cls.queue.in_flight for each in running for cls in each.scheduler.classes),
        watcher_count=watchers,
        caller=caller.name,
        caller_role=caller.role.upper(),
        observed_count=sum(len(each.observed.requests) for each in running if each.observed is not None),
        cluster=None if (seen := control.cluster()) is None else _cluster(seen),
    )


def _cluster(seen: ClusterState) -> pb.ClusterStatus:
    return pb.ClusterStatus(
        mode=seen.mode.upper(),
        name=seen.name,
        replica=seen.replica,
        active=seen.active,
        active_replica=seen.active_replica,
        store_used=seen.store_used,
        store_lost=seen.lost_s is not None,
        store_lost_for=messages.duration(seen.lost_s),
        store_error=seen.error,
        exchange_age=messages.duration(seen.exchange_age_s),
        exchange_count=seen.exchanges,
        failure_count=seen.failures,
        replicas=[
            pb.ReplicaStatus(
                replica=each.replica,
                age=messages.duration(each.age_s),
                version=each.version,
                revision=each.revision,
                cluster_revision=each.cluster_revision,
                refused_error=each.refused,
                mode=each.mode,
            )
            for each in seen.replicas
        ],
        expected_count=seen.expected,
        replica_in_use=seen.in_use,
        other_versions=seen.other_versions,
    )
