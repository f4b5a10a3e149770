"""rmc-bench: where training time goes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rmc_agents import command_line
from rmc_agents.command_line import parsing
from rmc_agents.config import Config
from rmc_agents.files import check_writable, write_json

DESCRIPTION = """Measure where training time goes, for one environment, core, number of lanes and device.

Takes every setting of rmc-train; those of files, evaluations and videos have no effect. Every item below is measured
once per round, so a disturbance affects all of them; reported are medians over the rounds, and the interquartile range
relative to the median (±).

  training     one complete update; frames are environment steps over all lanes
  environment  the lanes stepped unroll-length times with a fixed action
  acting       collecting a rollout minus environment: encoder, core, heads, action sampling
  update       all minibatches: loss, gradient, optimizer step. forward: only the losses, without gradients;
               backward: losses and gradients minus forward; optimizer: update minus losses and gradients
  core steps   only the core, stepped unroll-length times without gradients, as in acting
  scan         the core's unroll over unroll-length steps of all lanes, forward and backward
  products     only the matrix products of that scan, forward and backward: one product each for everything that does
               not depend on the memory and for each weight's gradient, the others step by step; with the fastest
               available library, and with torch.mm

The operation count of a scan covers these products, without those of attention and without elementwise operations.
"Outside the scan" is training minus one such scan. Peak memory is read after two updates, before other measurements:
on a GPU the memory allocated by torch, else the process's resident set, interpreter and libraries included.

  rmc-bench --core rmc --num-envs 256 --num-heads 4 --backends reference --json bench.json"""

FIRST = ("env", "core", "config", "num_envs", "unroll_length", "threads", "backends", "repeats", "seconds", "json")


@dataclass(frozen=True)
class Arguments(Config):
    """Options of the measurement, and all settings of a run."""

    config: Path | None = None
    """YAML file of settings, named like the flags below, or the name of a preset."""
    repeats: int = 15
    """Measured rounds, after two warm-up rounds."""
    seconds: float | None = None
    """Start no further round after this many seconds, regardless of --repeats; at least one round is measured."""
    backends: tuple[Literal["auto", "reference", "fused", "triton"], ...] = ()
    """Also measure the scan with each of these backends."""
    json: Path | None = None
    """Also write the report to this file."""
    imports: parsing.Imports = ()


@command_line.command("rmc-bench")
def main(argv: Sequence[str]) -> int:
    """The command; returns its exit status."""
    arguments = _parse(argv)
    config = Config(**arguments.sections())
    parsing.check_numbers(arguments, "repeats")
    if arguments.seconds is not None and not arguments.seconds >= 0:
        raise ValueError(f"--seconds: expected at least 0, got {arguments.seconds}")
    if arguments.json is not None:
        check_writable(arguments.json)
    parsing.check_names(config, arguments.config)

    from .measurement import run

    report = run(config, arguments.backends, arguments.repeats, arguments.seconds)
    if arguments.json is not None:
        write_json(arguments.json, report, allow_nan=False)
    return 0


def _parse(argv: Sequence[str]) -> Arguments:
    """Flags override --config, which overrides the defaults, as in rmc-train."""
    first = parsing.import_typed(argv)

    def with_flags(base: Config) -> Arguments:
        return parsing.parse(Arguments, argv, "rmc-bench", DESCRIPTION, Arguments(**base.sections()), FIRST)

    return Config().updated_from_yaml(first.config).changed(with_flags, first.config)
