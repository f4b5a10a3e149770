"""Small studies for rmc-sweep."""

from pathlib import Path
from typing import Any

import yaml

from rmc_agents.train.sweep import cli as sweep
from rmc_agents.train.sweep.plan import Plan

SETTINGS = {"env": "recall", "core": "none", "num_envs": 4, "unroll_length": 5, "total_frames": 100}

SEARCH = {"learning_rate": {"log": [1e-4, 1e-2]}, "encoder_sizes": {"choice": [[8], [16, 8]]}}


def write_study(folder: Path, search: dict[str, Any], **settings: Any) -> Path:
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump({"settings": SETTINGS | settings, "search": search}, sort_keys=False))
    return path


def read_plan(search: dict[str, Any], one_at_a_time: bool = False, seeds: tuple[int, ...] = ()) -> Plan:
    return Plan.read({"settings": SETTINGS, "search": search}, {}, 5, one_at_a_time, 0, list(seeds))


def run(study: Path, out: Path, *flags: str) -> int:
    return sweep.main([str(study), "--out", str(out), "--eval-episodes", "5", *flags])
