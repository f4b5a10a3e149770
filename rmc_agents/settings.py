"""The settings of a run, in sections. `Config` in `config.py` holds one of each.

Each setting's docstring is its text in `--help` and on the settings page of the documentation.
"""

from dataclasses import dataclass, field, fields
from functools import cache
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import ConfigDict, Field, JsonValue, TypeAdapter
from pydantic import ValidationError as PydanticValidationError

from rmc_agents.plain_yaml import shortened

LARGEST = 10**15  # tensors of float32 end at 3.4e38, and settings are multiplied there
Float = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
PositiveFloat = Annotated[float, Field(gt=0, le=LARGEST)]
NonNegativeFloat = Annotated[float, Field(ge=0, le=LARGEST)]
UnitFloat = Annotated[float, Field(ge=0, le=1)]
PositiveInt = Annotated[int, Field(gt=0, le=LARGEST)]
FewInt = Annotated[int, Field(gt=0, le=1000)]
"""For what is created one by one: a mistyped number must not take hours."""
NonNegativeInt = Annotated[int, Field(ge=0, le=LARGEST)]
Arguments = dict[str, JsonValue]
"""Arguments of a user's core, encoder or environment, as in a YAML file."""


class Section:
    """Base of the sections: their values are checked whenever one is made, by `dataclasses.replace` too.

    Numbers written as text become numbers.

    Raises:
      ValueError: for a value of another type or out of its range.
    """

    def __post_init__(self) -> None:
        for name, adapter in _adapters(type(self)).items():  # type: ignore[arg-type]  # mypy takes it for unhashable
            try:
                value = adapter.validate_python(getattr(self, name))
            except PydanticValidationError as error:
                problem = error.errors()[0]
                expected, got = problem["msg"][0].lower() + problem["msg"][1:], shortened(problem["input"])
                raise ValueError(f"{name}: {expected}, got {got}") from None
            object.__setattr__(self, name, value)  # the sections are frozen


@cache
def _adapters(section: type) -> dict[str, TypeAdapter[Any]]:
    """What checks a value of each of a section's settings."""
    hints = get_type_hints(section, include_extras=True)
    finite = ConfigDict(allow_inf_nan=False)
    return {each.name: TypeAdapter(hints[each.name], config=finite) for each in fields(section)}


@dataclass(frozen=True)
class EnvConfig(Section):
    """The environment."""

    env: str = "minipacman"
    """A short name (minipacman, minipacman-map, minipacman-hunt, memory-s13, ...) or a registered gymnasium id with a
    discrete action space (Stable-Baselines3's algorithms take others too); 'module:Id' imports the module first."""
    env_kwargs: Arguments = field(default_factory=dict)
    """Arguments of the environment, as in --env-kwargs size=7 mode=hard; values are read as in YAML."""
    num_envs: PositiveInt = 256
    """Environments stepped in parallel (lanes)."""
    env_workers: NonNegativeInt = 0
    """Processes that share the lanes of an environment without a native engine; 0: this process steps them all. Worth
    it where steps are slow, as in MiniGrid's environments, and cores are idle; the results are the same."""
    env_backend: Literal["auto", "native", "minigrid"] = "auto"
    """What steps the lanes in training. native: an engine of this package; minigrid: minigrid's own environments, with
    the same results, slower; auto: native where there is one."""


@dataclass(frozen=True)
class CoreConfig(Section):
    """The recurrent core between the encoder and the heads."""

    core: str = "rmc"
    """rmc: Relational Memory Core; lstm; gru; mingru: a GRU whose gates do not read its state, fast; rnn: Elman's;
    relational-rnn: an LSTM with a relational memory; none: no memory. module:Class: your own core; or a name that an
    imported module registers."""
    core_args: Arguments = field(default_factory=dict)
    """Arguments of your own core, as in --core-args size=64 decay=0.9; values are read as YAML."""
    hidden_size: PositiveInt = 256
    """Units of lstm, gru, rnn and relational-rnn, and of each layer of mingru."""
    num_layers: FewInt = 2
    """mingru: layers, one on top of another; the gates of the second know what the first remembers."""
    mem_slots: PositiveInt = 4
    """Memory slots of rmc and relational-rnn."""
    num_heads: PositiveInt = 2
    """Attention heads of rmc and relational-rnn."""
    head_size: PositiveInt = 32
    """Width of one head; a slot is num_heads * head_size wide."""
    key_size: PositiveInt | None = None
    """rmc: width of queries and keys per head; None: as wide as head_size."""
    num_blocks: FewInt = 1
    """rmc: attention blocks per step."""
    attention_mlp_layers: FewInt = 2
    """rmc: layers of the row-wise MLP after attention."""
    gate_style: Literal["unit", "coupled", "memory", "none"] = "unit"
    """rmc: unit: input and forget gate for each unit; coupled: input gate = 1 - forget gate, which bounds the
    memory; memory: a pair for each slot; none."""
    forget_bias: Float = 1.0
    """rmc: added to the forget gate before its sigmoid. lstm, relational-rnn: where the bias of the LSTM's forget gate
    starts; mingru: likewise, of 1 - input gate."""
    update_bias: Float = 0.0
    """gru: where the bias of the update gate starts; above 0, the memory holds on longer from the beginning."""
    input_bias: Float = 0.0
    """rmc: added to the input gate before its sigmoid."""
    slot_embedding: bool = False
    """rmc: add a learned vector to each slot at every step, which keeps the slots from becoming the same; not in the
    paper, and stable with coupled gates only (docs/decisions/slots.md)."""

    def unused_core_args(self) -> str:
        """That a built-in core takes no `core_args`, for an error message."""
        return (
            f"core_args: expected none for core {self.core}, whose settings have names of their own (such as "
            f"hidden_size), got {', '.join(self.core_args)}"
        )


@dataclass(frozen=True)
class AgentConfig(Section):
    """Encoder and heads."""

    encoder: str = "auto"
    """conv: three strided convolutions, for pictures; mlp: flat; auto: conv from 36x36 on. module:Class: your own
    encoder; or a name that an imported module registers."""
    encoder_args: Arguments = field(default_factory=dict)
    """Arguments of your own encoder, as in --encoder-args width=64; values are read as YAML."""
    encoder_sizes: tuple[PositiveInt, ...] = (256, 128)
    """Widths of the fully connected layers of auto, mlp and conv."""
    core_skip: bool = True
    """The heads read the encoder's output beside the core's."""
    core_gain: PositiveFloat | None = None
    """The heads read the core's output times this; None: 0.5 for rmc, whose outputs are several times larger than the
    others', else 1."""


@dataclass(frozen=True)
class TrainConfig(Section):
    """The learner: rollouts of all lanes, each learned from before the next."""

    algo: Literal["a2c", "ppo", "impala", "supervised", "recurrent-ppo", "sb3-a2c", "sb3-ppo"] = "ppo"
    """ppo: one pass or more over each rollout, in minibatches of lanes, clipped; a2c: one update from all of it;
    impala: actors play in processes of their own, and the learner corrects what they did with older weights;
    supervised: cross-entropy with the right actions, where the environment reports them (infos["target"]).
    Stable-Baselines3's, with Adam: recurrent-ppo, and without memory sb3-a2c and sb3-ppo."""
    sb3_policy: Literal["auto", "rmc", "mlp", "cnn"] = "auto"
    """What Stable-Baselines3's algorithms train. rmc: the core, in recurrent-ppo; mlp and cnn: their own policies, in
    recurrent-ppo with LSTMs; auto: rmc in recurrent-ppo, else cnn for pictures from 36x36 on and mlp for the rest."""
    total_frames: PositiveInt = 6_000_000
    """Frames (environment steps over all lanes) to train for."""
    unroll_length: PositiveInt = 20
    """Steps of a rollout, through which gradients flow back in time."""
    optimizer: Literal["adam", "muon"] = "muon"
    """muon: the weight matrices of encoder and core take orthogonalised steps (Jordan et al., 2024), all the rest
    Adam's."""
    learning_rate: PositiveFloat = 3e-3
    """The optimizer's step size; Muon's is scaled to be like Adam's."""
    learning_rate_schedule: Literal["constant", "linear"] = "linear"
    """linear: falls to zero at total_frames."""
    adam_epsilon: PositiveFloat = 1e-5
    """Adam's denominator offset."""
    discount: UnitFloat = 0.99
    """Reward discount per step."""
    trace_lambda: UnitFloat = 0.95
    """Mixing of n-step returns: 0 is one-step TD, 1 is Monte Carlo up to the rollout's end."""
    reward_scale: PositiveFloat = 0.1
    """The losses see rewards times this; reported returns are not scaled."""
    normalize_advantages: bool = True
    """Scale the advantages of a rollout to mean 0 and standard deviation 1."""
    entropy_cost: NonNegativeFloat = 0.03
    """Weight of the policy's entropy in the loss."""
    value_cost: NonNegativeFloat = 0.5
    """Weight of the value loss."""
    max_grad_norm: PositiveFloat = 5.0
    """Gradients are scaled down to this global norm."""
    ppo_epochs: PositiveInt = 1
    """ppo: passes over each rollout."""
    ppo_minibatches: PositiveInt = 4
    """ppo: updates a pass, each on its share of the lanes; never more than there are lanes."""
    ppo_clip: PositiveFloat = 0.2
    """ppo: the objective is flat once the ratio of new to old probability of an action is further than this from 1."""
    vtrace: bool = True
    """impala: correct returns and advantages by V-trace for the older weights that the actors used; without it they are
    treated as on-policy."""
    clip_rho: PositiveFloat = 1.0
    """impala: V-trace's upper bound of the importance ratios in the value targets (rho-bar)."""
    clip_pg_rho: PositiveFloat = 1.0
    """impala: V-trace's upper bound of the importance ratios in the policy gradient."""

    @property
    def answers_likeliest(self) -> bool:
        """Whether the agent plays its likeliest actions, where others draw them: it answers instead of exploring."""
        return self.algo == "supervised"


@dataclass(frozen=True)
class ActorConfig(Section):
    """impala: who plays, and how far behind the learner. num_envs is then actors * lanes_per_actor."""

    actors: PositiveInt = 2
    """Processes that play."""
    lanes_per_actor: PositiveInt = 32
    """Environments that each of them steps in parallel."""
    batch_rollouts: PositiveInt = 2
    """Rollouts that an update learns from, each of one actor; at most as many as there are actors."""
    rollouts_ahead: PositiveInt = 2
    """Rollouts that an actor may have made, or be making, before the learner has taken the first of them; 1: the
    actor waits until it has."""
    max_policy_lag: NonNegativeInt = 16
    """Rollouts whose weights are older than this many updates are dropped."""
    actor_timeout: PositiveFloat = 120.0
    """Seconds without a rollout after which an actor counts as hung and is replaced."""
    actor_engine: Literal["local", "ray"] = "local"
    """What runs the actors. local: processes of this machine, rollouts through shared memory; ray: a Ray cluster."""
    ray_address: str | None = None
    """ray: 'auto' for the cluster that this machine belongs to, or HOST:PORT of its head; None: a new one, here."""


@dataclass(frozen=True)
class RunConfig(Section):
    """The run: where, how long, what is kept."""

    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seeds weights, action sampling and environments (lane i gets seed + i)."""
    init_from: str | None = None
    """Begin with the weights of this run, checkpoint, exported file or pretrained policy; core and agent settings must
    be its own."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: cuda where there is a GPU that works, else cpu."""
    backend: Literal["auto", "reference", "fused", "triton"] = "auto"
    """What runs the core's scan over time. reference: plain torch; fused: compiled, for CPUs; triton: for CUDA; auto:
    fused where it can do it, else reference."""
    precision: Literal["float32", "bf16"] = "float32"
    """Of the operands of the scan's matrix products while training. bf16 is faster with large cores, where the
    processor has instructions for it."""
    threads: FewInt = 1
    """CPU threads of torch. More than one pays only while the other cores are idle (docs/decisions/threads.md), and
    runs are repeatable to the bit at equal thread counts only."""
    learners: FewInt | Literal["auto"] = 1
    """Processes that share a run's lanes, each on a core (or a GPU) of its own, and take every step together. auto: one
    for each physical core, where there are lanes enough. Runs are repeatable to the bit at equal numbers only."""
    save_every: PositiveFloat = 60.0
    """Seconds between checkpoints; one is always saved at the end."""
    keep_checkpoints: Annotated[int, Field(ge=2)] = 3
    """Checkpoints kept; the oldest are deleted."""
    log_every: PositiveFloat = 5.0
    """Seconds between TensorBoard points and, without a terminal, between lines of progress."""
    diagnostics: bool = False
    """Also log what the learning does to each part of the agent, and what the core does inside (diagnostics/...)."""
    eval_episodes: NonNegativeInt = 100
    """Episodes of the evaluation at the end, and of those during the training; 0: none."""
    eval_every: NonNegativeInt = 0
    """Also evaluate during the training, after every so many frames, and keep the best agent as best.safetensors;
    0: at the end only."""
    eval_max_steps: PositiveInt = 10_000
    """An episode of an evaluation is cut after so many steps, and counts with the return it has reached."""
    video: bool = True
    """Record a video at the end."""
