"""Token ids: equal to those of the whole conversation rendered by hand and encoded without transformers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from verify.data.pairs import PreferencePair, PromptAndResponses, TextPair, Turn, Turns, as_group
from verify.data.rows import DataError, Place, iter_rows
from verify.data.shapes import SHAPES, shape_of
from verify.data.tokenise import encode_group, identify_tokenizer, load_tokenizer
from verify.data.violations import Reason, UnusableRow
from verify.groups import PreferenceGroup

PLACE = Place("rows.jsonl", 2)
# No special token between the prompt and the response, so that a token may span the two.
BARE_TEMPLATE = (
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
REFUSING_TEMPLATE = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system turn here') }}{% endif %}x"
FORGETFUL_TEMPLATE = "{{ messages[-1]['content'] }}{% if add_generation_prompt %}>{% endif %}"
TRIMMING_TEMPLATE = BARE_TEMPLATE.replace("m['content']", "m['content'] | trim")
BOS_TEMPLATE = "<s>" + BARE_TEMPLATE


def a_pair(prompt: str = "2+2?", chosen: str = "4", rejected: str = "5") -> PreferencePair:
    return PreferencePair((Turn("user", prompt),), (Turn("assistant", chosen),), (Turn("assistant", rejected),), PLACE)


def encode(tokenizer_dir: Path, pair: PromptAndResponses) -> PreferenceGroup:
    return encode_group(load_tokenizer(tokenizer_dir), pair)


def ids_of(tokenizer_dir: Path, text: str, *, add_special_tokens: bool = False) -> tuple[int, ...]:
    """Ids from the tokenizers library itself, which knows nothing of chat templates."""
    tokenizer = Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))
    tokenizer.no_truncation()
    return tuple(tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)


def chatml(turns: Turns) -> str:
    return "".join(f"<|im_start|>{turn.role}\n{turn.content}<|im_end|>\n" for turn in turns)


@pytest.mark.parametrize("name", [shape.name for shape in SHAPES if "text" not in shape.name])
def test_prompt_and_completion_are_the_whole_conversation(samples_dir: Path, tokenizer_dir: Path, name: str) -> None:
    for row in iter_rows(samples_dir / f"{name}.jsonl"):
        read = as_group(shape_of(row).read(row))
        group = encode(tokenizer_dir, read)
        assert (len(group.positives), len(group.negatives)) == (len(read.chosen), len(read.rejected))
        assert group.prompt_ids == ids_of(tokenizer_dir, chatml(read.prompt) + "<|im_start|>assistant\n")
        for ids, turns in zip(group.completions, read.chosen + read.rejected, strict=True):
            assert group.prompt_ids + ids == ids_of(tokenizer_dir, chatml(read.prompt + turns))
        assert group.source == f"{name}.jsonl:{row.place.line}"


def test_plain_text_goes_without_a_template_and_ends_once(tokenizer_dir: Path) -> None:
    group = encode(tokenizer_dir, TextPair("The sky", " is blue", " is green<|im_end|>", PLACE))
    (end,) = ids_of(tokenizer_dir, "<|im_end|>")
    assert group.prompt_ids == ids_of(tokenizer_dir, "The sky")
    assert group.positives == ((*ids_of(tokenizer_dir, " is blue"), end),)
    assert group.negatives == ((*ids_of(tokenizer_dir, " is green"), end),)


def test_a_template_that_writes_the_beginning_is_not_given_another(make_tokenizer: Callable[..., Path]) -> None:
    folder = make_tokenizer(template=BOS_TEMPLATE, adds_bos=True)
    (bos,) = ids_of(folder, "<s>")
    group = encode(folder, a_pair())
    assert [*group.prompt_ids].count(bos) == 1
    assert group.prompt_ids[0] == bos
    # The tokenizer would add one if it were asked to: the check above can fail.
    assert ids_of(folder, "<s>[user]", add_special_tokens=True)[:2] == (bos, bos)


def test_plain_text_begins_with_the_token_that_the_tokenizer_adds(make_tokenizer: Callable[..., Path]) -> None:
    folder = make_tokenizer(adds_bos=True)
    (bos,) = ids_of(folder, "<s>")
    group = encode(folder, TextPair("The sky", " is blue", " is green", PLACE))
    assert group.prompt_ids == (bos, *ids_of(folder, "The sky"))
    assert bos not in group.positives[0] + group.negatives[0]


def test_plain_text_that_already_begins_so_is_named(make_tokenizer: Callable[..., Path]) -> None:
    folder = make_tokenizer(adds_bos=True)
    with pytest.raises(UnusableRow, match="twice") as caught:
        encode(folder, TextPair("<s>The sky", " is blue", " is green", PLACE))
    assert caught.value.violation.reason is Reason.DOUBLED_BOS


@pytest.mark.parametrize(("chosen", "rejected", "side"), [("yes", "no", "chosen"), ("no", "yes", "rejected")])
def test_a_token_over_the_seam_is_named_on_either_side(
    make_tokenizer: Callable[..., Path], chosen: str, rejected: str, side: str
) -> None:
    folder = make_tokenizer(template=BARE_TEMPLATE, merges=[("]", "y")])
    # "[user]2+2?[assistant]" is 21 bytes; the merge takes the last one.
    with pytest.raises(UnusableRow, match=rf"with {side} the prompt tokens change from token 21 of 21 on") as caught:
        encode(folder, a_pair(chosen=chosen, rejected=rejected))
    assert caught.value.violation.reason is Reason.SEAM_MERGE
    assert caught.value.violation.detail.endswith(
        "(let the chat template end the generation prompt with a special token or a line break)"
    )
    # The remedy works.
    template = BARE_TEMPLATE.replace("]{{", "]\n{{").replace("[assistant]", "[assistant]\n")
    mended = make_tokenizer(template=template, merges=[("]", "y")])
    assert encode(mended, a_pair(chosen=chosen, rejected=rejected)).prompt_ids
    assert encode(folder, a_pair(chosen="no", rejected="nay")).prompt_ids  # only the merge is at fault


def test_a_token_over_the_seam_of_plain_text_is_named(make_tokenizer: Callable[..., Path]) -> None:
    folder = make_tokenizer(merges=[("k", "s")])
    with pytest.raises(
        UnusableRow, match=r"seam_merge: .*\(end the prompt with a separator, such as a line break, or "
    ):
        encode(folder, TextPair("look", "s good", " bad", PLACE))
    assert encode(folder, TextPair("look\n", "s good", " bad", PLACE)).prompt_ids == ids_of(folder, "look\n")


@pytest.mark.parametrize(
    ("template", "pair", "reason", "detail"),
    [
        (
            REFUSING_TEMPLATE,
            PreferencePair((Turn("system", "s"), Turn("user", "u")), a_pair().chosen, a_pair().rejected, PLACE),
            Reason.TEMPLATE_REFUSES,
            r"no system turn here \(roles: system, user\)",
        ),
        (FORGETFUL_TEMPLATE, a_pair(), Reason.TEMPLATE_REWRITES_PROMPT, "chosen conversation does not begin"),
        ("", a_pair(), Reason.EMPTY_PROMPT, "the prompt has no token"),
        ("x", a_pair(), Reason.EMPTY_RESPONSE, "chosen has no token"),
        (TRIMMING_TEMPLATE, a_pair(chosen="4", rejected=" 4 "), Reason.IDENTICAL_RESPONSES, "the same 1 tokens"),
    ],
    ids=["refuses", "forgets", "writes nothing", "writes no response", "trims"],
)
def test_what_the_template_spoils_is_named(
    make_tokenizer: Callable[..., Path], template: str, pair: PromptAndResponses, reason: Reason, detail: str
) -> None:
    with pytest.raises(UnusableRow, match=detail) as caught:
        encode(make_tokenizer(template=template), pair)
    assert caught.value.violation.reason is reason


def test_nothing_is_truncated_even_if_the_tokenizer_file_asks_for_it(make_tokenizer: Callable[..., Path]) -> None:
    folder = make_tokenizer(truncates_to=8)
    group = encode(folder, a_pair(chosen="long " * 100))  # far over model_max_length too
    assert group.prompt_ids + group.positives[0] == ids_of(
        folder, chatml((*a_pair().prompt, Turn("assistant", "long " * 100)))
    )


def test_turns_need_a_chat_template_and_plain_text_does_not(make_tokenizer: Callable[..., Path]) -> None:
    folder = make_tokenizer(template=None)
    with pytest.raises(
        DataError, match=r"rows\.jsonl:2: rows of turns need a tokenizer with a \(default\) chat template"
    ):
        encode(folder, a_pair())
    assert encode(folder, TextPair("a", "b", "c", PLACE)).prompt_ids == ids_of(folder, "a")


def test_plain_text_needs_an_end_of_sequence_token(make_tokenizer: Callable[..., Path]) -> None:
    with pytest.raises(DataError, match="end-of-sequence token; this has none: add eos_token to "):
        encode(make_tokenizer(eos=None), TextPair("a", "b", "c", PLACE))


def test_the_default_of_several_named_templates_is_used(make_tokenizer: Callable[..., Path]) -> None:
    named = [{"name": "default", "template": BARE_TEMPLATE}, {"name": "tool_use", "template": "x"}]
    folder = make_tokenizer(template=named)
    assert encode(folder, a_pair()).prompt_ids == ids_of(folder, "[user]2+2?[assistant]")
    digest = identify_tokenizer(load_tokenizer(folder), folder).chat_template_sha256
    assert digest == hashlib.sha256(BARE_TEMPLATE.encode()).hexdigest()
    with pytest.raises(DataError, match="chat template"):
        encode(make_tokenizer(template=named[1:]), a_pair())


def test_the_identity_follows_what_decides_the_ids(make_tokenizer: Callable[..., Path]) -> None:
    def identity(folder: Path) -> tuple[str | None, str | None]:
        found = identify_tokenizer(load_tokenizer(folder), folder)
        assert found.name == folder.name
        return found.tokenizer_sha256, found.chat_template_sha256

    plain, other_template, other_merges = (
        identity(make_tokenizer(**settings)) for settings in ({}, {"template": BARE_TEMPLATE}, {"merges": [("a", "b")]})
    )
    assert plain[0] == other_template[0] != other_merges[0]
    assert plain[1] == other_merges[1] != other_template[1]


def test_a_folder_without_a_usable_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "tokenizer.json").write_text("{}")
    (tmp_path / "broken" / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"})
    )
    for name, message in [
        ("absent", r"tokenizer folder .*absent does not exist"),
        ("empty", r"empty holds no tokenizer: expected tokenizer\.json and tokenizer_config\.json"),
        ("broken", r"the tokenizer in .*broken cannot be loaded: "),
    ]:
        with pytest.raises(DataError, match=message):
            load_tokenizer(tmp_path / name)
