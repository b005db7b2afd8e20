"""All layers, where the oracle did not reach them: packed against unpacked on the same sharded model.

The budget is the differential one of the gate: packing may be no farther from the unpacked path than its own harmless
variations (another attention kernel, padding) are from each other, times the factor of the policy.
"""

from __future__ import annotations

from verify.comparison import StructureError, compare_observations, gradient_sizes
from verify.gate_work import noise_sample
from verify.judgement import Judge
from verify.noise import measure_noise
from verify.preflight.finding import Finding, abstains
from verify.preflight.judging import finding_of
from verify.preflight.meeting import Meeting
from verify.preflight.parity_cases import all_pairs
from verify.preflight.parity_setting import ParitySetting
from verify.subject import Subject
from verify.subjects.pairwise import VARIATIONS, WITNESS
from verify.vacuity import vacuous_expectation
from verify.verdict import Verdict, fold

FULL_DEPTH = "full depth"


def judge_full_depth(setting: ParitySetting, meeting: Meeting) -> None:
    """Judge every backend at full depth.

    Args:
        setting: On what.
        meeting: Takes the findings.
    """
    meeting.enter(FULL_DEPTH)
    of, plan = all_pairs(setting.cases), setting.plan
    if of is None:
        meeting.together([abstains(FULL_DEPTH, "no case has a pair, which unpacked steps on all ranks need")])
        return
    if too_long := setting.too_long(full_depth=True):
        meeting.together([abstains(FULL_DEPTH, too_long)])
        return
    model = setting.sharded_model(plan.num_layers)
    forms = {}
    for form in (WITNESS, *(VARIATIONS[name] for name in setting.variations)):
        meeting.enter(FULL_DEPTH)
        forms[form.name] = setting.step(model, form, of)
    witness = forms[WITNESS.name]
    noise = measure_noise([noise_sample(of.case, forms, witness)])
    vacuous = vacuous_expectation(witness, of.case.groups, objective_name=of.case.objective_name)
    judge = Judge("differential", witness, setting.context(of, noise))
    said = (
        f"{len(of.case.groups)} pairs, {plan.depth_in_words(plan.num_layers)}, {plan.options.dtype}, packed against "
        "unpacked on the sharded model"
    )

    def judged(subject: Subject) -> Finding:
        actual = setting.step(model, subject, of)
        try:
            sizes = gradient_sizes(witness.gradients or {})
            comparisons = compare_observations(actual, witness, of.case.groups, sizes=sizes)
        except StructureError as error:
            return finding_of(FULL_DEPTH, subject.name, [(Verdict.FAIL, [str(error)])], [], said)
        judgements = judge(comparisons, gradients_absent_because="")
        verdict = fold(each.verdict for each in judgements)
        if vacuous and verdict is Verdict.PASS:
            verdict = Verdict.INCONCLUSIVE
        reasons = [*vacuous, *(each.reason for each in judgements if each.reason)]
        return finding_of(
            FULL_DEPTH, subject.name, [(verdict, reasons)], [("unpacked", each) for each in judgements], said
        )

    for subject in setting.subjects:
        meeting.enter(FULL_DEPTH)
        meeting.together([judged(subject)])
