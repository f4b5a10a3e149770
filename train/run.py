"""One run from its settings to its summary."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from rmc_agents import plugins, pretrained
from rmc_agents.command_line import interrupted_by_stops, quoted, with_interval
from rmc_agents.config import Config
from rmc_agents.envs.making import EnvFactory, with_arguments
from rmc_agents.envs.processes import WorkerError
from rmc_agents.evaluate.episodes import check_fits, evaluate
from rmc_agents.evaluate.statistics import EVALUATION_SEED, cut_note
from rmc_agents.evaluate.video import can_render, record
from rmc_agents.runs import checkpoint
from rmc_agents.runs.folder import RunFolder, default_path
from rmc_agents.runs.saved import load_agent

from . import distributed
from .learner import Learner
from .reporting import Reporter
from .resuming import Saved, new_trainer, notes, reopen
from .stopping import StopSignals
from .trainer import Trainer

VIDEO_STEPS = 500  # enough to see how it plays; rmc-watch records more


def start(config: Config, run_dir: Path | None, console: Console) -> int:
    """A new run, in a folder of its own. Returns the exit status."""
    trainer = new_trainer(config)
    if isinstance(trainer, Learner) and config.run.init_from is not None:
        _take_weights(trainer, config.run.init_from)
    with RunFolder(run_dir or default_path(trainer.config), resuming=False) as folder:
        return _run(trainer, folder, None, console)


def resume(folder: RunFolder, settings: Callable[[Config], Config], trust: bool, console: Console) -> int:
    """Go on with the run in `folder`; the arguments are `reopen`'s. Returns the exit status."""
    trainer, saved = reopen(folder.path, settings, trust)
    for path in checkpoint.set_aside_newer(saved.path):
        _say(console, f"set aside, because it could not be opened: {path}")
    return _run(trainer, folder, saved, console)


def _take_weights(trainer: Learner, source: str) -> None:
    """Begin with the weights of a saved agent: a path, or a pretrained policy's name where there is no such path."""
    path = Path(source)
    pretrained.check(source, "--init-from")
    saved = load_agent(path if path.exists() else pretrained.find(source), trainer.lanes.device)
    check_fits(saved.spec, _env(trainer))
    here, there = ({**asdict(config.core), **asdict(config.agent)} for config in (trainer.config, saved.config))
    other = [f"{name} {there[name]} (got {here[name]})" for name in there if there[name] != here[name]]
    if other:
        raise ValueError(f"--init-from {source}: its agent needs other settings: {', '.join(other)}")
    trainer.agent.load_state_dict(saved.agent.state_dict())


def _run(trainer: Trainer, folder: RunFolder, saved: Saved | None, console: Console) -> int:
    """Train until total_frames or a signal, save, evaluate, record."""
    if distributed.size() > 1:
        assert isinstance(trainer, Learner)
        distributed.share(trainer.get_state())
    _print_header(trainer, folder, saved, console)
    folder.write_config(trainer.config)
    if trainer.frames < trainer.train.total_frames:
        folder.drop_summary()
    resume_command = _resume_command(trainer, folder)
    with StopSignals() as stop, closing(trainer):
        try:
            seconds = _train(trainer, folder, saved.seconds if saved else 0.0, stop, console)
        except WorkerError:
            _say(
                console,
                f"an environment or an actor failed at {trainer.frames:,} frames; saved; go on with: {resume_command}",
            )
            raise
    if stop.received is not None:
        _say(console, f"stopped by {stop.received.name} and saved; go on with: {resume_command}")
        return 128 + stop.received
    try:
        with interrupted_by_stops():
            folder.write_summary(_summary(trainer, seconds))
            _finish(trainer, folder, seconds, console)
    except KeyboardInterrupt:
        _say(
            console, f"interrupted, but the training is complete and saved; evaluate and record with: {resume_command}"
        )
        return 130
    except WorkerError:
        _say(console, f"the training is complete and saved; evaluate and record with: {resume_command}")
        raise
    return 0


def _train(trainer: Trainer, folder: RunFolder, seconds: float, stop: StopSignals, console: Console) -> float:
    """The training loop; returns the seconds it took, earlier parts of the run included."""
    settings = trainer.config.run
    saved_at = seconds
    with Reporter(folder.path, trainer, seconds, settings.log_every, console) as reporter:
        while trainer.frames < trainer.train.total_frames and not stop.agreed():
            try:
                metrics = trainer.update()
                reporter.update(metrics)
            except (WorkerError, SystemExit):  # in a rollout, of which nothing is learned yet; by rich: nobody reads on
                trainer.save(folder.path, reporter.seconds)
                raise
            is_due = trainer.updates == 1 or reporter.seconds - saved_at >= settings.save_every
            if distributed.highest(is_due):  # the first at once: from then on the run can be resumed
                trainer.save(folder.path, reporter.seconds)
                saved_at = reporter.seconds
        trainer.save(folder.path, reporter.seconds)
        return reporter.seconds


def _env(trainer: Trainer) -> str | EnvFactory:
    """Where the agent is evaluated and filmed."""
    return with_arguments(trainer.config.env.env, trainer.config.env.env_kwargs)


def _resume_command(trainer: Trainer, folder: RunFolder) -> str:
    return f"{distributed.command(distributed.size())} --resume {quoted(folder.path)}{_flags(trainer)}"


def _flags(trainer: Trainer) -> str:
    """What a command needs on top to open the run: modules of one's own are imported only if they are named."""
    return trainer.trust_flag + plugins.told_flags()


def _print_header(trainer: Trainer, folder: RunFolder, saved: Saved | None, console: Console) -> None:
    init_from = trainer.config.run.init_from
    lines = trainer.describe()
    lines.append(f"run folder: {folder.path}   watch it learn: tensorboard --logdir {quoted(folder.path)}")
    if saved is None and init_from is not None:
        lines.append(f"begins with the weights of {init_from}")
    if saved is not None:
        lines += notes(trainer, saved, folder)
    if trainer.frames >= (total := trainer.train.total_frames):
        lines.append(f"nothing to train: {trainer.frames:,} frames are trained, and total_frames is {total:,}")
    for line in lines:
        _say(console, line)


def _finish(trainer: Trainer, folder: RunFolder, seconds: float, console: Console) -> None:
    """Evaluation, video and summary of a finished run, and what to type next."""
    config, agent, device = trainer.config, trainer.agent, trainer.lanes.device
    agent.eval()
    summary = _summary(trainer, seconds)
    if config.run.eval_episodes:
        with console.status(f"evaluating over {config.run.eval_episodes} episodes"):
            result = evaluate(
                agent,
                _env(trainer),
                config.run.eval_episodes,
                EVALUATION_SEED,
                device,
                max_steps=config.run.eval_max_steps,
            )
        summary["evaluation"] = result
        _say(
            console,
            f"mean return {with_interval(result['mean_return'], result['ci95'])} over {result['episodes']} episodes "
            f"(95 % interval); uniform random play: {with_interval(result['random_mean_return'], None)}",
        )
        if note := cut_note(result):
            _say(console, f"{note} (--eval-max-steps)")
    folder.write_summary(summary)
    if config.run.video and can_render(_env(trainer)):
        with console.status("recording a video"):
            summary["video"] = _record(trainer, folder, console)
        folder.write_summary(summary)
    _print_next(folder.path, trainer.trust_flag, summary, console)


def _summary(trainer: Trainer, seconds: float) -> dict[str, Any]:
    """What `summary.json` says before evaluation and video."""
    return {
        "frames": trainer.frames,
        "updates": trainer.updates,
        "seconds": seconds,
        "frames_per_second": trainer.frames / seconds,
        "evaluation": None,
        "video": None,
    }


def _record(trainer: Trainer, folder: RunFolder, console: Console) -> str | None:
    """The video's path in the run's folder; None after a line that says why: the run itself is done."""
    path = folder.path / "videos" / f"update-{trainer.updates:09d}.mp4"
    env, device = trainer.config.env.env, trainer.lanes.device
    title = f"{env} · {trainer.config.core.core} · {trainer.frames:,} frames"
    try:
        path.parent.mkdir(exist_ok=True)
        record(
            trainer.agent,
            _env(trainer),
            path,
            seed=EVALUATION_SEED,
            device=device,
            title=title,
            max_steps=VIDEO_STEPS,
            reward_scale=trainer.train.reward_scale,
        )
    except (ValueError, OSError) as error:
        _say(console, f"no video: {error}")
        return None
    return str(path.relative_to(folder.path))


def _print_next(run_dir: Path, flags: str, summary: dict[str, Any], console: Console) -> None:
    program = distributed.command(distributed.size())
    lines = [
        f"{summary['frames']:,} frames in {summary['seconds']:.0f} s ({summary['frames_per_second']:,.0f} frames/s)",
        f"  checkpoints     {run_dir / checkpoint.FOLDER}",
        f"  summary         {run_dir / 'summary.json'}",
    ]
    if summary["video"]:
        lines.append(f"  video           {run_dir / summary['video']}")
    run = quoted(run_dir)
    lines += [
        "next:",
        f"  rmc-watch {run} --episodes 3{flags}",
        f"  rmc-evaluate {run} --episodes 200{flags}",
        f"  rmc-plot {run}",
        f"  {program} --resume {run} --total-frames {2 * summary['frames']}{flags}",
        f"  tensorboard --logdir {run}",
    ]
    _say(console, "\n".join(lines))


def _say(console: Console, text: str) -> None:
    """A line as it is: paths are not broken at the terminal's edge, nor are brackets taken for markup."""
    console.print(text, highlight=False, soft_wrap=True, markup=False)
