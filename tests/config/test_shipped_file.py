"""The repository's fairlane.yaml: it loads, shows every key, and says the truth about defaults."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from extproc.config.load import from_data, load
from extproc.config.model import Config, Tenant

FILE = Path(__file__).resolve().parents[2] / "fairlane.yaml"


def test_it_says_the_defaults() -> None:
    shipped = load(FILE)
    pool = shipped.pools[0]
    bare = {"name": pool.name, "models": pool.models, "endpoints": pool.endpoints.known}
    defaults = from_data({"pools": [bare]})
    assert shipped.model_copy(update={"tenants": {}}) == defaults
    assert shipped.tenants == {"*": Tenant()}
    assert shipped.pool_policy(pool) == defaults.pool_policy(defaults.pools[0])


def sections(model: type[BaseModel]) -> set[type[BaseModel]]:
    def inside(annotation: object) -> set[type[BaseModel]]:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            return {annotation} | sections(annotation)
        return {found for arg in get_args(annotation) for found in inside(arg)}

    return {found for field in model.model_fields.values() for found in inside(field.annotation)}


@pytest.mark.parametrize("section", sorted(sections(Config) | {Config}, key=lambda model: model.__name__))
def test_it_shows_every_key(section: type[BaseModel]) -> None:
    """Those that are not set by default stand in comments."""
    text = FILE.read_text(encoding="utf-8")
    for name, field in section.model_fields.items():
        key = field.alias or name
        assert re.search(rf"(^|[\s{{#-]){key}: ", text + " ", re.MULTILINE) or f"{key}:\n" in text, key


def test_the_default_classes_keep_the_engines_numbers_apart() -> None:
    """A tenant's requests inside the engines count up to the gap; the classes must not run into one another."""
    config = load(FILE)
    bases = sorted(cls.priority for cls in config.classes.values())
    gap = config.pool_policy(config.pools[0]).priority_steps
    assert all(high - low >= gap for low, high in pairwise(bases))
