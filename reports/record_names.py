"""Names that a record may hold: verdicts, dtypes, objectives, frozen policies, kinds of cases, quantities."""

from __future__ import annotations

from typing import Literal, get_args

VerdictName = Literal["PASS", "FAIL", "ERROR", "INCONCLUSIVE", "NOT_APPLICABLE"]
DtypeName = Literal["float64", "float32", "bfloat16", "autocast-bfloat16"]
"""Of weights and passes alike, or float32 weights under autocast."""
PreferenceName = Literal[
    "sigmoid", "robust", "hinge", "ipo", "sigmoid_norm", "rpo",
    "groupdpo-margin", "groupdpo-mpo", "groupdpo-softmax", "groupdpo-all-pairs",
]  # fmt: skip
ComparingName = PreferenceName | Literal["reward-model"]
ObjectiveName = ComparingName | Literal["sft-token-mean", "sft-example-mean"]
ReferenceName = Literal["adapters-off", "frozen-adapter", "separate-model", "cached"]
CaseKind = Literal["pairs", "groups", "examples"]
QuantityName = Literal[
    "per_token_logps", "ref_per_token_logps", "router_probs", "router_shares", "rewards", "margins", "loss", "gradients"
]

VERDICTS: tuple[VerdictName, ...] = get_args(VerdictName)
NOT_A_PASS: tuple[VerdictName, ...] = ("ERROR", "FAIL", "INCONCLUSIVE")
"""Verdicts beside which nothing may be called PASS, worst first."""
