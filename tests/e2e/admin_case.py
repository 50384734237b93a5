"""The admin API of a running stack, and requests that are held while something is changed by it.

async with connected(rig) as admin, held(rig, (40, "team-a"), (40, "team-b")) as scene:
    await admin.set({"pools": {"sim": {"window": {"fixed": 16}}}})
    await scene.until_sent(12)
scene.assert_answers({200: 80})
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import grpc
from google.protobuf import field_mask_pb2
from google.protobuf.json_format import MessageToDict
from rig import Answer, Json, Rig, chat, until

from extproc.pb.admin.v1 import admin_pb2 as pb
from extproc.pb.admin.v1 import admin_pb2_grpc

POOL = "sim"
SLOTS = 4  # of the engines together, until a test gives more
HELD = 200
WHY = "a test"
# Room that does not depend on what the engines show: how much goes is a matter of the knob alone.
FIXED = {"controller": "fixed", "fixed": SLOTS, "overtake": 0, "stalled_after": None}

_names = itertools.count(1)


class Admin:
    """The API as an operator's program has it. What is refused raises grpc.aio.AioRpcError."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.stub: Any = admin_pb2_grpc.AdminStub(channel)

    async def set(
        self, config: Mapping[str, Any], mask: Sequence[str] | None = None, reason: str = WHY, **more: Any
    ) -> pb.ChangeResult:
        """UpdateConfig. `config` in the file's shape."""
        request = pb.UpdateConfigRequest(reason=reason, **more)
        request.config.update(config)
        if mask is not None:
            request.update_mask.CopyFrom(field_mask_pb2.FieldMask(paths=mask))
        result: pb.ChangeResult = await self.stub.UpdateConfig(request)
        return result

    async def pool(self, **fields: Any) -> pb.ChangeResult:
        """SetPool."""
        fields = {"pool": POOL, **fields}
        result: pb.ChangeResult = await self.stub.SetPool(pb.SetPoolRequest(reason=WHY, **fields))
        return result

    async def set_pool(self, **settings: Any) -> pb.ChangeResult:
        """UpdateConfig of the one pool."""
        return await self.set({"pools": {POOL: settings}})

    async def status(self) -> pb.Status:
        found: pb.Status = await self.stub.GetStatus(pb.GetStatusRequest())
        return found

    async def config(self, view: pb.ConfigView = pb.EFFECTIVE) -> Json:
        answer = await self.stub.GetConfig(pb.GetConfigRequest(view=view))
        return MessageToDict(answer.config)

    async def back_to(self, revision: int) -> None:
        await self.stub.Rollback(pb.RollbackRequest(revision=revision, reason=WHY))

    async def cancel(self, filter_: str, **more: Any) -> pb.CancelRequestsResponse:
        done: pb.CancelRequestsResponse = await self.stub.CancelRequests(
            pb.CancelRequestsRequest(filter=filter_, reason=WHY, **more)
        )
        return done

    async def dump(self) -> dict[str, list[Json]]:
        """All state, by section."""
        sections: dict[str, list[Json]] = {}
        async for portion in self.stub.DumpState(pb.DumpStateRequest()):
            sections.setdefault(portion.section, []).append(MessageToDict(portion.content))
        return sections


@contextlib.asynccontextmanager
async def connected(rig: Rig, at: object = None) -> AsyncIterator[Admin]:
    """`at`: address of another service than the stack's."""
    options = [("grpc.use_local_subchannel_pool", 1)]  # a process that is started anew is connected to anew
    async with grpc.aio.insecure_channel(str(at or rig.stack.addresses.admin), options=options) as channel:
        await asyncio.wait_for(channel.channel_ready(), 30)
        yield Admin(channel)


class Scene:
    """Requests of one test, of which `SLOTS` are inside hung engines as a rule, and the others held. Each has an id of
    its own, by which the engines' journals tell what each got, and in which order."""

    def __init__(self, rig: Rig, name: str | None = None) -> None:
        self.rig = rig
        self.name = name or f"scene-{next(_names)}"
        self.tasks: dict[str, asyncio.Task[Answer]] = {}

    def ask(
        self, count: int, tenant: str = "held", *, cls: str | None = None, tokens: int = 2, content: str = "hello"
    ) -> None:
        headers = {} if cls is None else {"x-class": cls}
        for _ in range(count):
            key = f"{self.name}-{len(self.tasks)}"
            body = chat(tokens, messages=[{"role": "user", "content": content}])
            self.tasks[key] = self.rig.start(body, tenant=tenant, headers={**headers, "x-key": key})

    @property
    def answers(self) -> list[Answer]:
        return [task.result() for task in self.tasks.values() if task.done()]

    def answered(self) -> Counter[int]:
        return Counter(answer.status for answer in self.answers)

    async def until_all_there(self) -> None:
        """Held, or inside where there was room."""
        count = len(self.tasks)
        await self.rig.until(lambda found: found["queued"] + found["in_flight"] == count, f"{count} are there")

    async def sent(self) -> list[Json]:
        """What engines got of it, in the order of arrival there."""
        return [entry for entry in await self.rig.seen() if entry["headers"].get("x-key") in self.tasks]

    async def until_sent(self, count: int, what: str = "") -> list[Json]:
        """Exactly so many have come to the engines. Returns them."""
        return await until(self.sent, lambda entries: len(entries) == count, what or f"{count} sent")

    async def until_answered(self, count: int) -> None:
        async def done() -> int:
            return len(self.answers)

        await until(done, lambda found: found >= count, f"{count} answered")

    async def finish(self) -> None:
        """Until each has its answer; and none came to two engines, or to one twice."""
        done, late = await asyncio.wait(self.tasks.values(), timeout=60) if self.tasks else (set(), set())
        assert not late, f"{len(late)} of {len(done) + len(late)} have no answer"
        self.assert_each_once(await self.sent())

    def assert_answers(self, wanted: Mapping[int, int]) -> None:
        assert self.answered() == wanted

    @staticmethod
    def assert_each_once(entries: Sequence[Json]) -> None:
        twice = [key for key, count in Counter(entry["headers"]["x-key"] for entry in entries).items() if count > 1]
        assert not twice, f"sent twice: {twice}"

    def drop(self) -> None:
        """On a failure: nothing is waited for."""
        for task in self.tasks.values():
            task.cancel()


@contextlib.asynccontextmanager
async def held(
    rig: Rig, *groups: tuple[int, str] | tuple[int, str, str], inside: int = SLOTS, inside_cls: str | None = None
) -> AsyncIterator[Scene]:
    """Engines hang; `inside` requests of the tenant `first` are in there, and the groups (number, tenant, class) wait,
    in their order. On the way out the engines go on, and all must get their answer."""
    scene = Scene(rig)
    try:
        async with rig.hung_engines():
            scene.ask(inside, "first", cls=inside_cls)
            await rig.until_inside(inside)
            await scene.until_sent(inside)  # inside for Fairlane comes before there for the engine
            for number, tenant, *cls in groups:
                scene.ask(number, tenant, cls=cls[0] if cls else None)
                await scene.until_all_there()
            yield scene
        await scene.finish()
    finally:
        scene.drop()


def tenants(entries: Sequence[Json]) -> Counter[str]:
    return Counter(entry["headers"]["x-tenant"] for entry in entries)
