"""Settings: checked wherever a section is made, and read from YAML that holds plain values only."""

import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rmc_agents.config import AgentConfig, Config, CoreConfig, EnvConfig, RunConfig, TrainConfig
from rmc_agents.config.plain_yaml import parse_yaml, read_yaml

SENSELESS: dict[str, tuple[Callable[[], object], str]] = {
    "made": (lambda: CoreConfig(mem_slots=-3), "mem_slots: input should be greater than 0, got -3"),
    "replaced": (lambda: replace(CoreConfig(), key_size=0), "key_size: input should be greater than 0, got 0"),
    "within a tuple": (
        lambda: AgentConfig(encoder_sizes=(8, 0)),
        "encoder_sizes: input should be greater than 0, got 0",
    ),
    "another type": (lambda: RunConfig(video="perhaps"), "video: input should be a valid boolean"),  # type: ignore[arg-type]
    "infinite in a stage": (
        lambda: EnvConfig(curriculum=({"env_kwargs": {"delay": math.inf}, "frames": 9},)),
        "curriculum: stage 1: env_kwargs: expected arguments of the environment",
    ),
    "no list": (lambda: EnvConfig(curriculum=3), "curriculum: input should be a valid list, got 3"),  # type: ignore[arg-type]
    "no such choice": (lambda: CoreConfig(gate_style="unitt"), "gate_style: input should be 'unit'"),  # type: ignore[arg-type]
    "no number": (
        lambda: CoreConfig(forget_bias=float("nan")),
        "forget_bias: input should be a finite number, got nan",
    ),
    "beyond float32": (lambda: TrainConfig(learning_rate=1e38), "learning_rate: input should be less than or equal to"),
    "beyond float64": (
        lambda: TrainConfig(total_frames=10**400),
        "total_frames: input should be less than or equal to",
    ),
    "a bool for a number": (lambda: TrainConfig(learning_rate=True), "learning_rate: expected a number, got True"),
    "a bool in sizes": (
        lambda: AgentConfig(encoder_sizes=(8, True)),
        "encoder_sizes: expected a number, got (8, True)",
    ),
    "updated": (
        lambda: Config().updated({"num_envs": 0}, "x.yaml"),
        "x.yaml: num_envs: input should be greater than 0",
    ),
    "control characters": (lambda: EnvConfig(env="a\x1b[2J"), "env: expected no control characters, got 'a\\x1b[2J'"),
    "endless": (lambda: Config().updated({"env": ["a" * 10**6] * 9}, "x.yaml"), "env: input should be a valid string"),
}


@pytest.mark.parametrize("case", SENSELESS)
def test_a_senseless_value_is_refused_in_one_short_line(case: str) -> None:
    make, expected = SENSELESS[case]
    with pytest.raises(ValueError) as raised:  # noqa: PT011  # the text is looked at below
        make()
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 600


def test_the_cluster_of_a_file_is_not_taken_over() -> None:
    file = Config().updated({"algo": "impala", "actor_engine": "ray", "ray_address": "10.0.0.1:6379"}, "file")
    typed = file.changed(lambda base: base.updated({"ray_address": "10.0.0.1:6379"}, "flags"), "file")
    assert typed == file
    assert (
        file.changed(lambda base: base.updated({"actor_engine": "local"}, "flags"), "file").actors.ray_address is None
    )
    for address in ("10.0.0.1:6379", "auto"):
        file = file.updated({"ray_address": address}, "file")
        with pytest.raises(ValueError, match=rf"run names the Ray cluster {address}, .* add --ray-address {address}"):
            file.changed(lambda base: base, "run")


def test_a_setting_in_place_of_a_section_is_refused() -> None:
    with pytest.raises(ValueError, match="core: expected CoreConfig, got 'lstm'; settings by name"):
        Config(core="lstm")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "preset"),
    [
        ({"env": "memory-s7", "total_frames": 100}, "memory-rmc"),
        ({"env": "recall", "core": "gru"}, "recall"),
        ({"env": "text-words:book.txt", "core": "lstm", "algo": "supervised"}, "text-lstm"),
        ({"env": "popgym:popgym-CountRecallEasy-v0", "core": "none", "num_envs": 8}, "popgym-none"),
        ({"env": "memory-s7", "reward_scale": 1.0}, None),
        ({"env": "minipacman-map"}, None),
        ({"env": "CartPole-v1"}, None),
        ({"env": "memory_gym:MortarMayhem-v0"}, None),
    ],
)
def test_a_preset_is_suggested_where_mini_pacmans_settings_are_unchanged(
    settings: dict[str, object], preset: str | None
) -> None:
    assert Config().updated(settings, "test").suggested_preset() == preset


def test_numbers_written_as_text_become_numbers() -> None:
    config = Config().updated({"learning_rate": "1e-4", "encoder_sizes": [16, "8"]}, "test")
    assert config.train.learning_rate == 1e-4
    assert config.agent.encoder_sizes == (16, 8)


BAD_YAML = {
    "deep": ("a: " + "[" * 1000 + "]" * 1000, "expected at most 20 levels, got more"),
    "a key twice": ("core: rmc\nseed: 1\ncore: lstm", "expected each key once, got 'core' again in line 3"),
    "no such day": ("a: 2024-13-45", "month must be in 1..12"),
    "a tag that does not fit": ('a: !!int ""', "index out of range"),
    "another": ("a: !!bool x", "'x'"),
    "code": ("a: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
    "a list as a key": ("? [a]\n: 1", "unhashable key"),
    "billions by aliases": (
        "a: &a0 [1]\n" + "".join(f"b{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10)),
        "expected at most 100,000 values with aliases expanded, got more",
    ),
    "a number with too many parts": (f"a: {'1:' * 200}1.0", "too large"),
    "itself by an alias": ("a: &a {b: *a}", "expected at most 100,000 values with aliases expanded, got more"),
}


@pytest.mark.parametrize("case", BAD_YAML)
def test_bad_yaml_is_one_line_that_names_the_file(case: str, tmp_path: Path) -> None:
    text, expected = BAD_YAML[case]
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"x\.yaml is not valid YAML: ") as raised:
        read_yaml(str(path))
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 400


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.yaml")
    with pytest.raises(ValueError, match=r"cannot read the config .*x\.yaml: not a regular file"):
        read_yaml(tmp_path / "x.yaml")


def test_keys_may_replace_those_that_are_merged_in() -> None:
    assert parse_yaml("a: &x {b: 1, c: 2}\nd: {<<: *x, b: 3}", "test")["d"] == {"b": 3, "c": 2}


def test_the_settings_are_light_to_import() -> None:
    heavy = "import sys, rmc_agents.config; sys.exit(bool({'torch', 'numpy', 'gymnasium'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", heavy], check=False).returncode == 0


def test_numbers_with_exponents_are_numbers_and_texts_stay_texts(tmp_path: Path) -> None:
    assert parse_yaml("[1e-3, -2E+5, .5e1, 1e, e3, no1e3]", "test") == [1e-3, -2e5, 5.0, "1e", "e3", "no1e3"]
    config = Config().updated({"core": "own", "core_args": {"rate": 1e-3, "name": "1e-3"}}, "test")
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    assert Config().updated_from_yaml(tmp_path / "config.yaml") == config


def test_arguments_of_own_parts_may_be_numbers_of_numpy_and_tuples() -> None:
    given = {"sizes": (np.int64(8), np.float32(0.5)), "more": {"flag": np.bool_(True)}}
    settings = Config().updated({"core": "own", "core_args": given, "env_kwargs": given}, "test")
    expected = {"sizes": [8, 0.5], "more": {"flag": True}}
    assert settings.core.core_args == settings.env.env_kwargs == expected
    curriculum = [{"env_kwargs": given, "success": np.float32(0.5)}]
    assert Config().updated({"curriculum": curriculum}, "test").env.curriculum == (
        {"env_kwargs": expected, "success": 0.5},
    )


def test_arguments_that_contain_themselves_are_refused() -> None:
    arguments: dict[str, object] = {}
    arguments["self"] = arguments
    with pytest.raises(ValueError, match=r"env_kwargs: .*cyclic reference"):
        Config().updated({"env_kwargs": arguments}, "test")


def test_a_file_builds_on_another_and_on_a_preset(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "first.yaml").write_text("base: memory-lstm\nseed: 3\nhidden_size: 7\n")
    (tmp_path / "second.yaml").write_text("base: parts/first.yaml\nhidden_size: 9\n")
    preset, found = Config().updated_from_yaml("memory-lstm"), Config().updated_from_yaml(tmp_path / "second.yaml")
    assert found == preset.updated({"seed": 3, "hidden_size": 9})
    assert preset.env.env == "memory-s13-random"


def test_a_folder_does_not_hide_the_preset_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("memory-lstm").mkdir()  # a run's folder, for example
    assert Config().updated_from_yaml("memory-lstm").core.core == "lstm"
    with pytest.raises(ValueError, match=r"parts: there is no such file or preset"):
        Config().updated_from_yaml("parts")
    Path("parts").mkdir()
    Path("parts/config.yaml").touch()
    with pytest.raises(ValueError, match=r"did you mean parts/config.yaml\?"):
        Config().updated_from_yaml("parts")


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ("[memory-lstm]", r"own.yaml: base: expected a file or a preset, got \['memory-lstm'\]"),
        ("memory-lstn", "there is no such file or preset; did you mean 'memory-lstm'"),
        ("own.yaml", "own.yaml: base: expected a file or a preset that is not based on this one, got 'own.yaml'"),
        ("other.yaml", "own.yaml: base: expected a file or a preset that is not based on this one, got 'other.yaml'"),
        ("bad.yaml", "bad.yaml: there is no setting 'sed'; did you mean 'seed'"),
    ],
)
def test_a_base_that_cannot_be_is_one_line(base: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("base: own.yaml\n")
    (tmp_path / "bad.yaml").write_text("sed: 3\n")
    (tmp_path / "own.yaml").write_text(f"base: {base}\n")
    with pytest.raises(ValueError, match=expected):
        Config().updated_from_yaml(tmp_path / "own.yaml")
