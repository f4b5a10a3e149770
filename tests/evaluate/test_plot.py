"""Curves of runs and their figure."""

import struct
from pathlib import Path

import numpy as np
import pytest
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
from torch.utils.tensorboard import SummaryWriter

from helpers.runs import refused, save_agent
from rmc_agents.config import Config, TrainConfig
from rmc_agents.evaluate import curves, plot
from rmc_agents.runs.folder import TIME_TAG


def write_events(run_dir: Path, points: dict[int, float], purge_step: int | None = None, late: float = 0.0) -> None:
    folder = run_dir / "tensorboard"
    earlier = set(folder.glob("*"))
    writer = SummaryWriter(str(folder), purge_step=purge_step)
    for frames, value in points.items():
        writer.add_scalar("charts/episodic_return", value, frames)
        writer.add_scalar(TIME_TAG, frames / 5 + late, frames)
    writer.close()
    (written,) = set(folder.glob("*")) - earlier
    written.rename(folder / f"events.out.tfevents.{len(earlier)}")  # names of one second may be out of order


def test_plot_reads_a_resumed_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_events(tmp_path, {10: 1.0, 20: 2.0, 30: 99.0})
    write_events(tmp_path, {30: 3.0, 40: 4.0}, purge_step=25, late=1.5)
    curve = curves.read_curve(tmp_path)
    assert curve.frames.tolist() == [10, 20, 30, 40]
    assert curve.values.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert curve.seconds.tolist() == [2.0, 4.0, 7.5, 9.5]
    assert not caplog.records, "TensorBoard warns of the steps that come again"


def test_damaged_events_are_one_line(tmp_path: Path) -> None:
    write_events(tmp_path, {10: 1.0, 20: 2.0})
    (events,) = (tmp_path / "tensorboard").iterdir()
    events.write_bytes(b"\xff" * 8 + struct.pack("<I", masked_crc32c(b"\xff" * 8)))  # a record of 2 ** 64 - 1 bytes
    with pytest.raises(ValueError, match="its TensorBoard events are damaged"):
        curves.read_curve(tmp_path)


def test_a_metric_that_is_optional_may_be_missing(tmp_path: Path) -> None:
    write_events(tmp_path, {10: 1.0})
    assert len(curves.read_curve(tmp_path, "success", is_optional=True).frames) == 0
    with pytest.raises(ValueError, match="have no charts/success_rate; metrics that it has: return"):
        curves.read_curve(tmp_path, "success")
    with pytest.raises(ValueError, match="--eval-every N makes evaluations"):
        curves.read_curve(tmp_path, "evaluation")


@pytest.mark.parametrize(("algo", "label"), [("supervised", "accuracy"), ("ppo", "mean episode return")])
def test_the_metric_follows_from_the_algorithm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algo: str, label: str
) -> None:
    drawn: list[str] = []
    monkeypatch.setattr(plot, "write_png", lambda figure, path: drawn.append(figure.axes[0].get_ylabel()))
    monkeypatch.setattr(plot, "read_config", lambda run: Config(train=TrainConfig(algo=algo)))  # type: ignore[arg-type]
    with SummaryWriter(str(tmp_path / "tensorboard")) as writer:
        for tag in ("charts/episodic_return", "charts/accuracy", TIME_TAG):
            writer.add_scalar(tag, 0.5, 10)
    plot.plot(tmp_path, "curves.png")
    assert drawn == [label]


@pytest.mark.slow
def test_plot_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    runs = [tmp_path / name for name in ("a", "b")]
    for i, run in enumerate(runs):
        save_agent(run)
        write_events(run, {10: 1.0 + i, 20: 3.0 + i})
    out = tmp_path / "curves.png"
    assert plot.main([*map(str, runs), "--out", str(out), "--mark", "random=0.5", "--against", "both"]) == 0
    assert "seed 0, which was given before" in caplog.text
    assert out.read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    (tmp_path / "empty").mkdir()
    assert plot.main([str(runs[0]), "--out", str(out), "--smooth", "1"]) == 0
    assert capsys.readouterr().out == f"{out} (curves not smoothed)\n"
    assert "holds no run" in refused(capsys, plot, tmp_path / "empty")
    assert "holds no run" in refused(capsys, plot, tmp_path / "missing")
    assert "expected NAME=VALUE, got 'random'" in refused(capsys, plot, runs[0], "--mark", "random")
    assert "ends in .png" in refused(capsys, plot, runs[0], "--out", "a.pdf")


def test_runs_may_come_from_a_generator(tmp_path: Path) -> None:
    save_agent(tmp_path / "run")
    write_events(tmp_path / "run", {10: 1.0, 20: 3.0})
    plot.plot((tmp_path / name for name in ["run"]), tmp_path / "curves.png")
    assert (tmp_path / "curves.png").is_file()


def make_curve(frames: list[int], returns: list[float]) -> curves.Curve:
    return curves.Curve(np.array(frames), np.array(returns), 60.0 * np.array(frames) / 10)


def test_plot_draws_the_mean_over_seeds(tmp_path: Path) -> None:
    curves = [make_curve([0, 10], [0.0, 2.0]), make_curve([5, 15], [3.0, 5.0])]
    figure = plot.draw({"lstm": curves}, {"random": 1.0, "_u": 0.5}, r"a$\foo$", ("frames", "minutes"))
    for axes, ends in zip(figure.axes, ([5, 10], [0.5, 1.0]), strict=True):
        mean = max(axes.lines, key=lambda line: line.get_linewidth())
        np.testing.assert_allclose(mean.get_xdata()[[0, -1]], ends)
        np.testing.assert_allclose(mean.get_ydata()[[0, -1]], [2.0, 3.0])
    assert [text.get_text() for text in figure.legends[0].get_texts()][1:] == ["random (1)", "\u200b_u (0.5)"]
    plot.write_png(figure, tmp_path / "a.png")  # $\foo$ would be an unknown formula


def test_a_curve_of_one_point_is_a_dot_and_the_legend_says_how_curves_are_smoothed() -> None:
    curves = {"short": [make_curve([10], [1.0])], "seeds": [make_curve([10, 20], [0, 1]), make_curve([20, 30], [1, 2])]}
    figure = plot.draw(curves, {}, "title", smooth=5)
    markers = {len(np.unique(line.get_xdata())): line.get_marker() for line in figure.axes[0].lines}
    assert markers == {1: "o", 2: "None"}
    assert "averaged over up to 5 neighbouring points" in figure.legends[0].get_title().get_text()


def test_many_agents_are_told_apart_beside_a_long_legend() -> None:
    names = [f"rmc, {', '.join(f'setting_number_{i}={i * j}' for i in range(6))}" for j in range(16)]
    figure = plot.draw(
        {name: [make_curve([10, 20], [0, 1])] for name in names}, {}, "one, " * 40, ("frames", "minutes")
    )
    figure.draw_without_rendering()
    axes, legend = figure.axes[0], figure.legends[0].get_window_extent()
    assert legend.y0 >= 0
    assert legend.y1 < axes.get_tightbbox().y0
    assert axes.get_window_extent().height > 2 * figure.dpi
    assert axes.get_tightbbox().x1 < figure.axes[1].get_window_extent().x0, "the title is as wide as its panel"
    styles = {(line.get_color(), line.get_linestyle()) for line in axes.lines}
    assert len(styles) == len(names)


@pytest.mark.parametrize(("seeds", "bands"), [(4, 0), (5, 1)])
def test_there_is_a_band_with_enough_seeds(seeds: int, bands: int) -> None:
    figure = plot.draw({"lstm": [make_curve([0, 10], [0.0, seed]) for seed in range(seeds)]}, {}, "title")
    assert len(figure.axes[0].collections) == bands
    assert ("95 % bootstrap interval" in figure.legends[0].get_title().get_text()) == bool(bands)


@pytest.mark.filterwarnings("error")
def test_drawing_and_intervals_warn_of_nothing(tmp_path: Path) -> None:
    assert np.isnan(curves.bootstrap_band(np.array([np.nan, 1.0]))).all()
    plot.write_png(plot.draw({"\u7d19": [make_curve([10], [1.0])]}, {}, "title"), str(tmp_path / "a.png"))


def test_interquartile_mean_leaves_out_a_quarter_at_both_ends() -> None:
    samples = np.array([[100.0, 0.0], [1.0, 0.0], [3.0, 0.0], [-50.0, 4.0]])
    np.testing.assert_allclose(curves.interquartile_mean(samples), [2.0, 0.0])
    low, high = curves.bootstrap_band(samples)
    assert (low <= [2.0, 0.0]).all()
    assert (high >= [2.0, 0.0]).all()
    assert low[1] == 0
    assert 0 < high[1] <= 4


def test_the_band_is_of_the_interquartile_mean() -> None:
    """Among sixteen samples, one outlier affects only one in thousands of resamples."""
    low, high = curves.bootstrap_band(np.array([1000.0] + [0.0] * 15))
    assert (low, high) == (0, 0)


def test_runs_that_differ_in_more_than_the_seed_are_not_seeds_of_one_agent() -> None:
    changes = [
        {"seed": 0},
        {"seed": 1, "video": False, "diagnostics": True, "env_workers": 2, "env_backend": "native"},
        {"mem_slots": 8},
        {"core": "lstm"},
    ]
    configs = [Config().updated(change, "test") for change in changes]
    labels = plot.labels([config.core.core for config in configs], configs)
    assert labels == ["rmc, mem_slots=4", "rmc, mem_slots=4", "rmc, mem_slots=8", "lstm"]
    stages = [{"env_kwargs": {"length": 1}, "frames": 9}]
    arguments = [Config().updated({"env_kwargs": {"length": 2}, "curriculum": stages}, "test"), Config()]
    assert plot.labels(["rmc", "rmc"], arguments) == [
        "rmc, env_kwargs (length=2), curriculum (length=1 until frames 9)",
        "rmc, env_kwargs (none), curriculum (none)",
    ]
    assert plot.labels(["rmc", "rmc"], configs[:2]) == ["rmc", "rmc"]
    on_a_gpu = [Config().updated({"device": device}, "test") for device in ("auto", "cpu")]
    assert plot.labels(["rmc", "rmc"], on_a_gpu) == ["rmc", "rmc"]


def test_smoothing_is_a_centred_mean() -> None:
    curve = make_curve(list(range(12)), [0.0, 3.0, 6.0, *[0.0] * 9])
    np.testing.assert_allclose(curves.smoothed(curve, 3).values, [1.5, 3.0, 3.0, 2.0, *[0.0] * 8])
    assert curves.smoothed(curve, 1) is curve


def test_short_curves_are_hardly_smoothed() -> None:
    curve = make_curve([0, 1, 2], [0.0, 1.0, 0.0])
    assert curves.smoothed(curve) is curve
    np.testing.assert_allclose(curves.smoothed(make_curve(list(range(8)), [2.0, *[0.0] * 7])).values[:2], [2.0, 1.0])
