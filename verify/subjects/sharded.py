"""This project's sharded implementation, for the judge."""

from __future__ import annotations

from packed_impl.sharded_model import full_gradients, shard, whole

__all__ = ["full_gradients", "shard", "whole"]
