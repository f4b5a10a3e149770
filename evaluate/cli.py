"""rmc-evaluate: evaluates a saved agent."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.console import Console

from rmc_agents import command_line
from rmc_agents.command_line import parsing
from rmc_agents.files import check_writable, write_json
from rmc_agents.formatting import as_printable, counted

from .opening import Env, EnvKwargs, Opened, Pretrained, RunArgument, Trust, find, import_named, open_policy
from .progress import shown
from .statistics import EVALUATION_SEED, MAX_STEPS, WINDOWS
from .tables import print_result

if TYPE_CHECKING:
    from .episodes import PlaySettings

DESCRIPTION = """Play whole episodes with a saved agent and report its scores next to those of uniform random play.

  rmc-evaluate runs/lstm --episodes 200 --json runs/lstm/evaluation.json
  rmc-evaluate runs/lstm --ablate-memory --windows 1 8 32
  rmc-evaluate runs/book --sample 500 --prompt "It was"      # for an agent that models text"""


@dataclass(frozen=True)
class Arguments:
    """The options of an evaluation."""

    run: RunArgument = None
    """A run's folder (the newest valid checkpoint is used), a checkpoint, or a pretrained policy's name."""
    pretrained: Pretrained = None
    trust: Trust = False
    episodes: int = 100
    """Whole episodes to play; episode i starts from seed + i."""
    seed: int = EVALUATION_SEED
    """Seed of the environments and of action sampling."""
    deterministic: bool = False
    """Take the most likely action instead of sampling, as agents of --algo supervised always do."""
    max_steps: int = MAX_STEPS
    """Maximum steps of an episode; a longer one is cut off and counts with the return so far."""
    jobs: int | Literal["auto"] = "auto"
    """Processes; the results are the same with any number. auto: one per physical core, unless the evaluation is
    short."""
    json: Path | None = None
    """Also write the results to this file."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: cuda if a working GPU is available, else cpu."""
    env: Env = None
    env_kwargs: EnvKwargs = field(default_factory=dict)
    ablate_memory: bool = False
    """Instead, play the same episodes with the memory intact, reset at every step, shuffled between lanes at every
    step, and limited to the last time steps."""
    windows: tuple[int, ...] = WINDOWS
    """With --ablate-memory: limit the memory to these numbers of last steps, the current one included; k steps take k
    times as long."""
    sample: int | None = None
    """Instead, generate this many tokens with an agent that models text."""
    prompt: Annotated[str, tyro.conf.arg(metavar="TEXT")] = ""
    """With --sample: read this first."""
    temperature: float = 1.0
    """With --sample: sampling temperature; 0: always the most likely token."""
    imports: parsing.Imports = ()


@command_line.command("rmc-evaluate")
def main(argv: Sequence[str]) -> int:
    """The command; returns its exit status."""
    arguments = parsing.parse(Arguments, argv, "rmc-evaluate", DESCRIPTION)
    _check(arguments)
    path = find(arguments.run, arguments.pretrained, arguments.trust)
    import_named(arguments.imports, arguments.env)
    opened = open_policy(path, arguments.device, arguments.trust, arguments.env, arguments.env_kwargs)
    if arguments.sample is not None:
        return _sample(arguments, opened, arguments.sample)
    return _score(arguments, opened)


def _check(arguments: Arguments) -> None:
    """Raises ValueError for a number out of range, an option without effect, or a file that cannot be written."""
    parsing.check_numbers(arguments, "episodes", "max_steps", "seed", "sample")
    if arguments.jobs != "auto" and arguments.jobs < 1:
        raise ValueError(f"--jobs: expected auto or at least 1, got {arguments.jobs}")
    if arguments.sample is not None:
        unused = ("json", "ablate_memory", "deterministic", "episodes", "max_steps", "jobs")
        parsing.check_unused(arguments, "with --sample", *unused)
    else:
        parsing.check_unused(arguments, "without --sample N, the number of tokens to write", "prompt", "temperature")
    if not arguments.ablate_memory:
        parsing.check_unused(arguments, "without --ablate-memory", "windows")
    if arguments.json is not None:
        check_writable(arguments.json)


def _score(arguments: Arguments, opened: Opened) -> int:
    """Evaluate, or ablate the memory; write the result and print it."""
    from rmc_agents.runs.texts import check_not_trained_on

    from .episodes import PlaySettings

    saved, console = opened.saved, command_line.console()
    check_not_trained_on(saved, opened.env)
    settings = PlaySettings.of(saved, arguments.seed, arguments.deterministic, arguments.max_steps)
    result = (_ablate if arguments.ablate_memory else _evaluate)(arguments, opened, settings, console)
    result |= {"checkpoint": str(saved.path), "frames": saved.frames, "core": saved.config.core.core}
    if arguments.json is not None:  # before printing, which may fail
        write_json(arguments.json, result)
    print_result(result, console)
    if result["episodes"] < arguments.episodes:
        found = counted(result["episodes"], "different episode")
        command_line.say(console, f"the environment has {found}, each played once")
    if saved.provenance is not None and as_printable(opened.env_name) == (saved.provenance.env or saved.config.env.env):
        command_line.say(console, str(saved.provenance))
    if arguments.json is not None:
        command_line.say(console, f"written to {arguments.json}")
    return 0


def _sample(arguments: Arguments, opened: Opened, tokens: int) -> int:
    from .sampling import sample_text

    written = sample_text(
        opened.saved,
        tokens,
        env=opened.env,
        prompt=arguments.prompt,
        temperature=arguments.temperature,
        seed=arguments.seed,
    )
    print(written)
    return 0


def _evaluate(arguments: Arguments, opened: Opened, settings: "PlaySettings", console: Console) -> dict[str, Any]:
    """Statistics of the agent and of random play, as plain values for JSON."""
    from .episodes import evaluate_beside_random

    agent, episodes = opened.saved.agent, arguments.episodes
    with shown(console, f"playing {opened.env_name}, and randomly", 2 * episodes) as on_progress:
        return evaluate_beside_random(agent, opened.env, episodes, settings, on_progress, arguments.jobs)


def _ablate(arguments: Arguments, opened: Opened, settings: "PlaySettings", console: Console) -> dict[str, Any]:
    """Statistics of every ablated variant, as plain values for JSON."""
    from rmc_agents.agent import ActorCritic

    from .ablation import ablate, variants

    saved, agent = opened.saved, opened.saved.agent
    if not isinstance(agent, ActorCritic):
        raise ValueError(
            f"--ablate-memory: expected an agent of this project's own algorithms, got one of "
            f"{saved.config.train.algo}, whose memory is Stable-Baselines3's"
        )
    number = arguments.episodes * len(variants(agent, arguments.windows, settings.seed))
    with shown(console, f"playing {opened.env_name}", number) as on_progress:
        found = ablate(agent, opened.env, arguments.episodes, arguments.windows, settings, on_progress, arguments.jobs)
    return {
        "env": opened.env_name,
        "seed": settings.seed,
        "deterministic": settings.deterministic,
        "max_steps": settings.max_steps,
        "episodes": found["intact"].episodes,
        "ablation": {name: asdict(statistics) for name, statistics in found.items()},
    }
