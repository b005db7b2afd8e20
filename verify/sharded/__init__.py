"""Sharded parity: the sharded step under torch.distributed, held against one process and against the oracle."""
