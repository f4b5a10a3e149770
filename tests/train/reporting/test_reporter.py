"""The live line of a training."""

import io
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from helpers.runs import events_of
from rmc_agents.config import Config
from rmc_agents.train.reporting.reporter import Reporter


def reporter_of(preset: str, folder: Path) -> Reporter:
    """A reporter of a training with this preset at 20,000 frames/s."""
    config = Config().updated_from_yaml(preset)
    trainer: Any = SimpleNamespace(
        config=config, train=config.train, frames=3 * 10**7, stage=1, diagnostics=lambda _: None
    )
    console = Console(file=io.StringIO(), width=80, force_terminal=True, force_interactive=True, color_system=None)
    tracking: Any = SimpleNamespace(log=lambda *_: None)
    return Reporter(folder, trainer, 0.0, console, lambda: trainer.frames / 20_000, tracking)


@pytest.mark.parametrize("preset", ["nth-farthest-rmc", "program-rmc"])
def test_a_terminal_of_80_columns_shows_the_time_left(preset: str, tmp_path: Path) -> None:
    reporter = reporter_of(preset, tmp_path)
    trainer: Any = reporter.trainer
    with reporter:
        for _ in range(20):
            trainer.frames += 20_000
            reporter.update({"charts/accuracy": torch.tensor(0.5), "losses/cross_entropy": torch.tensor(1.8)}, [])
        line = Console(file=io.StringIO(), width=80, color_system=None)
        line.print(reporter._progress.get_renderable())
    shown = line.file.getvalue()  # type: ignore[attr-defined]
    assert re.search(r"ETA \d:\d\d:\d\d", shown), shown
    assert shown.count("\n") == 1


def test_a_point_has_the_answers_of_the_newest_update_that_asked(tmp_path: Path) -> None:
    reporter = reporter_of("nth-farthest-rmc", tmp_path)
    with reporter:
        for accuracy in (0.25, 0.5, torch.nan):
            reporter.trainer.frames += 20_000
            reporter.update({"charts/accuracy": torch.tensor(accuracy)}, [])
        reporter.finish()
    assert [point.value for point in events_of(tmp_path).Scalars("charts/accuracy")] == [0.5]
