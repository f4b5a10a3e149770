"""rmc-bench: where training time goes."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from rmc_agents import command_line, configs
from rmc_agents.config import Config
from rmc_agents.evaluate.cli import check_writable
from rmc_agents.runs.checkpoint import write_atomically

DESCRIPTION = """Measure where training time goes, for one environment, core, number of lanes and device.

Takes every setting of rmc-train. Each thing below is done once a round, one after the other, so that a disturbance
meets all of them; reported are medians over the rounds, and the interquartile range over the median (±).

  training     one update, everything included; frames are environment steps over all lanes
  environment  the lanes stepped unroll-length times by a fixed action
  acting       collecting a rollout less the environment: encoder, core, heads, the draw of actions
  update       all minibatches: loss, gradient, optimizer. Of it, forward: the losses alone, without gradients;
               backward: losses and gradients less forward; optimizer: update less losses and gradients
  core steps   the core alone, stepped unroll-length times without gradients, as acting does it
  scan         the core's unroll over unroll-length steps of all lanes, and its gradient
  products     the matrix products of that scan, forward and backward, and nothing in between: what depends on no memory
               and each weight's gradient in one product each, the rest step by step; by the fastest library at hand,
               and by torch.mm

A scan's operations are those of these products; attention's own and all that is no product are not counted. Outside the
scan is training less one such scan. Peak memory is read after two updates, before anything else is measured: on a GPU
what torch allocated there, else the process's resident set, interpreter and libraries included.

  rmc-bench --core rmc --num-envs 256 --num-heads 4 --backends reference --json bench.json"""

FIRST = ("env", "core", "config", "num_envs", "unroll_length", "threads", "backends", "repeats", "seconds", "json")


@dataclass(frozen=True)
class Arguments(Config):
    """What to measure, and all settings of a run."""

    config: Path | None = None
    """YAML file of settings by the names of the flags below, or a preset's name."""
    repeats: int = 15
    """Rounds that count, after two that do not."""
    seconds: float | None = None
    """Begin no further round after so many seconds, whatever --repeats says; one counts always."""
    backends: tuple[Literal["auto", "reference", "fused", "triton"], ...] = ()
    """Measure the scan by each of these as well."""
    json: Path | None = None
    """Also write everything to this file."""
    imports: command_line.Imports = ()


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    return command_line.run("rmc-bench", lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    arguments = _parse(argv)
    config = Config(**{section.name: getattr(arguments, section.name) for section in fields(Config)})
    if arguments.repeats < 1:
        raise ValueError(f"--repeats: expected at least 1, got {arguments.repeats}")
    if arguments.seconds is not None and not arguments.seconds >= 0:
        raise ValueError(f"--seconds: expected at least 0, got {arguments.seconds}")
    if arguments.json is not None:
        check_writable(arguments.json)
    command_line.check_names(config, arguments.config)

    from .command import run

    report = run(config, arguments.backends, arguments.repeats, arguments.seconds)
    if arguments.json is not None:
        write_atomically(arguments.json, (json.dumps(report, indent=2, allow_nan=False) + "\n").encode())
    return 0


def _parse(argv: Sequence[str] | None) -> Arguments:
    """Flags over --config over the defaults, as rmc-train has it."""
    first = command_line.import_typed(argv)
    base = Config() if first.config is None else Config().updated_from_yaml(configs.find(first.config))
    default = Arguments(**{section.name: getattr(base, section.name) for section in fields(Config)})
    return command_line.parse(Arguments, argv, "rmc-bench", DESCRIPTION, default, FIRST)
