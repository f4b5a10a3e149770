"""The end of a run: its evaluation, its video, its summary, and what to type next."""

from itertools import starmap
from pathlib import Path
from typing import Any

from rich.console import Console

from rmc_agents import plugins
from rmc_agents.command_line import quoted, say
from rmc_agents.config import Config
from rmc_agents.envs.names import NAMESPACE
from rmc_agents.evaluate.episodes import evaluate_beside_random
from rmc_agents.evaluate.progress import shown, status
from rmc_agents.evaluate.statistics import EVALUATION_SEED, cut_note, share_text
from rmc_agents.evaluate.video.file import FRAMES_PER_SECOND
from rmc_agents.evaluate.video.recording import record
from rmc_agents.formatting import agent_title, counted, with_interval
from rmc_agents.runs import checkpoint
from rmc_agents.runs.best import best_of, best_path
from rmc_agents.runs.folder import SUMMARY, VIDEOS, RunFolder, flags_to_open, resume_command
from rmc_agents.runs.saved import count_parameters

from .evaluating import env_of, eval_jobs, play_settings
from .reporting.reporter import write_hparams
from .trainer import Trainer

VIDEO_STEPS = 500  # for an impression; rmc-watch records more


def finish(trainer: Trainer, folder: RunFolder, summary: dict[str, Any], console: Console) -> None:
    """Evaluation, video and summary of a finished run, and what to type next."""
    config, agent = trainer.config, trainer.agent
    summary |= folder.read_results()
    agent.eval()
    if trainer.stage < (stages := len(config.env.curriculum) + 1):
        say(console, f"the training ended in stage {trainer.stage} of {stages}, before the environment itself")
    if config.run.eval_episodes:
        with shown(console, "evaluating, and random play", 2 * config.run.eval_episodes) as on_progress:
            result = evaluate_beside_random(
                agent,
                env_of(trainer),
                config.run.eval_episodes,
                play_settings(trainer, EVALUATION_SEED),
                on_progress,
                eval_jobs(config),
            )
        summary["evaluation"] = result
        interval = " (95 % interval)" if result["ci95"] else ""
        say(
            console,
            f"mean return {with_interval(result['mean_return'], result['ci95'])} over "
            f"{counted(result['episodes'], 'episode')}{interval}; "
            f"uniform random play: {with_interval(result['random_mean_return'], None)}",
        )
        if result["accuracy"] is not None:
            chance = "" if result["chance"] is None else f"; chance: {result['chance']:.1%}"
            say(console, f"accuracy {share_text(result['accuracy'], result['accuracy_ci95'])}{chance}")
        if note := cut_note(result):
            say(console, f"{note} (--eval-max-steps)")
    folder.write_summary(summary)
    write_hparams(folder.path, config, summary)
    if config.run.video:
        summary["video"] = _record(trainer, folder, console)
        folder.write_summary(summary)
    _print_next(trainer, folder.path, summary, console)


def summarize(trainer: Trainer, seconds: float, run_dir: Path) -> dict[str, Any]:
    """The content of `summary.json` before evaluation and video."""
    best = best_of(run_dir)
    return {
        "frames": trainer.frames,
        "updates": trainer.updates,
        "seconds": seconds,
        "frames_per_second": trainer.frames / seconds,
        "parameters": count_parameters(trainer.agent.parameters()),
        "best": None if best is None else {"frames": best.frames, **best.provenance._asdict()},
        "evaluation": None,
        "video": None,
    }


def _record(trainer: Trainer, folder: RunFolder, console: Console) -> str | None:
    """Record a video; returns its path in the run's folder, or None after printing why it failed."""
    path = folder.path / VIDEOS / f"update-{trainer.updates:09d}.mp4"
    title = agent_title(trainer.config.env.env, trainer.config.core.core, trainer.frames)
    try:
        path.parent.mkdir(exist_ok=True)
        with status(console, "recording a video") as show:
            record(
                trainer.agent,
                env_of(trainer),
                path,
                play_settings(trainer, EVALUATION_SEED)._replace(max_steps=VIDEO_STEPS),
                title=title,
                value_scale=trainer.train.value_scale,
                on_frame=lambda frames: show(f"recording a video: {frames // FRAMES_PER_SECOND} s"),
            )
    except (ValueError, OSError) as error:
        say(console, f"no video: {error}")
        return None
    return str(path.relative_to(folder.path))


def only_python_opens(config: Config, to_train: bool = False) -> bool:
    """Whether the run has an environment, a core, an encoder or, to train, a loss that was given in Python, which
    commands lack.
    """
    parts = {"core": config.core.core, "encoder": config.agent.encoder} | (
        {"loss": config.train.loss} if to_train else {}
    )
    return config.env.env.startswith(NAMESPACE) or any(starmap(plugins.is_given_in_python, parts.items()))


def _print_next(trainer: Trainer, run_dir: Path, summary: dict[str, Any], console: Console) -> None:
    flags = flags_to_open(trainer.config)
    lines = [
        f"{summary['frames']:,} frames in {summary['seconds']:.0f} s ({summary['frames_per_second']:,.0f} frames/s)",
        f"  checkpoints     {run_dir / checkpoint.FOLDER}",
        f"  summary         {run_dir / SUMMARY}",
    ]
    if (best := best_path(run_dir)) is not None:
        lines.append(f"  best agent      {best}")
    if summary["video"]:
        lines.append(f"  video           {run_dir / summary['video']}")
    run = quoted(run_dir)
    lines.append("next:")
    if not only_python_opens(trainer.config):
        if summary["video"] or not trainer.config.run.video:
            lines.append(f"  rmc-watch {run}{flags}")
        lines.append(f"  rmc-evaluate {run} --episodes 200{flags}")
    if not only_python_opens(trainer.config, to_train=True):
        more = f" --total-frames {2 * summary['frames']}"
        lines.append(f"  {resume_command(run_dir, trainer.config, more)}")
    lines += [f"  rmc-plot {run}", f"  tensorboard --logdir {run}"]
    say(console, "\n".join(lines))
