"""The files in `envoy/` that are made from the base file.

    python -m extproc.wiring.shipped [folder]

writes them; a test compares them with what is made now.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from extproc.config.cluster import Mode
from extproc.wiring.build import Addresses, Built, build
from extproc.wiring.description import NEWEST, Wiring
from extproc.wiring.mesh import xds
from extproc.wiring.mesh.forms import FORMS
from extproc.wiring.mesh.place import Place
from extproc.wiring.parts import Address
from extproc.wiring.text import as_documents, as_yaml

# Name and what makes it: options of `fairlane envoy-config`, and the same as a description.
SHIPPED: dict[str, tuple[str, Wiring]] = {
    "strict.yaml": ("--profile strict", Wiring(profile="strict")),
    "body.yaml": ("--profile body", Wiring(profile="body")),
    "duplex.yaml": ("--profile duplex", Wiring(profile="duplex")),
    "standard-stream.yaml": ("--usage stream", Wiring(usage="stream")),
    "standard-estimate.yaml": ("--usage estimate", Wiring(usage="estimate")),
    "standard-lua.yaml": (
        "--facts lua --append",
        Wiring(facts="lua", append=True, unscheduled_priority=Wiring().default_priority),
    ),
    "standard-1.36.yaml": ("--envoy-version 1.36", Wiring(envoy=36)),
}
# For each cluster mode of several replicas, here at the ports of one machine.
_MODES: tuple[Mode, ...] = ("standby", "partition", "shared")
_REPLICAS: tuple[Address, ...] = (("127.0.0.1", 50_051), ("127.0.0.1", 50_061), ("127.0.0.1", 50_071))
REPLICAS: dict[str, tuple[str, Wiring, tuple[Address, ...]]] = {
    f"replicas/{mode}-{count}.yaml": (
        " ".join([f"--cluster-mode {mode}", *(f"--ext-proc {host}:{port}" for host, port in _REPLICAS[:count])]),
        Wiring(mode=mode),
        _REPLICAS[:count],
    )
    for mode in _MODES
    for count in (2, 3)
}
# Of the forms but `static`: name, options, form, wiring, and the place.
_CLUSTER = ".svc.cluster.local"
_SERVICE: Address = ("fairlane.fairlane" + _CLUSTER, 50_051)
_FAIRLANE = f"--fairlane-service {_SERVICE[0]}:{_SERVICE[1]}"
_POD = "fairlane-{}.fairlane-pods.fairlane" + _CLUSTER
_INGRESS = (("istio", "ingressgateway"),)


@dataclass(frozen=True, slots=True)
class Mesh:
    """What makes a file: options of `fairlane envoy-config`, and the same as descriptions."""

    form: str
    options: str = ""
    wiring: Wiring = field(default_factory=Wiring)
    place: Place = field(default_factory=Place)
    ext_proc: tuple[Address, ...] = Addresses().ext_proc  # type: ignore[assignment]


MESHES: dict[str, Mesh] = {
    "istio/gateway-api.yaml": Mesh("istio", _FAIRLANE, place=Place(fairlane=_SERVICE)),
    "istio/ingress-gateway.yaml": Mesh(
        "istio", f"--selector istio=ingressgateway {_FAIRLANE}", place=Place(selector=_INGRESS, fairlane=_SERVICE)
    ),
    "istio/gateway-api-1.28.yaml": Mesh(
        "istio", f"--envoy-version 1.36 {_FAIRLANE}", Wiring(envoy=36), Place(fairlane=_SERVICE)
    ),
    "istio/gateway-api-1.29.yaml": Mesh(
        "istio", f"--envoy-version 1.37 {_FAIRLANE}", Wiring(envoy=37), Place(fairlane=_SERVICE)
    ),
    "istio/three-replicas.yaml": Mesh(
        "istio",
        "--spread model " + " ".join(f"--ext-proc {_POD.format(number)}:50051" for number in range(3)),
        Wiring(spread="model"),
        ext_proc=tuple((_POD.format(number), 50_051) for number in range(3)),
    ),
}
MESHES |= {
    f"envoy-gateway/{name}.yaml": Mesh(
        "envoy-gateway", f"{options} --namespace llm {_FAIRLANE}", wiring, Place(namespace="llm", fairlane=_SERVICE)
    )
    for name, options, wiring in (
        ("standard", "--envoy-version 1.38", Wiring(envoy=38)),
        ("standard-1.7", "--envoy-version 1.37", Wiring(envoy=37)),
        ("standard-1.6", "--envoy-version 1.36", Wiring(envoy=36)),
        ("strict", "--profile strict --envoy-version 1.38", Wiring(profile="strict", envoy=38)),
    )
}
# With pick: {by: envoy} in the file.
MESHES |= {
    f"kgateway/{name}.yaml": Mesh(
        "kgateway",
        f"--config fairlane.yaml --profile body --facts none --usage stream --envoy-version 1.{envoy} "
        f"--namespace llm {_FAIRLANE}",
        Wiring(profile="body", facts="none", usage="stream", pick="envoy", envoy=envoy),
        Place(namespace="llm", fairlane=_SERVICE),
    )
    for name, envoy in (("body", 38), ("body-2.3", 37), ("body-2.2", 36))
}
_ENGINES = "--engine 127.0.0.1:8001 --engine 127.0.0.1:8002"


def head(wiring: Wiring, built: Built, command: str) -> list[str]:
    """The comment at the head of a generated file, in paragraphs."""
    return [
        f"Envoy for Fairlane: profile {wiring.profile}, usage {wiring.usage}, facts {wiring.facts_used}; "
        f"for Envoy 1.{wiring.oldest_envoy} to 1.{NEWEST}.",
        f"Written by: {command}",
        "It is envoy.yaml, which says why each setting is there, with these differences:"
        if built.differs or built.degraded
        else "It is envoy.yaml, which says why each setting is there.",
        *(f"- {each}" for each in (*built.differs, *built.degraded)),
    ]


def mesh_head(form: str, wiring: Wiring, built: Built, command: str) -> list[str]:
    """The same of another form."""
    return [
        f"Fairlane in the form {form}: profile {wiring.profile}, usage {wiring.usage}, facts {wiring.facts_used}; "
        f"for Envoy 1.{wiring.oldest_envoy} to 1.{NEWEST}. README.md in this folder says what has to be there.",
        f"Written by: {command}",
        *(f"- {each}" for each in (*built.differs, *built.degraded)),
    ]


def meshes() -> dict[str, str]:
    """What stands in the files of the other forms, by name. Raises EnvoyFileError."""
    found = {}
    for name, mesh in MESHES.items():
        addresses = Addresses(ext_proc=mesh.ext_proc)
        command = f"fairlane envoy-config --form {mesh.form} {mesh.options} --output envoy/{name}"
        top = mesh_head(mesh.form, mesh.wiring, build(mesh.wiring, addresses), command)
        found[name] = as_documents(FORMS[mesh.form](mesh.wiring, addresses, mesh.place), top)
    command = f"fairlane envoy-config --form xds {_ENGINES} --output envoy/xds"
    top = mesh_head("xds", Wiring(), build(Wiring(), Addresses()), command)
    for name, document in xds.files(build(Wiring(), Addresses()).config, Place().folder).items():
        found[f"xds/{name}"] = as_yaml(document, top)
    return found


def text(name: str) -> str:
    """What stands in the file of that name. Raises KeyError and EnvoyFileError."""
    if name in REPLICAS:
        options, wiring, ext_proc = REPLICAS[name]
        built = build(wiring, Addresses(ext_proc=ext_proc))
    else:
        options, wiring = SHIPPED[name]
        built = build(wiring, Addresses())
    command = f"fairlane envoy-config {options} {_ENGINES} --output envoy/{name}"
    return as_yaml(built.config, head(wiring, built, command))


def main(arguments: Sequence[str]) -> None:
    folder = Path(arguments[0]) if arguments else Path("envoy")
    for name, written in ({name: text(name) for name in (*SHIPPED, *REPLICAS)} | meshes()).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(written, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
