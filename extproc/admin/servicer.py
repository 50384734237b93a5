"""The admin API whole: each method of the service is one of its parts'."""

from __future__ import annotations

from extproc.admin.control import Control
from extproc.admin.history import History
from extproc.admin.portions import Portions
from extproc.admin.reads import Reads
from extproc.admin.revisions import Revisions
from extproc.admin.writes import Writes
from extproc.pb.admin.v1 import admin_pb2, admin_pb2_grpc

_METHODS = tuple(method.name for method in admin_pb2.DESCRIPTOR.services_by_name["Admin"].methods)


class Admin(admin_pb2_grpc.AdminServicer):
    """For one running service. Calls must come through the guard, which says whose they are."""

    def __init__(self, control: Control, revisions: Revisions, portions: Portions | None = None) -> None:
        """`portions`: of the time that its methods hold the loop."""
        portions = portions or Portions()
        self._reads = Reads(control, revisions, portions)
        parts = (self._reads, Writes(control, revisions, portions), History(revisions, portions))
        for name in _METHODS:
            (method,) = (getattr(part, name) for part in parts if hasattr(part, name))
            setattr(self, name, method)

    def close(self) -> None:
        """Ends all watchers: the server stops."""
        self._reads.close()
