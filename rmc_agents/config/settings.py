"""The settings of a run, in sections. `Config` in `config/__init__.py` holds one of each.

Each setting's docstring is its text in `--help` and on the settings page of the documentation.
"""

import re
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter
from pydantic import ValidationError as PydanticValidationError

from .plain_yaml import shortened
from .stages import MAX_NUMBER, KeywordArguments, Stages, stages_of

Float = Annotated[float, Field(ge=-MAX_NUMBER, le=MAX_NUMBER)]
PositiveFloat = Annotated[float, Field(gt=0, le=MAX_NUMBER)]
NonNegativeFloat = Annotated[float, Field(ge=0, le=MAX_NUMBER)]
UnitFloat = Annotated[float, Field(ge=0, le=1)]
PositiveInt = Annotated[int, Field(gt=0, le=MAX_NUMBER)]
FewInt = Annotated[int, Field(gt=0, le=1000)]
"""For things created one by one, where a mistyped number would take hours."""
Sizes = Annotated[tuple[PositiveInt, ...], Field(max_length=100)]
NonNegativeInt = Annotated[int, Field(ge=0, le=MAX_NUMBER)]


CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
"""What a file could use to control a terminal, in texts."""


class Section:
    """Base of the sections: values are checked whenever a section is created, also by `dataclasses.replace`.

    Numbers given as text are converted.

    Raises:
      ValueError: for a value of the wrong type or out of range.
    """

    def __post_init__(self) -> None:
        for name, adapter in _adapters(type(self)).items():  # type: ignore[arg-type]  # mypy considers it unhashable
            given = getattr(self, name)
            try:
                value = adapter.validate_python(given)
            except PydanticValidationError as error:
                problem, *others = error.errors()
                messages = [problem["msg"], *(each["msg"] for each in others if each["input"] is problem["input"])]
                message = " or ".join(f"{each[0].lower()}{each[1:]}" for each in dict.fromkeys(messages))
                message = message.replace("valid tuple", "valid list")  # as users write one
                got = shortened(problem["input"])
                raise ValueError(f"{name}: {message}, got {got}") from None
            if _has_bool(given) and not _has_bool(value):
                raise ValueError(f"{name}: expected a number, got {given}")
            if isinstance(value, str) and CONTROL.search(value):
                raise ValueError(f"{name}: expected no control characters, got {shortened(value)}")
            object.__setattr__(self, name, value)  # the sections are frozen


def _has_bool(value: Any) -> bool:
    return isinstance(value, bool) or (
        isinstance(value, list | tuple) and any(isinstance(each, bool) for each in value)
    )


@cache
def _adapters(section: type) -> dict[str, TypeAdapter[Any]]:
    """A validator for each setting of a section."""
    hints = get_type_hints(section, include_extras=True)
    finite = ConfigDict(allow_inf_nan=False)
    return {each.name: TypeAdapter(hints[each.name], config=finite) for each in fields(section)}


@dataclass(frozen=True)
class EnvConfig(Section):
    """The environment."""

    env: str = "minipacman"
    """A short name (minipacman, minipacman-map, minipacman-hunt, memory-s13, ...) or a registered gymnasium id;
    'module:Id' or 'module:Class' imports the module first."""
    env_kwargs: KeywordArguments = field(default_factory=dict)
    """Arguments of the environment, as in --env-kwargs size=7 mode=hard; values are read as in YAML."""
    curriculum: Stages = ()
    """Stages before the environment itself, as in --curriculum '{env_kwargs: {most: 2}, accuracy: 0.9}': arguments
    that override env_kwargs, and what ends it: accuracy, success or return (over at least 500 episodes), frames, or
    one of them and frames, whichever comes first."""
    num_envs: PositiveInt = 256
    """Environments stepped in parallel (lanes)."""
    env_workers: NonNegativeInt = 0
    """Processes that share the lanes of an environment without a native engine; 0: this process steps them all. Useful
    if steps are slow, as in MiniGrid's environments, and CPU cores are idle; the results are the same."""
    env_backend: Literal["auto", "native", "minigrid"] = "auto"
    """What steps the lanes in training. native: an engine of this package; minigrid: minigrid's own environments, with
    the same results, but slower; auto: native if there is one that takes the arguments."""

    def __post_init__(self) -> None:
        super().__post_init__()
        stages_of(self.curriculum)


@dataclass(frozen=True)
class CoreConfig(Section):
    """The recurrent core between the encoder and the heads."""

    core: str = "rmc"
    """rmc: Relational Memory Core; lstm; gru; mingru: minimal GRU, whose gates read only the input; rnn: Elman;
    relational-rnn: an LSTM with a relational memory; transformer: attention over the last steps; none: no memory.
    module:Class: a custom core; or a name that an imported module registers."""
    core_args: KeywordArguments = field(default_factory=dict)
    """Arguments of a custom core, as in --core-args size=64 decay=0.9; values are read as in YAML."""
    hidden_size: PositiveInt = 256
    """Units of lstm, gru, rnn and relational-rnn, and of each layer of mingru."""
    num_layers: FewInt = 2
    """mingru, transformer: number of stacked layers; the second layer sees the memory of the first."""
    mem_slots: PositiveInt = 4
    """Memory slots of rmc and relational-rnn."""
    num_heads: PositiveInt = 2
    """Attention heads of rmc, relational-rnn and transformer."""
    head_size: PositiveInt = 32
    """Width of one head; a slot, or the output of a transformer, has width num_heads * head_size."""
    memory_length: Annotated[int, Field(gt=0, le=65_536)] = 64
    """transformer: steps that each layer looks back."""
    key_size: PositiveInt | None = None
    """rmc: width of queries and keys per head; None: head_size."""
    num_blocks: FewInt = 1
    """rmc: attention blocks per step."""
    attention_mlp_layers: FewInt = 2
    """rmc: layers of the row-wise MLP after attention."""
    gate_style: Literal["unit", "coupled", "memory", "none"] = "unit"
    """rmc: unit: an input and a forget gate per unit; coupled, as in most presets: input gate = 1 - forget gate, which
    bounds the memory; memory: a pair of gates per slot; none: no gates."""
    forget_bias: Float = 1.0
    """rmc: added to the forget gate before its sigmoid. lstm, relational-rnn: initial bias of the LSTM's forget gate;
    mingru: minus the initial bias of the input gate."""
    update_bias: Float = 0.0
    """gru: initial bias of the update gate; above 0, the memory lasts longer from the start of training."""
    input_bias: Float = 0.0
    """rmc: added to the input gate before its sigmoid; gate_style coupled and none do not use it."""
    slot_embedding: bool = False
    """rmc: add a learned vector to each slot at every step, which keeps the slots from becoming equal; not in the
    paper, and with the paper's gates some trainings on Mini PacMan collapsed (docs/decisions/slots.md)."""

    def core_args_error(self) -> str:
        """Error message: a built-in core takes no `core_args`."""
        return (
            f"core_args: expected none for core {self.core}, which has settings of its own (such as hidden_size), "
            f"got {', '.join(self.core_args)}; --core-args without a value removes those of a file"
        )


@dataclass(frozen=True)
class AgentConfig(Section):
    """Encoder and heads."""

    encoder: str = "auto"
    """conv: three strided convolutions, for images; grid: two small ones, for images in which a pixel is a cell of a
    gridworld; mlp: flattened; auto: conv for images of 36x36 or more, else mlp.
    module:Class: a custom encoder; or a name that an imported module registers."""
    encoder_args: KeywordArguments = field(default_factory=dict)
    """Arguments of a custom encoder, as in --encoder-args width=64; values are read as in YAML."""
    encoder_sizes: Sizes = (256, 128)
    """Widths of the fully connected layers, each with a ReLU, of the built-in encoders; without a value the core
    reads the observation directly, by its own linear map."""
    core_skip: bool = True
    """Skip connection: the heads read the encoder's output as well as the core's."""
    core_gain: PositiveFloat | None = None
    """The heads multiply the core's output by this; None: 0.5 for rmc, whose outputs are several times larger than
    those of the other cores, else 1."""
    head_sizes: Sizes = ()
    """Widths of fully connected layers, each with a ReLU, between core and heads, which share them."""
    predict_rewards: bool = False
    """A third head learns to predict the reward of each action, an auxiliary task that shapes encoder and core where
    rewards are rare or depend on what was seen long ago (docs/decisions/boxworld.md); for Discrete actions."""


@dataclass(frozen=True)
class TrainConfig(Section):
    """The learner: it collects a rollout from all lanes, learns from it, and repeats."""

    algo: Literal["a2c", "ppo", "impala", "supervised", "recurrent-ppo", "sb3-a2c", "sb3-ppo"] = "ppo"
    """ppo: one or more passes over each rollout, in minibatches of lanes, with the clipped objective; a2c: one update
    per rollout; impala: actors play in separate processes, and V-trace corrects for their older weights;
    supervised: cross-entropy with the correct actions, if the environment reports them (infos["target"]).
    From Stable-Baselines3, with Adam: recurrent-ppo, and without memory sb3-a2c and sb3-ppo."""
    sb3_policy: Literal["auto", "rmc", "mlp", "cnn"] = "auto"
    """The policy that Stable-Baselines3's algorithms train. rmc: the core, in recurrent-ppo; mlp and cnn: their own
    policies, in recurrent-ppo with LSTMs; auto: rmc in recurrent-ppo, else cnn for images of 36x36 or more, else
    mlp."""
    total_frames: PositiveInt = 6_000_000
    """Frames to train for: steps of all lanes, those that only begin the next episode included (not with sb3-*)."""
    unroll_length: PositiveInt = 20
    """Steps of a rollout, the length of backpropagation through time."""
    optimizer: Literal["adam", "muon"] = "muon"
    """muon: orthogonalised updates for the weight matrices of encoder, core and head_sizes (Jordan et al., 2024), Adam
    for the rest: vectors, convolutions, embeddings of tokens and slots, policy and value heads."""
    learning_rate: PositiveFloat = 3e-3
    """The optimizer's step size; Muon's is scaled to match Adam's."""
    learning_rate_schedule: Literal["constant", "linear"] = "linear"
    """linear: decays to zero at total_frames."""
    decay_start: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of total_frames after which the linear schedule begins to decay."""
    weight_decay: NonNegativeFloat = 0.0
    """muon: its matrices shrink by learning_rate * weight_decay in every step (decoupled weight decay)."""
    adam_epsilon: PositiveFloat = 1e-5
    """Adam's epsilon."""
    discount: UnitFloat = 0.99
    """Reward discount per step; supervised does not use it, nor the next six settings."""
    trace_lambda: UnitFloat = 0.95
    """Lambda of the lambda-returns: 0 is one-step TD, 1 is Monte Carlo up to the end of the rollout."""
    reward_scale: PositiveFloat = 0.1
    """Rewards are multiplied by this in the losses; reported returns are not scaled."""
    normalize_advantages: bool = True
    """Normalise the advantages of a rollout to mean 0 and standard deviation 1."""
    entropy_cost: NonNegativeFloat = 0.03
    """Weight of the policy's entropy in the loss."""
    value_cost: NonNegativeFloat = 0.5
    """Weight of the value loss, half the squared error."""
    reward_cost: NonNegativeFloat = 10.0
    """predict_rewards: weight of the squared error; rewards are cut to -1..1."""
    loss: str = "auto"
    """a2c, ppo: auto: the algorithm's loss; module:function: a custom one; or a name that an imported module
    registers."""
    loss_args: KeywordArguments = field(default_factory=dict)
    """Arguments of a custom loss, as in --loss-args weight=0.5; values are read as in YAML."""
    max_grad_norm: PositiveFloat = 5.0
    """Gradients are clipped to this global norm."""
    ppo_epochs: PositiveInt = 1
    """ppo: passes over each rollout."""
    ppo_minibatches: PositiveInt = 4
    """ppo: minibatches per pass, each with its share of the lanes; at most as many as lanes."""
    ppo_clip: PositiveFloat = 0.2
    """ppo: clip range of the ratio of new to old action probability, around 1."""
    vtrace: bool = True
    """impala: correct returns and advantages by V-trace for the older weights of the actors; without it rollouts are
    treated as on-policy."""
    clip_rho: PositiveFloat = 1.0
    """impala: V-trace's clipping threshold (rho-bar) for the importance ratios in the value targets."""
    clip_pg_rho: PositiveFloat = 1.0
    """impala: V-trace's clipping threshold for the importance ratios in the policy gradient."""

    @property
    def value_scale(self) -> float | None:
        """The unit of the value estimates, in rewards; None: supervised agents learn none."""
        return None if self.algo == "supervised" else self.reward_scale

    @property
    def is_supervised(self) -> bool:
        """Whether actions are answers: evaluation takes the most likely one instead of sampling."""
        return self.algo == "supervised"


@dataclass(frozen=True)
class ActorConfig(Section):
    """impala: the actors, and how far they may lag behind the learner. num_envs is then actors * lanes_per_actor,
    for each learner."""

    actors: PositiveInt = 2
    """Actor processes of each learner."""
    lanes_per_actor: PositiveInt = 32
    """Environments that each actor steps in parallel."""
    batch_rollouts: PositiveInt | Literal["auto"] = "auto"
    """Rollouts per update, each from one actor; at most as many as actors. auto: a third of the actors, but at
    least 2 (1 if there is a single actor)."""
    rollouts_ahead: PositiveInt = 2
    """Rollouts per actor that may be finished or in progress before the learner takes the first of them; 1: the actor
    waits for the learner after every rollout."""
    max_policy_lag: NonNegativeInt = 16
    """Rollouts made with weights older than this many updates are dropped."""
    actor_timeout: PositiveFloat = 120.0
    """Seconds without a rollout after which an actor counts as hung and is replaced."""
    actor_engine: Literal["local", "ray"] = "local"
    """What runs the actors. local: processes on this machine, with shared memory; ray: a Ray cluster."""
    ray_address: str | None = None
    """ray: 'auto' for the cluster of this machine, or HOST:PORT of its head node; None: start a new one here."""

    @property
    def rollouts_per_update(self) -> int:
        """`batch_rollouts` as a number."""
        if self.batch_rollouts == "auto":
            return max(min(2, self.actors), round(self.actors / 3))
        return self.batch_rollouts


@dataclass(frozen=True)
class RunConfig(Section):
    """The run: seed, device, checkpoints, evaluation."""

    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seed of the weights, action sampling and environments; runs with different seeds hardly ever share episodes."""
    init_from: str | None = None
    """Start with the weights of this run, checkpoint, exported file or pretrained policy; its core and agent settings
    must be the same."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: cuda if a working GPU is available, else cpu."""
    backend: Literal["auto", "reference", "fused", "triton"] = "auto"
    """Implementation of the core's scan over time. reference: plain torch; fused: compiled, for CPUs; triton: for CUDA,
    rmc only; auto: fused or triton where it is supported, else reference."""
    precision: Literal["float32", "bf16"] = "float32"
    """Precision of the operands of the scan's matrix products in training. bf16 is faster with large cores if the
    processor has instructions for it."""
    threads: FewInt = 1
    """CPU threads of torch. More than one helps only if the other CPU cores are idle (docs/decisions/threads.md). Runs
    are bitwise reproducible only at equal thread counts."""
    learners: FewInt | Literal["auto"] = 1
    """Data-parallel processes that share the lanes, each on its own CPU core (or GPU), and average their gradients.
    auto: one per idle physical CPU core, if there are enough lanes. Runs are bitwise equal only at equal numbers."""
    save_every: PositiveFloat = 60.0
    """Seconds between checkpoints; one is always saved at the end."""
    keep_checkpoints: Annotated[int, Field(ge=2)] = 3
    """Number of checkpoints to keep; older ones are deleted."""
    log_every: PositiveFloat = 5.0
    """Seconds between TensorBoard points and, without a terminal, between progress lines."""
    diagnostics: bool = False
    """Also log gradients and updates of each part of the agent, the core's gates and attention, and how much memory
    changes the policy (diagnostics/)."""
    eval_episodes: NonNegativeInt = 100
    """Episodes per evaluation, at the end of the training and during it; 0: no evaluation."""
    eval_every: NonNegativeInt = 0
    """Frames between evaluations during the training, which keep the best agent as best.safetensors; 0: only at the
    end."""
    eval_max_steps: PositiveInt = 10_000
    """Maximum steps of an evaluation episode; a longer one is cut off and counts with the return so far."""
    video: bool = True
    """Record a video at the end."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eval_every and not self.eval_episodes:
            raise ValueError(
                "eval_every: expected eval_episodes of at least 1, got 0 (a vector environment object has 0); set "
                "eval_every to 0 too"
            )
