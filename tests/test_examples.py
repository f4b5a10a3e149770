"""The examples of the docs run as they stand."""

import os
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "docs" / "examples").glob("*.py"))
SHORT = {"core_in_torch_code": "3", "own_core": "2000", "own_env": "2000", "own_loop": "3", "play": "30"}
"""How long each runs here: updates, frames or steps."""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [os.fspath(path), SHORT[path.stem]])
    runpy.run_path(os.fspath(path), run_name="__main__")
    assert capsys.readouterr().out
