"""This project's sharded implementation, for the judge."""

from __future__ import annotations

from packed_impl.dummy_calls import adds_nothing
from packed_impl.sharded_evaluation import Evaluated, Evaluation, evaluate
from packed_impl.sharded_model import full_gradients, local_shards, reshard_all, shard, whole
from packed_impl.sharded_stages import HONEST, ShardedStages, Units
from packed_impl.sharded_step import RankWork, StepDone, accumulate

__all__ = [
    "HONEST",
    "Evaluated",
    "Evaluation",
    "RankWork",
    "ShardedStages",
    "StepDone",
    "Units",
    "accumulate",
    "adds_nothing",
    "evaluate",
    "full_gradients",
    "local_shards",
    "reshard_all",
    "shard",
    "whole",
]
