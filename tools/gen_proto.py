"""Generates extproc/pb from proto/: `python tools/gen_proto.py`, or with `--check` to see whether it is up to date.

Every `proto/fairlane/<path>.proto` becomes `extproc/pb/<path>_pb2.py` with its stub `_pb2.pyi`; one that declares a
service gets `_pb2_grpc.py` as well. protoc names Python modules after the proto package (`fairlane.wire.v1`), while
ours live inside the product's one package (`extproc.pb.wire.v1`): the import lines are rewritten, nothing else.

The output depends on the sources and on the version of grpcio-tools (pinned in constraints.txt) alone.
Exit code: 0 done or up to date, 1 stale (`--check`) or protoc's error.
"""

from __future__ import annotations

import argparse
import importlib.resources
import re
import sys
import tempfile
from pathlib import Path

from google.api import field_behavior_pb2
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "proto"
TARGET = ROOT / "extproc" / "pb"
PACKAGE = "fairlane"
TARGET_PACKAGE = "extproc.pb"

_INIT = '"""Generated from proto/ by tools/gen_proto.py: change the .proto file and run it again."""\n'
_IMPORT = re.compile(rf"^(from|import) {PACKAGE}\.", re.MULTILINE)
_SERVICE = re.compile(r"^service\s+\w+", re.MULTILINE)


class GenerationError(Exception):
    """protoc refused a source; it has written the reason to stderr."""


def _compile(sources: list[Path], into: Path) -> None:
    well_known = importlib.resources.files("grpc_tools") / "_proto"
    common = Path(field_behavior_pb2.__file__).parents[2]  # of googleapis-common-protos
    names = [str(path.relative_to(SOURCES)) for path in sources]
    services = [name for name, path in zip(names, sources, strict=True) if _SERVICE.search(path.read_text("utf-8"))]
    base = ["protoc", f"--proto_path={SOURCES}", f"--proto_path={well_known}", f"--proto_path={common}"]
    runs = [[*base, f"--python_out={into}", f"--pyi_out={into}", *names]]
    if services:
        runs.append([*base, f"--grpc_python_out={into}", *services])
    for command in runs:
        if protoc.main(command) != 0:
            raise GenerationError("protoc failed: " + " ".join(command))


def generate() -> dict[Path, str]:
    """The files that belong under extproc/pb, by path relative to it."""
    sources = sorted((SOURCES / PACKAGE).rglob("*.proto"))
    files: dict[Path, str] = {}
    with tempfile.TemporaryDirectory() as scratch:
        _compile(sources, Path(scratch))
        made = Path(scratch) / PACKAGE
        for path in sorted(made.rglob("*.py*")):
            text = _IMPORT.sub(rf"\1 {TARGET_PACKAGE}.", path.read_text("utf-8"))
            files[path.relative_to(made)] = text
    for folder in {parent for path in files for parent in path.parents} - {Path()}:
        files[folder / "__init__.py"] = _INIT
    return files


def committed() -> dict[Path, str]:
    """The generated files that are there now, as `generate` gives them. extproc/pb/__init__.py is written by hand."""
    return {
        path.relative_to(TARGET): path.read_text("utf-8")
        for path in sorted(TARGET.rglob("*.py*"))
        if path.suffix in {".py", ".pyi"} and path != TARGET / "__init__.py"
    }


def stale() -> list[Path]:
    """Paths below extproc/pb that differ from what the sources give, are missing or have no source."""
    wanted, present = generate(), committed()
    return sorted(path for path in wanted.keys() | present.keys() if wanted.get(path) != present.get(path))


def write() -> None:
    """Brings extproc/pb in line with proto/; files without a source are removed."""
    wanted = generate()
    for path in committed().keys() - wanted.keys():
        (TARGET / path).unlink()
    for path, text in wanted.items():
        target = TARGET / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="generate extproc/pb from proto/")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the generated code is stale")
    options = parser.parse_args(arguments)
    try:
        if not options.check:
            write()
            return 0
        outdated = stale()
    except GenerationError as error:
        print(error, file=sys.stderr)
        return 1
    for path in outdated:
        print(f"stale: {(TARGET / path).relative_to(ROOT)}", file=sys.stderr)
    if outdated:
        print("run: make proto", file=sys.stderr)
    return 1 if outdated else 0


if __name__ == "__main__":
    sys.exit(main())
