"""The fields of the public results are explained where help() and the API page show them."""

import dataclasses
import importlib
import re
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "api.md"
NAMES = re.findall(r"^::: (\S+)", PAGE.read_text(), re.MULTILINE)


def fields_of(kind: object) -> list[str]:
    if dataclasses.is_dataclass(kind):
        return [each.name for each in dataclasses.fields(kind)]
    return list(getattr(kind, "_fields", ()))


def test_fields_are_explained() -> None:
    missing = []
    for name in NAMES:
        module, _, attribute = name.rpartition(".")
        found = getattr(importlib.import_module(module), attribute)
        missing += [
            f"{name}.{each}" for each in fields_of(found) if not re.search(rf"\b{each}\b.*:", str(found.__doc__))
        ]
    assert missing == []
