"""rmc-watch: records a video of a saved agent, or a page that replays one of its episodes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from rmc_agents import command_line, pretrained
from rmc_agents.command_line import parsing
from rmc_agents.formatting import plain_number
from rmc_agents.runs.folder import VIDEOS, check_links, run_of

from .opening import Env, EnvKwargs, Opened, Pretrained, Trust, find, import_named, open_policy
from .progress import status
from .replay.live import find_source, serve
from .replay.server import check_port
from .statistics import EVALUATION_SEED, WINDOW
from .video.file import FRAMES_PER_SECOND, MAX_VIDEO_STEPS, SUFFIXES, check_target

DESCRIPTION = """Play episodes with a saved agent and record a video of its observations, values and actions,
and of the attention of an rmc's memory slots.

  rmc-watch runs/lstm --episodes 3 --out lstm.gif
  rmc-watch runs/rmc runs/lstm --out replay.html    a page to step through, with a look into the memory
  rmc-watch runs/rmc --out attention.png            the mean attention before and after a cue
  rmc-watch runs/rmc --port 6006                    the same page for a training run, always its newest checkpoint"""

PAGE, FIGURE = ".html", ".png"
Runs = Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[RUN|CHECKPOINT|NAME ...]")]


@dataclass(frozen=True)
class Arguments:
    """The options of a recording."""

    runs: Runs = ()
    """A run's folder (the newest valid checkpoint is used), a checkpoint, or a pretrained policy's name; a page takes
    several, which play the same seed side by side."""
    pretrained: Pretrained = None
    trust: Trust = False
    episodes: int | None = None
    """Number of episodes; episode i starts from seed + i. None: as many as take ten seconds or more in a video, one in
    a page, 1,000 for attention.png."""
    out: Path | None = None
    """The file: .mp4, .gif, .html, or .png for the mean attention of an rmc's slots before and after a cue, over the
    episodes, in environments that name a cue (nth-farthest). None: a video in the run's folder under videos/, or next
    to the checkpoint, or in this folder for --pretrained."""
    port: int | None = None
    """Instead of writing a file, serve the page on this port, for this machine only, and update it for every new
    checkpoint, until Ctrl-C; 0: any free port."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: cuda if a working GPU is available, else cpu."""
    seed: int = EVALUATION_SEED
    """Seed of the environment and of action sampling."""
    deterministic: bool = False
    """Take the most likely action instead of sampling."""
    fps: int = FRAMES_PER_SECOND
    """Steps shown per second, in a video."""
    window: int = WINDOW
    """In a page: compare the policy with one that only knows the last WINDOW steps."""
    max_steps: int = MAX_VIDEO_STEPS
    """Maximum steps of an episode."""
    env: Env = None
    env_kwargs: EnvKwargs = field(default_factory=dict)
    imports: parsing.Imports = ()


@command_line.command("rmc-watch")
def main(argv: Sequence[str]) -> int:
    """The command; returns its exit status."""
    arguments = parsing.parse(Arguments, argv, "rmc-watch", DESCRIPTION)
    parsing.check_numbers(arguments, "seed", "episodes", "window", "max_steps")
    if arguments.out is not None:
        check_target(arguments.out, (*SUFFIXES, PAGE, FIGURE))
    is_live = arguments.port is not None
    suffix = "" if arguments.out is None else arguments.out.suffix.lower()
    is_page, is_figure = is_live or suffix == PAGE, suffix == FIGURE
    if not is_page:
        parsing.check_unused(arguments, "without a page, by --out replay.html or --port", "window")
    if is_page or is_figure:
        parsing.check_unused(arguments, "without a video", "fps")
    _check_extent(arguments, is_page)
    find_one = find_source if is_live else find
    paths = [find_one(run, arguments.pretrained, arguments.trust) for run in arguments.runs or (None,)]
    import_named(arguments.imports, arguments.env)
    if is_live:
        return _serve(arguments, paths)
    opened = _open_all(arguments, paths)
    if is_figure and arguments.out is not None:
        return _draw_attention(arguments.out, arguments, opened[0])
    return _write_page(arguments, opened) if is_page else _film(arguments, opened[0])


def _open_all(arguments: Arguments, paths: Sequence[Path]) -> list[Opened]:
    return [open_policy(path, arguments.device, arguments.trust, arguments.env, arguments.env_kwargs) for path in paths]


def _check_extent(arguments: Arguments, is_page: bool) -> None:
    if arguments.port is not None:
        check_port(arguments.port)
        if arguments.out is not None:
            raise ValueError("--port serves the page and --out writes it: expected one of them, got both")
    if is_page and arguments.episodes not in (None, 1):
        raise ValueError(f"--episodes: expected 1 for a page, got {arguments.episodes}; --seed selects another one")
    if not is_page and len(arguments.runs) > 1:
        raise ValueError(
            f"expected one run for a video or a figure, got {len(arguments.runs)}; --out replay.html takes several"
        )


def _write_page(arguments: Arguments, opened: list[Opened]) -> int:
    from .replay import page, recorder

    assert arguments.out is not None
    console = command_line.console()
    with status(console, "recording"):
        runs = _record_all(arguments, opened)
        written = page.write(arguments.out, runs)
    for line in (*map(recorder.summary, runs), f"{arguments.out} ({written})"):
        command_line.say(console, line)
    return 0


def _record_all(arguments: Arguments, opened: list[Opened]) -> list[dict[str, Any]]:
    """One episode of each agent, from the same seed. Raises ValueError for agents of different environments."""
    from .episodes import PlaySettings
    from .replay.recorder import record

    names = list(dict.fromkeys(one.env_name for one in opened))
    if len(names) > 1 or not all(opened[0].saved.spec.fits(one.saved.spec) for one in opened):
        raise ValueError(
            f"expected runs of one environment, got {', '.join(names)}; --env NAME plays all of them in the same one"
        )
    return [
        record(
            one.saved.agent,
            one.env,
            PlaySettings.of(one.saved, arguments.seed, arguments.deterministic, arguments.max_steps),
            name=name,
            facts=f"{one.title} · seed {arguments.seed}",
            window=arguments.window,
            value_scale=one.saved.config.train.value_scale,
        )
        for one, name in zip(opened, names_of_saved([one.saved.path for one in opened]), strict=True)
    ]


def names_of_saved(paths: Sequence[Path]) -> list[str]:
    """Names of saved agents: of the run or the file; where two are alike, the end of the path that tells them apart."""
    names = [run.name if (run := run_of(path)) else path.stem for path in paths]
    parts = [path.absolute().with_suffix("").parts for path in paths]

    def end_of(own: tuple[str, ...], name: str) -> str:
        ends = [own[-length:] for length in range(1, len(own) + 1)]
        return "/".join(next((end for end in ends if sum(x[-len(end) :] == end for x in parts) == 1), (name,)))

    return [name if names.count(name) == 1 else end_of(own, name) for name, own in zip(names, parts, strict=True)]


def _serve(arguments: Arguments, paths: list[Path]) -> int:
    """Serve the page of the newest checkpoints until Ctrl-C, SIGTERM or SIGHUP, which end it normally."""
    from .replay import page, recorder

    def make_page(version: str) -> tuple[page.Page, list[str]]:
        opened = _open_all(arguments, paths)
        runs = _record_all(arguments, opened)
        made = page.fitted(runs, version)
        frames = ", ".join(f"{one.saved.frames:,}" for one in opened)
        return made, [*map(recorder.summary, runs), f"showing {frames} frames ({made})"]

    assert arguments.port is not None
    serve(paths, arguments.port, make_page, partial(command_line.say, command_line.console()))
    return 0


def _draw_attention(out: Path, arguments: Arguments, opened: Opened) -> int:
    from .scoring import record_attention

    mean = record_attention(
        opened.saved,
        opened.env,
        out,
        arguments.episodes or 1000,
        seed=arguments.seed,
        deterministic=arguments.deterministic,
        max_steps=arguments.max_steps,
        title=opened.title,
    )
    command_line.say(command_line.console(), f"{out} ({mean.episodes:,} episodes)")
    return 0


def _film(arguments: Arguments, opened: Opened) -> int:
    from rich.markup import escape

    from .scoring import record_video

    (saved, env), console = opened, command_line.console()
    what, fps = escape(f"recording {opened.env_name}"), arguments.fps
    with status(console, what) as show:
        recorded = record_video(
            saved,
            env,
            arguments.out or _default_path(saved.path, arguments.seed),
            episodes=arguments.episodes,
            seed=arguments.seed,
            deterministic=arguments.deterministic,
            max_steps=arguments.max_steps,
            fps=fps,
            title=opened.title,
            on_frame=lambda frames: show(f"{what}: {frames // fps} s"),
        )
    for i, (episode_return, is_cut) in enumerate(zip(recorded.returns, recorded.cut, strict=True)):
        note = f" when cut after {arguments.max_steps} steps (--max-steps)" if is_cut else ""
        command_line.say(console, f"seed {arguments.seed + i}: return {plain_number(episode_return)}{note}")
    command_line.say(console, f"{recorded.path} ({recorded.frames / fps:.0f} s)")
    return 0


def _default_path(path: Path, seed: int) -> Path:
    """`RUN/videos/CHECKPOINT-seedN.mp4`; next to a checkpoint outside a run; in this folder for a pretrained policy."""
    folder = path.parent
    if folder == pretrained.FOLDER:
        folder = Path()
    elif (run := run_of(path)) is not None:
        check_links(run)
        folder = run / VIDEOS
        folder.mkdir(exist_ok=True)
    return folder / f"{path.stem}-seed{seed}.mp4"
