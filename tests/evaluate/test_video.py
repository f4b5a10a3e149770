"""Videos: the picture, the file, and that no incomplete file is left behind."""

import os
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import imageio_ffmpeg
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from PIL import Image

from rmc_agents import pretrained
from rmc_agents.agent import ActorCritic
from rmc_agents.config import AgentConfig, CoreConfig
from rmc_agents.envs import recall
from rmc_agents.envs.making import make_env
from rmc_agents.envs.processes import EnvError
from rmc_agents.envs.recall import RecallEnv
from rmc_agents.evaluate.actions import ActionRow, action_rows
from rmc_agents.evaluate.episodes import PlaySettings, UniformPolicy, env_spec, play
from rmc_agents.evaluate.video import panels, recording
from rmc_agents.evaluate.video.panels import BAR, CHOSEN, FrameInfo, compose, enlarge_view
from rmc_agents.evaluate.video.recording import RecordedVideo, counters_of, record
from rmc_agents.formatting import plain_number
from rmc_agents.runs.saved import load_agent
from rmc_agents.spaces import SpaceSpec
from rmc_agents.stream import Lanes
from rmc_agents.types import AgentOutput, TimeStep

LENGTH = 5
CPU = torch.device("cpu")


class PaintedEnv(gym.Env):
    """Episodes of LENGTH steps with reward 1 each; frames of an odd size, in one colour."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space = Box(0, 255, (3, 3, 3), np.uint8)
    action_space = Discrete(3)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.time = 0
        return np.zeros((3, 3, 3), np.uint8), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.time += 1
        return np.zeros((3, 3, 3), np.uint8), 1.0, self.time == LENGTH, False, {}

    def render(self) -> np.ndarray:
        return np.full((21, 31, 3), (200, 40, 40), np.uint8)


if "Painted-v0" not in gym.registry:
    gym.register("Painted-v0", entry_point=PaintedEnv)


class Counter:
    """A policy whose state counts steps, and which records every state and flag it receives."""

    def __init__(self, interrupt_at: int | None = None) -> None:
        self.calls: list[tuple[int, bool]] = []
        self.interrupt_at = interrupt_at

    def initial_state(self, batch_size: int) -> torch.Tensor:
        return torch.zeros(batch_size)

    def step(self, steps: TimeStep, state: torch.Tensor) -> tuple[AgentOutput, torch.Tensor]:
        if len(self.calls) == self.interrupt_at:
            raise KeyboardInterrupt
        self.calls.append((int(state.item()), bool(steps.is_first.item())))
        return AgentOutput(torch.tensor([[0.0, 9.0, 0.0]]), torch.ones(1)), state + 1


def film(
    path: Path,
    policy: Any = None,
    env: Any = "Painted-v0",
    seed: int = 0,
    deterministic: bool = False,
    max_steps: int = 1000,
    episodes: int | None = 1,
    **options: Any,
) -> RecordedVideo:
    policy = policy or Counter()
    settings = PlaySettings.of(policy, seed, deterministic, max_steps)
    return record(policy, env, path, settings, episodes=episodes, **options)


def test_a_video_has_as_many_episodes_as_take_ten_seconds(tmp_path: Path) -> None:
    each = LENGTH + 1 + 4  # and a second at its end
    assert film(tmp_path / "a.gif", episodes=None, fps=4).frames == -(-4 * 10 // each) * each
    shown: list[int] = []
    short = film(tmp_path / "a.gif", episodes=None, fps=1, on_frame=shown.append)
    assert len(short.returns) == -(-10 // (LENGTH + 2))
    assert shown[:3] == [1, 2, 3]
    assert shown[-1] == short.frames


class Twice(PaintedEnv):
    metadata = PaintedEnv.metadata | {"num_episodes": 2}


def test_a_video_has_no_episode_twice(tmp_path: Path) -> None:
    assert len(film(tmp_path / "a.gif", env=Twice, episodes=None).returns) == 2


def test_mp4_plays_in_browsers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("seed:5.mp4")  # for ffmpeg no protocol
    recorded = film(path, episodes=2, fps=8)
    assert recorded == (path, 2 * (LENGTH + 1 + 8), [5.0, 5.0], [False, False])
    frames = imageio_ffmpeg.read_frames(str(path.absolute()))
    meta = next(frames)
    assert meta["codec"] == "h264"
    assert meta["pix_fmt"].startswith("yuv420p")
    assert meta["fps"] == 8
    width, height = meta["size"]
    assert (width % 2, height % 2) == (0, 0)
    pictures = [np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in frames]
    assert len(pictures) == recorded.frames
    np.testing.assert_allclose(pictures[0][200, 200], (200, 40, 40), atol=8)
    content = recorded.path.read_bytes()
    assert 0 < content.index(b"moov") < content.index(b"mdat")


class GrowingEnv(PaintedEnv):
    """Frames of another size in every episode, and an info that is not the number which videos show."""

    size = 0

    def reset(self, **given: Any) -> tuple[np.ndarray, dict]:
        self.size += 1
        return super().reset(**given)[0], {}

    def render(self) -> np.ndarray:
        return np.full((20 * self.size, 30, 3), (200, 40, 40), np.uint8)


@pytest.mark.slow
def test_an_environment_whose_frames_grow(tmp_path: Path) -> None:
    recorded = record(Counter(), GrowingEnv, tmp_path / "a.mp4", PlaySettings(0, CPU), episodes=3, fps=8)
    frames = imageio_ffmpeg.read_frames(str(recorded.path))
    width, height = next(frames)["size"]
    pictures = [np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in frames]
    assert len(pictures) == recorded.frames
    centre = pictures[-1][: height // 2, : width // 3].reshape(-1, 3)
    assert (np.abs(centre.astype(int) - (200, 40, 40)).max(axis=1) < 12).any()


class Levels(SyncVectorEnv):
    """Reports levels by names, not numbers."""

    def __init__(self, num_envs: int, render_mode: str | None = None) -> None:
        super().__init__([lambda: PaintedEnv(render_mode)] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)
        self.render_mode = render_mode

    def step(self, actions: Any) -> Any:
        return *super().step(actions)[:4], {"level": {"name": "easy"}}


class Tenths(PaintedEnv):
    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        observation, _, *rest = super().step(action)
        return observation, 0.1, *rest


def test_returns_are_summed_as_in_evaluations(tmp_path: Path) -> None:
    settings = PlaySettings(0, CPU)
    recorded = record(Counter(), Tenths, tmp_path / "a.mp4", settings, episodes=1).returns
    assert recorded == play(Counter(), Tenths, 1, settings).returns.tolist()


def test_a_level_that_is_no_number_is_not_shown(tmp_path: Path) -> None:
    assert record(Counter(), Levels, tmp_path / "a.mp4", PlaySettings(0, CPU), episodes=1).returns == [5.0]


def test_a_level_that_is_not_reported_is_left_out() -> None:
    lanes = SimpleNamespace(infos={"level": np.array([np.nan, 2.0]), "power": np.array([3.0, np.nan])}, num_lanes=2)
    assert counters_of(lanes) == {"power": 3.0}


@pytest.mark.slow
@pytest.mark.parametrize("fps", [3, 8, 12])
def test_gif_lasts_as_long_as_its_frames(fps: int, tmp_path: Path) -> None:
    recorded = film(tmp_path / "a.gif", episodes=2, fps=fps)
    with Image.open(recorded.path) as gif:
        durations = []
        for i in range(gif.n_frames):
            gif.seek(i)
            durations.append(gif.info["duration"])
    assert recorded.frames == 2 * (LENGTH + 1 + fps)
    assert len(durations) == 2 * (LENGTH + 1)  # the held frames are one
    assert sum(durations) == pytest.approx(1000 * recorded.frames / fps, abs=10)


@pytest.mark.slow
def test_every_episode_starts_afresh(tmp_path: Path) -> None:
    policy = Counter()
    film(tmp_path / "a.gif", policy, episodes=2)
    assert policy.calls == 2 * [(i, i == 0) for i in range(LENGTH)]


def test_long_episodes_are_cut(tmp_path: Path) -> None:
    recorded = film(tmp_path / "a.gif", episodes=2, max_steps=3, fps=4)
    assert recorded[1:] == (2 * (3 + 1 + 4), [3.0, 3.0], [True, True])


@pytest.mark.slow
def test_episode_depends_on_its_own_seed(tmp_path: Path) -> None:
    policy = UniformPolicy(env_spec("minipacman"))
    both = film(tmp_path / "a.mp4", policy, "minipacman", episodes=2, seed=3, max_steps=25)
    second = film(tmp_path / "b.mp4", policy, "minipacman", seed=4, max_steps=25)
    assert both.returns[1:] == second.returns


@pytest.mark.parametrize("name", ["a.mp4", "a.gif"])
def test_interrupted_recording_leaves_the_old_file(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt):
        film(path, Counter(interrupt_at=7), episodes=2)
    assert [file.name for file in tmp_path.iterdir()] == [name]
    assert path.read_text() == "old"


@pytest.mark.parametrize("script", ["cat > /dev/null; echo 'No space left on device' >&2; exit 1", "exec 0<&-; exit 1"])
def test_failing_ffmpeg_is_one_clear_error(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "ffmpeg"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(imageio_ffmpeg, "get_ffmpeg_exe", lambda: str(program))
    with pytest.raises(OSError, match=r"a\.mp4 cannot be written: ffmpeg: (No space left|exit status 1)"):
        film(tmp_path / "a.mp4")
    assert [file.name for file in tmp_path.iterdir()] == ["ffmpeg"]


def test_refuses_before_playing(tmp_path: Path) -> None:
    policy = Counter()
    for path, options, message in (
        (tmp_path / "a.avi", {}, r"\.mp4 or \.gif"),
        (tmp_path / "none" / "a.mp4", {}, "no folder"),
        (tmp_path / "a.mp4", {"fps": 0}, "fps: expected an int from 1 to 50, got 0"),
        (tmp_path / "a.mp4", {"episodes": 0}, "episodes"),
        (tmp_path / "a.mp4", {"max_steps": 2.5}, "max_steps: expected an int"),
        (tmp_path / "a.mp4", {"seed": -1}, "seed: expected an int"),
    ):
        with pytest.raises(ValueError, match=message):
            film(path, policy, **options)
    assert policy.calls == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("value", "shown"), [(0.5, 127), (0.5 * 255, 127), (True, 255)])
def test_frames_of_other_types_than_bytes(value: float, shown: int) -> None:
    class Grey(PaintedEnv):
        def render(self) -> np.ndarray:
            return np.full((4, 5, 3), value)

    with closing(make_env(Grey, render_mode="rgb_array")) as env:
        env.reset()
        assert np.unique(recording.render(env)).tolist() == [shown]


def test_numbers_are_drawn_as_grey_squares() -> None:
    class Silent(gym.Env):
        observation_space = Dict(a=Box(-np.inf, np.inf, (2,)), b=Discrete(2))
        action_space = Discrete(2)

        def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
            return {"a": np.float32([-1e9, 0]), "b": 1}, {}

    with recording.drawn(Silent) as env:
        picture = recording.picture(Lanes(env, 0, CPU))
    assert picture.shape == (recording.SQUARE, 3 * recording.SQUARE, 3)
    assert picture[0, :: recording.SQUARE, 0].tolist() == [0, 128, 191]


def test_an_environment_made_without_a_render_mode_shows_its_observation() -> None:
    with recording.drawn(lambda: gym.make("CartPole-v1")) as env:
        picture = recording.picture(Lanes(env, 0, CPU))
    assert picture.shape == (recording.SQUARE, 4 * recording.SQUARE, 3)


@pytest.mark.parametrize("shape", [(40, 50), (40, 50, 1)])
def test_grey_images_are_shown(shape: tuple[int, ...]) -> None:
    class Seen(gym.Env):
        observation_space = Box(0, 255, shape, np.uint8)
        action_space = Discrete(2)

        def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
            return np.arange(2000, dtype=np.uint8).reshape(shape), {}

    with recording.drawn(Seen) as env:
        picture = recording.picture(Lanes(env, 0, CPU))
    np.testing.assert_array_equal(picture, np.arange(2000, dtype=np.uint8).reshape(40, 50, 1).repeat(3, 2))


@pytest.mark.parametrize("driver", [None, "x11"])
def test_the_display_is_afterwards_the_users(driver: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SDL_VIDEODRIVER")
    if driver is not None:
        monkeypatch.setenv("SDL_VIDEODRIVER", driver)
    with recording.drawn("recall"):
        assert os.environ["SDL_VIDEODRIVER"] == (driver or "dummy")
    assert os.environ.get("SDL_VIDEODRIVER") == driver


def test_a_pretrained_policy_of_recall_is_filmed(tmp_path: Path) -> None:
    saved = load_agent(pretrained.find("recall-rmc"), CPU)
    recorded = film(tmp_path / "a.gif", saved.agent, "recall", deterministic=True)
    assert recorded.returns == [1.0]


def test_recall_draws_what_is_seen() -> None:
    env = RecallEnv(num_cues=4, delay=1, render_mode="rgb_array")
    observation, _ = env.reset(seed=3)
    for _ in range(3):
        image = env.render()
        cells = image[recall.CELL // 2, recall.CELL // 2 :: recall.CELL]
        np.testing.assert_array_equal((cells == recall.LIT).all(axis=-1), observation[:-1] == 1)
        assert (image[-recall.CELL // 2, recall.CELL] == recall.SIGNAL).all() == bool(observation[-1])
        observation, *_ = env.step(recall.WAIT)


class Named(gym.Env):
    """Its names of actions are no texts, and its pictures empty."""

    observation_space, action_space = Box(0, 1, (1,), np.float32), Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "action_names": [10, 20]}  # noqa: RUF012
    render_mode = "rgb_array"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        return np.zeros(1, np.float32), 0.0, True, False, {}

    def render(self) -> np.ndarray:  # type: ignore[override]
        return np.zeros((0, 0, 3), np.uint8)


def test_names_of_actions_are_texts_and_pictures_not_empty(caplog: pytest.LogCaptureFixture) -> None:
    env = make_env(Named, 1)
    spec = SpaceSpec.of(env)
    assert [row.name for row in action_rows(env, spec)] == ["10", "20"]
    env.metadata = env.metadata | {"action_names": "ab"}
    assert [row.name for row in action_rows(env, spec)] == ["0", "1"]
    assert "metadata['action_names'] is ignored: expected a list of 2 names, got 'ab'" in caplog.text
    env.reset(seed=0)
    with pytest.raises(EnvError, match=r"expected an image \[height, width, 3\], got an array \[0, 0, 3\]"):
        recording.render(env)


def picture(action: int | None, probabilities: list[float] | None, **options: Any) -> np.ndarray:
    facts = FrameInfo(
        title="title",
        episode="",
        score=3,
        step=4,
        actions=[ActionRow("stay"), ActionRow("right"), ActionRow("up")],
        shares=None if probabilities is None else np.array(probabilities),
        taken=None if action is None else np.eye(3)[action],
        **{"values": [0.5, 1.0]} | options,
    )
    frame = np.full((360, 400, 3), (200, 40, 40), np.uint8)
    return np.asarray(compose(frame, np.zeros((5, 5, 3), np.uint8), facts))


def where(pixels: np.ndarray, colour: tuple[int, ...]) -> np.ndarray:
    return np.argwhere((pixels == colour).all(axis=-1))


def test_chosen_action_is_marked_in_its_row() -> None:
    rows = [where(picture(action, [0.2, 0.3, 0.5]), CHOSEN)[:, 0].mean() for action in range(3)]
    np.testing.assert_allclose(np.diff(rows), panels.ROW, atol=2)
    at_end = picture(None, None)
    assert len(where(at_end, CHOSEN)) == len(where(at_end, BAR)) == 0


def test_values_are_drawn_only_if_there_are_any() -> None:
    assert len(where(picture(0, [0.2, 0.3, 0.5]), panels.VALUE))
    assert not len(where(picture(0, [0.2, 0.3, 0.5], values=None), panels.VALUE))


def test_bars_are_as_long_as_probabilities() -> None:
    pixels = picture(2, [0.2, 0.6, 0.2])
    rows, widths = np.unique(where(pixels, BAR)[:, 0], return_counts=True)
    first, second = widths[rows < rows.mean()], widths[rows > rows.mean()]
    assert len(set(first)) == len(set(second)) == 1
    assert second[0] / first[0] == pytest.approx(3, abs=0.15)


def test_pictures_keep_one_size_and_show_the_frame() -> None:
    playing, ended = picture(0, [0.2, 0.3, 0.5], counters={"level": 1}), picture(None, None, note="episode over")
    assert playing.shape == ended.shape
    corner = playing[panels.MARGIN + panels.TITLE :, panels.MARGIN :]
    assert (corner[:360, :400] == (200, 40, 40)).all()
    assert len(where(ended, CHOSEN)) > 0


@pytest.mark.parametrize("shape", [(4, 1000), (5, 200), (1000, 4)])
def test_a_frame_of_any_shape_fits(shape: tuple[int, int]) -> None:
    frame = np.zeros((*shape, 3), np.uint8)
    width, height = panels.compose(frame, None, panels.FrameInfo("", "", 0.0, 0, [ActionRow("a")])).size
    assert (width <= 1300, height <= 800) == (True, True)


def test_the_legend_has_the_colours_that_an_agent_sees() -> None:
    env = make_env("minipacman-full")
    seen = {tuple(pixel) for pixel in env.reset(seed=0)[0].reshape(-1, 3).tolist()} - {(0, 0, 0)}
    legend = env.metadata["legend"]
    assert seen == set(legend.values()) - {legend["edible"]}
    pixels = picture(0, [0.2, 0.3, 0.5], legend=legend)
    for colour in legend.values():
        assert len(where(pixels, colour)) > 50
    assert pixels.shape == picture(0, [0.2, 0.3, 0.5]).shape
    long = {str(i): (0, 0, i) for i in range(100)}  # the entries that fit are shown
    assert picture(0, [0.2, 0.3, 0.5], legend=long).shape == pixels.shape


def test_view_is_enlarged_cell_by_cell() -> None:
    view = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    enlarged = np.asarray(enlarge_view(view, height=100, width=300))
    assert enlarged.shape == (100, 140, 3)
    np.testing.assert_array_equal(enlarged[10::20, 10::20], view)


def test_attention_is_a_bright_cell_where_a_slot_looks() -> None:
    looks = np.zeros((2, 3, 4))  # [heads, slots, slots and the input]
    looks[0, :, 1] = looks[1, :, 3] = 1  # all look at the second slot, and at the input
    without, pixels = picture(0, [0.2, 0.3, 0.5]), picture(0, [0.2, 0.3, 0.5], attention=looks)
    assert pixels.shape[0] == without.shape[0]
    beside = pixels[:, without.shape[1] :]
    bright, dark = (where(beside, colour) for colour in (panels.VALUE, panels.TRACK))
    assert len(dark) / len(bright) == pytest.approx((2 * 3 * 4 - 6) / 6, rel=0.01)
    middle = (bright[:, 0].min() + bright[:, 0].max()) / 2
    upper, lower = bright[bright[:, 0] < middle], bright[bright[:, 0] > middle]  # heads are under one another
    left = dark[:, 1].min()
    for head, before in ((upper, 1), (lower, 3)):
        width, height = np.ptp(head[:, 1]) + 1, np.ptp(head[:, 0]) + 1
        assert height > 2.9 * width  # one column of three rows
        assert (head[:, 1].min() - left) // width == before  # cells are left of it, and for the input a gap


def test_attention_to_a_window_is_a_bright_cell_at_the_step() -> None:
    looks = np.zeros((1, 1, 5))  # [heads, 1, four steps back and this one]
    looks[0, 0, 1] = 1
    without, pixels = picture(0, [0.2, 0.3, 0.5]), picture(0, [0.2, 0.3, 0.5], attention=looks)
    beside = pixels[:, without.shape[1] :]
    bright, dark = (where(beside, colour) for colour in (panels.VALUE, panels.TRACK))
    assert len(dark) / len(bright) == pytest.approx(4, rel=0.01)
    width = np.ptp(bright[:, 1]) + 1
    assert (bright[:, 1].min() - dark[:, 1].min()) // width == 1


def test_the_newest_steps_of_a_long_window_are_shown() -> None:
    looks = np.zeros((1, 1, 200))
    looks[0, 0, -1] = 1
    without, pixels = picture(0, [0.2, 0.3, 0.5]), picture(0, [0.2, 0.3, 0.5], attention=looks)
    assert len(where(pixels[:, without.shape[1] :], panels.VALUE))


def test_as_many_heads_are_shown_as_have_room() -> None:
    looks = np.zeros((4, 60, 61))
    looks[..., -1] = 1
    without, pixels = picture(0, [0.2, 0.3, 0.5]), picture(0, [0.2, 0.3, 0.5], attention=looks)
    bright = where(pixels[:, without.shape[1] :], panels.VALUE)
    assert len(bright) % 60 == 0, "no head is cut"


def test_texts_fit() -> None:
    """Beside a narrow frame, with a long title, and in letters that Pillow's own font does not have."""
    frame = np.zeros((210, 160, 3), np.uint8)

    def shown(title: str, note: str = "", score: float = 0.0) -> np.ndarray:
        return np.asarray(compose(frame, None, FrameInfo(title, "episode 1", score, 0, [ActionRow("up")], note=note)))

    border = where(shown("", "recording ends after 1000 steps"), CHOSEN)[:, 1]
    assert border.min() > 0
    assert border.min() + border.max() == 2 * (panels.MARGIN + panels.LEAST_WIDTH // 2)
    assert (shown("m" * 200)[:, -90:] == shown("")[:, -90:]).all(), "the episode's number stays"
    assert (shown("à") != shown("λ")).any(), "no boxes for missing letters"
    pixels = shown("", score=1_234_567_890.25)
    gap = panels.MARGIN + panels.LEAST_WIDTH // 2
    assert (pixels[-60:, gap - 2 : gap + 2] == panels.BACKGROUND).all()


@pytest.mark.parametrize(("core", "shape"), [("rmc", (2, 3, 4)), ("transformer", (2, 1, 65)), ("lstm", None)])
def test_a_video_shows_where_slots_or_steps_look(
    core: str, shape: tuple[int, ...] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = CoreConfig(core=core, mem_slots=3, num_heads=2, head_size=4, num_blocks=2 if core == "rmc" else 1)
    agent = ActorCritic.from_config(env_spec("minipacman"), config, AgentConfig(encoder_sizes=(16,)))
    shown = []
    monkeypatch.setattr(
        recording, "compose", lambda frame, view, facts: shown.append(facts.attention) or compose(frame, view, facts)
    )
    film(tmp_path / "agent.gif", agent, env="minipacman", max_steps=3)
    assert len(shown) == 4
    for attention in shown:
        assert (None if attention is None else attention.shape) == shape
        if attention is not None:
            np.testing.assert_allclose(attention.sum(axis=-1), 1, rtol=1e-5)


def test_many_actions_show_the_chosen_one() -> None:
    rows = [ActionRow(str(i)) for i in range(18)]
    facts = FrameInfo("", "", 0, 0, rows, shares=np.arange(18) / 153, taken=np.eye(18)[2])
    frame = np.zeros((210, 160, 3), np.uint8)
    assert len(where(np.asarray(compose(frame, frame, facts)), CHOSEN)) > 20


def test_a_number_has_a_bar_to_its_mean_and_a_mark_where_it_is_taken() -> None:
    facts = FrameInfo("", "", 0, 0, [ActionRow("torque", (-2, 2))], shares=np.array([0.5]), taken=np.array([0.75]))
    frame = np.zeros((210, 160, 3), np.uint8)
    pixels = np.asarray(compose(frame, None, facts))
    bar, mark = where(pixels, BAR)[:, 1], where(pixels, CHOSEN)[:, 1]
    assert (mark.mean() - bar.min()) / (bar.max() - bar.min()) == pytest.approx(1.5, abs=0.03)


@pytest.mark.parametrize(
    ("number", "text"), [(3.0, "3"), (-1e-7, "0"), (1234.5, "1,234.5"), (-0.25, "-0.25"), (-0.0041, "-0.0041")]
)
def test_plain_number(number: float, text: str) -> None:
    assert plain_number(number) == text
