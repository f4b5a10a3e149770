"""rmc-export: exports an agent to one small file."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import tyro

from rmc_agents import __version__, command_line, plugins
from rmc_agents.command_line import parsing
from rmc_agents.files import check_writable, write_atomically
from rmc_agents.pretrained import SUFFIX
from rmc_agents.runs.checkpoint import PROGRAMS

from .opening import Env, EnvKwargs, env_to_play, find, import_named
from .progress import OnProgress, ignore_progress, shown
from .statistics import EVALUATION_SEED, MAX_STEPS, Statistics, cut_note

if TYPE_CHECKING:
    from rmc_agents.agent import ActorCritic
    from rmc_agents.envs.making import EnvFactory
    from rmc_agents.runs.saved import Provenance, SavedAgent

    from .exported import Compared

DESCRIPTION = """Evaluate a saved agent and export it, without optimizer and training state, to one file.

The file holds settings, weights and the evaluation. rmc-evaluate and rmc-watch open it like a run. The formats onnx
and torch hold the agent's step as a program that does not need this package; throughout the evaluation its outputs
are compared with the agent's.

  rmc-export runs/lstm lstm.safetensors
  rmc-export runs/lstm lstm.onnx"""

SUFFIXES = {"safetensors": SUFFIX} | PROGRAMS
FOR_ONNX = ("onnx", "onnxscript", "onnxruntime")


@dataclass(frozen=True)
class Arguments:
    """The options of an export."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|CHECKPOINT")]
    """A run's folder (the newest valid checkpoint is used), a checkpoint, or a pretrained policy's name."""
    out: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[OUT]")] = None
    """The file to write, with the format's suffix: .safetensors, .onnx or .pt2. Default: RUN's name, in this folder."""
    format: Literal["safetensors", "onnx", "torch"] | None = None
    """safetensors: for this package; onnx: for onnxruntime and others; torch: for torch.export.load. None: as OUT's
    suffix says; without OUT safetensors."""
    episodes: int = 200
    """Whole episodes of the evaluation; episode i starts from seed + i."""
    seed: int = EVALUATION_SEED
    """Seed of the environments and of action sampling."""
    max_steps: int = MAX_STEPS
    """Maximum steps of an episode; a longer one is cut off and counts with the return so far."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: cuda if a working GPU is available, else cpu. The formats onnx and torch are made on the CPU."""
    env: Env = None
    env_kwargs: EnvKwargs = field(default_factory=dict)
    imports: parsing.Imports = ()


@command_line.command("rmc-export")
def main(argv: Sequence[str]) -> int:
    """The command; returns its exit status."""
    arguments = parsing.parse(
        Arguments,
        argv,
        "rmc-export",
        DESCRIPTION,
        if_unknown="; the file's name follows the run's: rmc-export RUN FILE",
    )
    parsing.check_numbers(arguments, "episodes", "max_steps", "seed")
    suffix = SUFFIXES[arguments.format or "safetensors"]
    out = arguments.out or Path(arguments.run.resolve().name.removesuffix(SUFFIX) + suffix)
    if arguments.format and out.suffix != suffix:
        raise ValueError(f"{out}: expected a file name that ends in {suffix} for --format {arguments.format}")
    _check_out(out)
    path = find(arguments.run, None, trust=True)  # an archive is rejected below without opening it
    import_named(arguments.imports, arguments.env)

    import torch

    from rmc_agents.runs.saved import load_agent, pick_device

    torch.set_num_threads(1)  # see docs/decisions/threads.md
    saved = load_agent(path, pick_device(arguments.device if out.suffix == SUFFIX else "cpu"))
    console, env = command_line.console(), env_to_play(saved, arguments.env, arguments.env_kwargs)
    with shown(console, f"playing {arguments.env or saved.config.env.env}", arguments.episodes) as on_progress:
        exported = export(
            saved,
            out,
            arguments.episodes,
            env=env,
            seed=arguments.seed,
            max_steps=arguments.max_steps,
            on_progress=on_progress,
        )
    if note := cut_note(asdict(exported.statistics) | {"max_steps": arguments.max_steps}):
        command_line.say(console, f"{note} (--max-steps)")
    command_line.say(console, f"{out} ({out.stat().st_size / 1e6:.2f} MB): {exported.provenance}")
    if exported.difference is not None:
        console.print(
            f"its probabilities differ by at most {exported.difference:.0e} from the agent's in these episodes"
        )
    return 0


class Exported(NamedTuple):
    """What is known about an exported file.

    Attributes:
      statistics: of the evaluation.
      provenance: the same as the file says it, if it is for this package.
      difference: the largest one between the probabilities of program and agent; None for .safetensors.
    """

    statistics: Statistics
    provenance: "Provenance"
    difference: float | None


def export(
    agent: "SavedAgent[ActorCritic] | ActorCritic",
    path: str | PathLike[str],
    episodes: int = 200,
    *,
    env: "str | EnvFactory | None" = None,
    seed: int = EVALUATION_SEED,
    max_steps: int = MAX_STEPS,
    on_progress: OnProgress = ignore_progress,
) -> Exported:
    """Evaluate an agent and export it to one file, like rmc-export.

        rmc.export(rmc.load("minipacman-rmc", device="cpu"), "pacman.onnx")

    Args:
      agent: the result of `rmc.load`, or an `ActorCritic`, which has no settings and so can only become a program; on
        the CPU for a program.
      path: ends in .safetensors (for this package), .onnx, or .pt2 (for torch.export.load); in an existing folder.
      episodes: whole episodes of the evaluation; episode i starts from seed + i.
      env: as in `rmc.evaluate`; None: the one that a saved agent was trained in. The file names it beside the scores.
      seed: of the environments and of action sampling.
      max_steps: maximum steps of an episode; a longer one is cut off and counts with the return so far.
      on_progress: called with the number of episodes that have just ended.

    Raises:
      ValueError: for another suffix, an agent that no format can hold, or a program that differs from the agent.
      OSError: if the file cannot be written.
      EnvError: if the environment's own code fails.
    """
    from rmc_agents.agent import ActorCritic
    from rmc_agents.envs.making import name_of
    from rmc_agents.runs.saved import SavedAgent, save_agent
    from rmc_agents.runs.texts import check_not_trained_on

    from .episodes import PlaySettings, play, provenance_of
    from .scoring import evaluating, policy_and_env

    out, saved = Path(path), agent if isinstance(agent, SavedAgent) else None
    _check_out(out)
    actor_critic = saved.agent if saved else agent
    if not isinstance(actor_critic, ActorCritic):
        what = saved.config.train.algo if saved else type(agent).__name__
        raise ValueError(f"agent: expected an ActorCritic or the result of rmc.load with one, got {what}")
    if out.suffix == SUFFIX and not saved:
        raise ValueError(f"{out}: expected a name that ends in .onnx or .pt2, because an ActorCritic has no settings")
    policy, env = policy_and_env(agent, env)
    check_not_trained_on(agent, env)
    settings = PlaySettings.of(agent, seed, False, max_steps)
    if out.suffix != SUFFIX and settings.device.type != "cpu":
        raise ValueError(f"agent: expected one on the CPU, as by rmc.load(..., device='cpu'), got {settings.device}")
    if saved and out.exists() and saved.path.exists() and out.samefile(saved.path):
        raise ValueError(f"{out} is the file to export: expected another file to write to")
    with evaluating(policy):
        compared = None if out.suffix == SUFFIX else _compared(actor_critic, saved, name_of(env), out.suffix)
        played = Statistics.of(play(compared or policy, env, episodes, settings, on_progress))
    provenance = provenance_of(played, settings.seed, env)
    if compared:
        write_atomically(out, compared.program.data)
    elif saved:
        save_agent(out, saved, provenance)
    return Exported(played, provenance, compared.largest if compared else None)


def _check_out(out: Path) -> None:
    """Raises ValueError for a file that cannot be written, before any episode is played."""
    if out.suffix not in SUFFIXES.values():
        raise ValueError(f"{out}: expected a file name that ends in {', '.join(SUFFIXES.values())}")
    if out.suffix == SUFFIXES["onnx"] and not all(map(plugins.is_installed, FOR_ONNX)):
        raise ValueError(f"{out.suffix} needs {', '.join(FOR_ONNX)}: pip install 'rmc-agents[onnx]'")
    check_writable(out)


def _compared(agent: "ActorCritic", saved: "SavedAgent[ActorCritic] | None", env: str, suffix: str) -> "Compared":
    """The agent, compared at every step with its exported program."""
    from rmc_agents.cores import built_in_name

    from .exported import Compared, make_program

    format = next(name for name, each in PROGRAMS.items() if each == suffix)
    core = built_in_name(agent.core) or agent.core.class_name()
    about = {"env": env, "core": core, "rmc_agents": __version__}
    if saved is not None:
        about |= {"env": saved.config.env.env, "core": saved.config.core.core, "frames": str(saved.frames)}
    return Compared(agent, make_program(agent, format, about))
