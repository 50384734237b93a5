"""Plain Envoy that reads its configuration from files and takes changed ones while it runs (xDS by the file system).

    bootstrap.yaml   what cannot change: the admin port, who this Envoy is, and where the others are
    lds.yaml         the listener, with the filters       a change drains the old one, see envoy/xds/README.md
    rds.yaml         the routes                           a change holds for the next request
    cds.yaml         the clusters                         a changed cluster is a new one, and what is held at the old
                                                          one passes unscheduled: change Fairlane's by a new name
    eds-NAME.yaml    a cluster's endpoints, if addresses  a change touches nothing that is held

Together they are the same as the complete file. Envoy reads one again when it is moved into the folder, as `mv` and
Kubernetes do it, not when it is written in place.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from extproc.wiring.build import Addresses, build
from extproc.wiring.description import Wiring
from extproc.wiring.mesh.place import Place
from extproc.wiring.parts import Data, Parts

BOOTSTRAP, LISTENERS, ROUTES, CLUSTERS = "bootstrap.yaml", "lds.yaml", "rds.yaml", "cds.yaml"
ENDPOINTS = "eds-{}.yaml"  # Envoy refuses a file with the endpoints of two clusters

_TYPE = "type.googleapis.com/envoy.config."
_ROUTES_NAME = "llm"


def files(config: Data, folder: str) -> dict[str, Data]:
    """A complete configuration, which is changed, as files by name. `folder`: where Envoy finds them."""
    parts = Parts(config)
    routes = parts.manager.pop("route_config")
    routes["name"] = _ROUTES_NAME
    parts.manager["rds"] = {"route_config_name": _ROUTES_NAME, "config_source": _source(folder, ROUTES)}
    bootstrap = {key: value for key, value in config.items() if key != "static_resources"}
    bootstrap["node"] = {"id": "fairlane", "cluster": "fairlane"}  # xDS is only for an Envoy with a name
    bootstrap["dynamic_resources"] = {
        "lds_config": _source(folder, LISTENERS),
        "cds_config": _source(folder, CLUSTERS),
    }
    resources = config["static_resources"]
    endpoints = {
        ENDPOINTS.format(each["name"]): _response("endpoint.v3.ClusterLoadAssignment", [_moved(each, folder)])
        for each in resources["clusters"]
        if each.get("type") == "STATIC"
    }
    return {
        BOOTSTRAP: bootstrap,
        LISTENERS: _response("listener.v3.Listener", resources["listeners"]),
        ROUTES: _response("route.v3.RouteConfiguration", [routes]),
        CLUSTERS: _response("cluster.v3.Cluster", resources["clusters"]),
        **endpoints,
    }


def documents(wiring: Wiring, addresses: Addresses, place: Place) -> list[Data]:
    """The files, in that order. Raises EnvoyFileError and WiringError."""
    return list(files(build(wiring, addresses).config, place.folder).values())


def _moved(cluster: Data, folder: str) -> Data:
    """The cluster's endpoints, which it gets from their file from now on."""
    assignment: Data = cluster.pop("load_assignment")
    cluster["type"] = "EDS"
    cluster["eds_cluster_config"] = {
        "service_name": assignment["cluster_name"],
        "eds_config": _source(folder, ENDPOINTS.format(cluster["name"])),
    }
    return assignment


def _source(folder: str, name: str) -> Data:
    return {
        "resource_api_version": "V3",
        "path_config_source": {
            "path": str(PurePosixPath(folder, name)),
            # A ConfigMap's file is a link by way of a link, which changes instead of the file.
            "watched_directory": {"path": folder},
        },
    }


def _response(kind: str, resources: list[Data]) -> Data:
    return {"resources": [{"@type": f"{_TYPE}{kind}", **each} for each in resources]}
