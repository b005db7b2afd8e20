"""A synthetic record with everything in it that a rendering has to cope with."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from reports.record import Record
from reports.record_faults import BlindSpotRecord, DiagnosisRecord, NearFaultRecord, PlantedRecord, StageRecord
from reports.record_names import DtypeName, QuantityName, VerdictName
from reports.record_results import (
    ExactCheckRecord,
    JudgementRecord,
    PlaceRecord,
    ResultRecord,
    SlotsRecord,
    SubjectSummary,
)
from reports.record_setting import (
    CaseRecord,
    DataRecord,
    Environment,
    GroupRecord,
    ModelRecord,
    SubjectRecord,
    TimingRecord,
)

HOSTILE = '<script>alert("x")</script> | `tick` [red]é漢[/red] \x1b[31m\x00'
"""A name that is markup in every format that is rendered, with control characters."""

CASES = (
    ("balanced", "an ordinary pair", [(24, [16], [14])]),
    ("one-token-prompt", "the shared segment is its own predictor row; a split prompt is empty", [(1, [9], [12])]),
    ("one-token-chosen", "a branch whose only token is predicted from the prompt", [(17, [1], [9])]),
    ("equal-responses", "equal lengths: a swap of branches keeps every shape", [(20, [15], [15])]),
    ("long-prompt", "positions beyond 256; most of the row is shared", [(300, [14], [11])]),
    ("length-128", "branches start on a block boundary", [(128, [128], [128])]),
    ("two-groups", "two trees in one row", [(19, [13], [10]), (11, [7], [16])]),
    ("group-3-2", "three positives, two negatives", [(18, [5, 9, 4], [8, 7])]),
)
QUANTITIES: dict[QuantityName, tuple[int, float]] = {
    "per_token_logps": (30, 1.0),
    "ref_per_token_logps": (30, 0.9),
    "rewards": (2, 0.4),
    "margins": (1, 0.5),
    "loss": (1, 0.2),
    "gradients": (28, 6.0),
}
NOISE: dict[DtypeName, float] = {"float64": 3e-15, "float32": 6e-7, "bfloat16": 2e-2}
SUBJECTS = ("packed-eager", "packed-split", f"mine:{HOSTILE}")
FLEX_REASON = "FlexAttention has no backward on a CPU"


def wobble(*key: object) -> float:
    """A fixed number in [0.5, 1.5) that looks random."""
    text = "/".join(map(str, key))
    return 0.5 + (sum(ord(c) * (i + 7) for i, c in enumerate(text)) * 2654435761 % 1000) / 1000


def judgement(
    subject: str,
    case: str,
    dtype: DtypeName,
    quantity: QuantityName,
    kind: str,
    statistic: str,
    **changes: object,
) -> JudgementRecord:
    values, scale = QUANTITIES[quantity]
    noise = NOISE[dtype] * scale * (1 if statistic == "max" else 0.3) * (1 if kind == "oracle" else 0.6)
    witness = noise * wobble(case, quantity)
    content: dict[str, object] = {
        "quantity": quantity,
        "budget_kind": kind,
        "statistic": statistic,
        "unit": "relative" if quantity == "gradients" else "nats",
        "verdict": "PASS",
        "reason": "",
        "num_compared": values,
        "measured": witness * (0.8 + 0.3 * wobble(subject, case, quantity, kind)),
        "budget": witness * 2 + noise * 0.1,
        "witness_error": witness,
        "witness_from": "unpacked witness" if kind == "oracle" else "variation eager",
        "factor": 2.0,
        "floor": noise * 0.1,
        "signed_mean": -noise * 0.01,
        "worst": [
            PlaceRecord(
                where="group 0, chosen, token 3 of 7, predicted from response token 2",
                actual=-3.25,
                expected=-3.25 - noise,
                measured=noise,
                budget=witness * 2,
            )
        ],
    }
    return JudgementRecord.model_validate(content | changes)


def failing(subject: str, case: str, dtype: DtypeName, verdict: VerdictName) -> dict[str, object]:
    """Changes to the log-prob judgement of a result that does not pass."""
    if verdict == "FAIL":
        return {"verdict": "FAIL", "measured": 1.7, "reason": "400 times over budget: positions are off"}
    if verdict == "ERROR":
        place = PlaceRecord(
            where="group 0, rejected, token 1", actual=math.nan, expected=-1.0, measured=math.nan, budget=1
        )
        return {"verdict": "ERROR", "measured": math.nan, "reason": "actual holds NaN", "worst": [place]}
    return {"verdict": "INCONCLUSIVE", "witness_error": math.inf, "budget": math.inf, "reason": "the witness is off"}


def result(subject: str, case: str, dtype: DtypeName, verdict: VerdictName, reason: str = "") -> ResultRecord:
    if verdict == "NOT_APPLICABLE":
        return ResultRecord(
            case=case, subject=subject, dtype=dtype, verdict=verdict, reasons=[reason], judgements=[], slots=None,
            num_compared=0,
        )  # fmt: skip
    judgements = []
    for quantity in QUANTITIES:
        for kind in ("oracle", "differential"):
            for statistic in ("max", "rms"):
                changes: dict[str, object] = {}
                if quantity == "per_token_logps" and verdict != "PASS" and kind == "oracle":
                    changes = failing(subject, case, dtype, verdict)
                elif quantity == "loss" and case == "balanced":
                    changes = {"measured": 0.0}
                elif quantity == "gradients" and subject == "packed-split" and case == "length-128":
                    changes = {"verdict": "NOT_APPLICABLE", "reason": FLEX_REASON, "measured": None, "budget": None,
                               "num_compared": 0, "worst": []}  # fmt: skip
                judgements.append(judgement(subject, case, dtype, quantity, kind, statistic, **changes))
    slots = SlotsRecord(slots=54, rows=1, forward_calls=1, pairwise_slots=78)
    return ResultRecord(
        case=case, subject=subject, dtype=dtype, verdict=verdict, reasons=[reason] if reason else [],
        judgements=judgements, slots=slots, num_compared=sum(j.num_compared for j in judgements),
    )  # fmt: skip


def special(subject: str, case: str, dtype: DtypeName) -> tuple[VerdictName, str]:
    if case == "group-3-2" and subject != "packed-split":
        return "NOT_APPLICABLE", "takes one chosen and one rejected response only"
    if subject == SUBJECTS[2] and dtype == "float32":
        if case == "long-prompt":
            return "FAIL", "log-probs are 400 times over budget"
        if case == "one-token-prompt":
            return "ERROR", f"the subject returned NaN: {HOSTILE}"
        if case == "two-groups":
            return "INCONCLUSIVE", "the witnesses disagree, so nothing is proven"
    return "PASS", ""


def fold(verdicts: Counter[VerdictName]) -> VerdictName:
    order: tuple[VerdictName, ...] = ("ERROR", "FAIL", "INCONCLUSIVE", "PASS", "NOT_APPLICABLE")
    return next(verdict for verdict in order if verdicts[verdict])


def summary(subject: str, dtype: DtypeName, results: list[ResultRecord]) -> SubjectSummary:
    verdicts = Counter(r.verdict for r in results)
    return SubjectSummary(
        subject=subject,
        dtype=dtype,
        verdict=fold(verdicts),
        reasons=[] if fold(verdicts) == "PASS" else ["see the cases"],
        cases_by_verdict=dict(verdicts),
        slots=54 * sum(r.slots is not None for r in results),
        pairwise_slots=78 * sum(r.slots is not None for r in results),
        worst_ratio={"per_token_logps": 0.6},
    )


PLANTED: tuple[tuple[str, str, str, dict[str, float]], ...] = (
    (
        "branches-not-isolated",
        "mask",
        "rejected attends to chosen",
        {"log-probs": 3.2e5, "rewards, margins, loss": 900},
    ),
    ("prompt-cache-detached", "activations", "no graph", {"log-probs": 0.2, "gradients": 43.4}),
    ("falls-back-to-unpacked", "layout", "padded rows", {"log-probs": 0.3, "packed path ran": math.inf}),
    ("neighbour-predicts", "predictors", "the slot before predicts", {"log-probs": 8.1e4}),
)


def planted(dtype: DtypeName, *, all_caught: bool) -> list[PlantedRecord]:
    """Four faults; the last one survives where not all are caught."""
    records = []
    for index, (fault, stage, what, margins) in enumerate(PLANTED):
        killed = all_caught or index < len(PLANTED) - 1
        margins = margins if killed else {"log-probs": 0.4}
        records.append(
            PlantedRecord(
                fault=fault, stage=stage, what=what, dtype=dtype, cases=["balanced"], killed=killed,
                margin=max(margins.values()), margins=margins,
                caught_by=[family for family, value in margins.items() if value > 1],
            )
        )  # fmt: skip
    return records


BLIND_SPOTS = (
    ("faults of label smoothing", "label smoothing is 0", ["label-smoothing-ignored"]),
    ("faults that bite only where positions go beyond 256", "no case has it",
     ["positions-in-bfloat16", "positions-wrap-at-256"]),
)  # fmt: skip


def exact_checks(subjects: tuple[str, ...]) -> list[ExactCheckRecord]:
    """Two checks on three cases of each subject; the third subject fails one of them on two cases."""
    records = []
    for subject in subjects:
        for check in ("branch-isolation", "causality"):
            for case in ("balanced", "long-prompt", "two-groups"):
                verdict: VerdictName = "PASS"
                if subject == subjects[0] and check == "causality" and case == "balanced":
                    verdict = "NOT_APPLICABLE"
                if subject == SUBJECTS[2] and check == "branch-isolation" and case != "balanced":
                    verdict = "FAIL"
                reason = {
                    "PASS": "", "NOT_APPLICABLE": "no later token",
                    "FAIL": f"group 0, rejected, token {4 if case == 'two-groups' else 5} moved by 1.5e-3",
                }[verdict]  # fmt: skip
                judged = verdict != "NOT_APPLICABLE"
                records.append(
                    ExactCheckRecord(
                        check=check, subject=subject, dtype="float32", case=case, verdict=verdict, reason=reason,
                        num_compared=30 * judged, num_differing=7 * (verdict == "FAIL"),
                    )
                )  # fmt: skip
    return records[::-1]


def diagnosis(subject: str) -> DiagnosisRecord:
    return DiagnosisRecord(
        subject=subject, dtype="float32", case="long-prompt", worst="group 0, rejected, token 1 of 11",
        patterns=["all tokens of the rejected response but its first"],
        stages=[StageRecord(stage="mask", distance=0.12, because="first branch exact, later ones off"),
                StageRecord(stage="positions", distance=0.41, because="drifts")],
        nearest=[NearFaultRecord(fault="branches-not-isolated", stage="mask", what="rejected attends to chosen",
                                 distance=0.02)],
        first_layer="layer 0, self attention", odd_one_out=f"{subject}: unpacked, dense and split agree",
        reproduction="results/reproduction", notes=["gradients were not looked at"],
    )  # fmt: skip


def build_record(
    subjects: tuple[str, ...] = SUBJECTS, dtypes: tuple[DtypeName, ...] = ("float64", "float32", "bfloat16")
) -> Record:
    """All five verdicts with three subjects; a run that passes with the first two."""
    results: list[ResultRecord] = []
    summaries: list[SubjectSummary] = []
    for subject in subjects:
        for dtype in dtypes:
            own = [result(subject, case, dtype, *special(subject, case, dtype)) for case, _, _ in CASES]
            results += own
            summaries.append(summary(subject, dtype, own))
    counts = Counter(r.verdict for r in results)
    verdict = fold(counts)
    return Record(
        tool_version="0.1.0",
        command=["packparity", "check", "--subject", "my_trainer.py:Mine<b>", "--out", "results"],
        created_utc="2025-11-29T21:00:00Z",
        verdict=verdict,
        reasons=[] if verdict == "PASS" else [f"mine:{HOSTILE} in float32 is {verdict}"],
        counts=dict(counts),
        num_compared=sum(r.num_compared for r in results),
        environment=Environment(
            python="3.11.7", platform="Linux-6.1-x86_64", processor="x86_64", num_threads=2, device="cpu",
            packages={"transformers": "5.24.0", "torch": "2.13.0", "peft": "0.21.0"},
        ),
        model=ModelRecord(
            name="qwen3-0.6b", weights="seeded normal, std 0.2, rounded to bfloat16", weights_sha256="ab" * 32,
            num_parameters=596_049_920, num_layers=8, num_layers_published=28,
            config={"hidden_size": 1024, "head_dim": 128, "rope_theta": 1e6, "tie_word_embeddings": True},
            lora={"r": 8, "alpha": 16.0, "targets": ["q_proj", "v_proj"], "dropout": None},
        ),
        objective={"name": "sigmoid", "beta": 0.1, "label_smoothing": 0.0},
        seeds={"weights": 1, "lora": 2, "cases": 3},
        policy={
            "rationale": "packing may be as inaccurate as not packing, and no more",
            "oracle": {
                "factor": 2.0,
                "rationale": "honest runs stayed below 1.14; the weakest fault showed 5.2",
                "floors": {"float32": 1.2e-7, "float64": 2.2e-16, "rationale": "finfo.eps times the reduction length"},
            },
            "differential": {"factor": 3.0, "rationale": "the largest of the harmless variations"},
        },
        variations=["eager attention", "50 masked tokens in front", "a padded batch"],
        subjects=[
            SubjectRecord(name=name, layout="packed", takes=["pairs", "groups"], owns_loss=name == SUBJECTS[2])
            for name in subjects
        ],
        cases=[
            CaseRecord(
                name=name, why=why,
                groups=[GroupRecord(source=f"{name}:{i}", prompt=p, positives=c, negatives=r)
                        for i, (p, c, r) in enumerate(groups)],
            )
            for name, why, groups in CASES
        ],
        summaries=summaries,
        results=results,
        exact_checks=exact_checks(subjects),
        planted=planted("float32", all_caught=SUBJECTS[2] not in subjects),
        blind_spots=[BlindSpotRecord(what=what, why=why, faults=faults) for what, why, faults in BLIND_SPOTS],
        diagnoses=[diagnosis(SUBJECTS[2])] if SUBJECTS[2] in subjects else [],
        data=DataRecord(
            file="ultrafeedback.jsonl", sha256="cd" * 32, shape="prompt/chosen/rejected", rows_read=1000,
            usable_rows=988, violations_by_reason={"tokenizer merges across the seam": 12},
            violations=["row 17: the prompts differ at token 41 | <b>"], tokenizer="qwen", tokenizer_sha256=None,
            num_pairs=8, notes=["truncated to 512 tokens"],
        ),
        timing=TimingRecord(total_s=41.26, import_s=6.2, model_passes_s=30.125, peak_host_bytes=3 * 2**30),
        notes=["8 of 28 layers were run: the depth was cut", "FlexAttention ran uncompiled"],
    )  # fmt: skip


@pytest.fixture(scope="session")
def record() -> Record:
    """All five verdicts."""
    return build_record()


@pytest.fixture(scope="session")
def passing_record() -> Record:
    """The same run without the subject that breaks."""
    return build_record(SUBJECTS[:2])


@pytest.fixture(scope="session")
def small_record() -> Record:
    """All five verdicts, in one subject and one dtype: quick to render."""
    return build_record(SUBJECTS[2:], ("float32",))
