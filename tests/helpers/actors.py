"""Actors of the environment that counts."""

from rmc_agents.config import Config
from rmc_agents.train.impala.actors import Actor, ParcelReader

LENGTH, LANES = 8, 3
SETTINGS = {
    "algo": "impala",
    "env": "helpers.counting:Counting-v0",
    "unroll_length": LENGTH,
    "lanes_per_actor": LANES,
    "core": "gru",
    "hidden_size": 4,
    "encoder_sizes": [4],
}


def config(**settings: object) -> Config:
    return Config().updated(SETTINGS | settings, "test").settled()


def reader_of(actor: Actor) -> ParcelReader:
    """A reader of parcels like that of the actor's next rollout."""
    return ParcelReader(actor.act(0.0).rollout, actor.lanes.spec)


def make_actor(**settings: object) -> Actor:
    return Actor(config(**settings), 0)
