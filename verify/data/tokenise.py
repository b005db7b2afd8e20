"""From a row's texts to token ids, through the tokenizer's chat template, without a token moving over the seam."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import jinja2
from transformers import AutoTokenizer

from verify.data.pairs import PromptAndResponses, ResponseGroup, Turns, as_group
from verify.data.rows import DataError, Place
from verify.data.violations import Reason, UnusableRow
from verify.groups import PreferenceGroup, TokenIds

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
_SEAM_REMEDY_OF_TEXT = "end the prompt with a separator, such as a line break, or use the chat format"
_SEAM_REMEDY_OF_TURNS = "let the chat template end the generation prompt with a special token or a line break"


class ChatTokenizer(Protocol):
    """The part of a transformers tokenizer that is used here."""

    chat_template: str | Mapping[str, str] | None
    bos_token_id: int | None
    eos_token: str | None

    def apply_chat_template(
        self, conversation: Sequence[Mapping[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        """Render turns as text."""

    def encode(self, text: str, *, add_special_tokens: bool, verbose: bool) -> list[int]:
        """Token ids of a text."""

    def __call__(
        self, text: list[str], *, add_special_tokens: bool, return_attention_mask: bool, verbose: bool
    ) -> Mapping[str, Any]:
        """Token ids of several texts at a time, as "input_ids"."""


@dataclass(frozen=True, slots=True)
class TokenizerIdentity:
    """What decides the token ids: the name of the folder, and digests (None where there is nothing to digest)."""

    name: str
    tokenizer_sha256: str | None
    chat_template_sha256: str | None


def load_tokenizer(tokenizer_dir: Path) -> ChatTokenizer:
    """Load a tokenizer from a folder: no network, no code from the folder.

    Raises:
        DataError: No such folder, no tokenizer in it, or one that cannot be loaded.
    """
    if not tokenizer_dir.is_dir():
        raise DataError(f"tokenizer folder {tokenizer_dir} does not exist: give a folder with tokenizer.json")
    if not any((tokenizer_dir / name).is_file() for name in _TOKENIZER_FILES):
        raise DataError(f"folder {tokenizer_dir} holds no tokenizer: expected {' and '.join(_TOKENIZER_FILES)} in it")
    try:
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_dir, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the Rust side raises bare Exception on a file that it cannot read
        raise DataError(f"the tokenizer in {tokenizer_dir} cannot be loaded: {error}") from error
    return cast(ChatTokenizer, tokenizer)


def identify_tokenizer(tokenizer: ChatTokenizer, tokenizer_dir: Path) -> TokenizerIdentity:
    """Name and digests of a loaded tokenizer."""
    file = tokenizer_dir / "tokenizer.json"
    template = _default_template(tokenizer)
    return TokenizerIdentity(
        name=tokenizer_dir.resolve().name,
        tokenizer_sha256=hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None,
        chat_template_sha256=hashlib.sha256(template.encode()).hexdigest() if template is not None else None,
    )


def end_token_ids(tokenizer: ChatTokenizer) -> frozenset[int]:
    """Ids of the tokens that can end a response: the special tokens, among which the one that generation stops on."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    special = {token_id for token_id, token in added.items() if getattr(token, "special", False)}
    return frozenset(special | set(getattr(tokenizer, "all_special_ids", ())))


def encode_group(tokenizer: ChatTokenizer, row: PromptAndResponses) -> PreferenceGroup:
    """Token ids of a pair or a group.

    Turns go through the chat template: ``prompt_ids`` are those of the prompt with the generation prompt, a
    completion is what the ids of the whole conversation add to them. The template writes the special tokens, so the
    tokenizer adds none (a beginning-of-sequence token would appear twice).

    Plain text goes without a template, as TRL's ``DPOTrainer`` does it: ``prompt`` and ``prompt + response`` are
    tokenised with the special tokens that the tokenizer adds, and the end-of-sequence token is appended to a
    response that does not end with it.

    Args:
        tokenizer: A tokenizer, with a chat template if the row consists of turns.
        row: Turns or plain text.

    Returns:
        A group with the responses of the row, whose source is its place.

    Raises:
        DataError: The tokenizer lacks the chat template, or for plain text the end-of-sequence token.
        UnusableRow: The responses do not share the prompt's tokens, or have no tokens of their own to tell apart.
    """
    group = as_group(row)
    texts = _texts(tokenizer, group)
    add_special_tokens = isinstance(group.prompt, str)
    # verbose=False: the tokenizer's word on long inputs; lengths are judged elsewhere, nothing is cut.
    ids = [tokenizer.encode(text, add_special_tokens=add_special_tokens, verbose=False) for text in texts]
    return _token_group(tokenizer, group, [tuple(text_ids) for text_ids in ids])


def encode_groups(tokenizer: ChatTokenizer, rows: Sequence[PromptAndResponses]) -> list[PreferenceGroup | UnusableRow]:
    """Token ids of several rows at a time, which is as fast as the tokenizer is.

    Args:
        tokenizer: As in `encode_group`.
        rows: Pairs or groups, all of turns or all of plain text.

    Returns:
        For each row the group that `encode_group` gives, or the error that it raises.

    Raises:
        DataError: As `encode_group`.
    """
    groups = [as_group(row) for row in rows]
    texts_of: list[tuple[str, ...] | UnusableRow] = []
    for group in groups:
        try:
            texts_of.append(_texts(tokenizer, group))
        except UnusableRow as error:
            texts_of.append(error)
    texts = [text for found in texts_of if not isinstance(found, UnusableRow) for text in found]
    add_special_tokens = any(isinstance(group.prompt, str) for group in groups)
    encoded = _encode_all(tokenizer, texts, add_special_tokens=add_special_tokens)
    results: list[PreferenceGroup | UnusableRow] = []
    for group, found in zip(groups, texts_of, strict=True):
        if isinstance(found, UnusableRow):
            results.append(found)
            continue
        ids = [tuple(next(encoded)) for _ in found]
        try:
            results.append(_token_group(tokenizer, group, ids))
        except UnusableRow as error:
            results.append(error)
    return results


def _encode_all(tokenizer: ChatTokenizer, texts: list[str], *, add_special_tokens: bool) -> Iterator[list[int]]:
    if not texts:
        return iter(())
    encoding = tokenizer(texts, add_special_tokens=add_special_tokens, return_attention_mask=False, verbose=False)
    return iter(encoding["input_ids"])


def _texts(tokenizer: ChatTokenizer, group: ResponseGroup) -> tuple[str, ...]:
    """What is tokenised of a group: the prompt, and the prompt with each response.

    Raises:
        DataError: The tokenizer lacks the chat template, or for plain text the end-of-sequence token.
        UnusableRow: The template refuses the turns, or a rendered conversation does not begin with the prompt.
    """
    if isinstance(group.prompt, str):
        prompt, conversations = group.prompt, _plain_conversations(tokenizer, group)
    else:
        prompt = _render(tokenizer, group.prompt, group.place, add_generation_prompt=True)
        conversations = [
            _render(tokenizer, (*group.prompt, *response), group.place, add_generation_prompt=False)
            for _, response in group.named_responses
        ]
    for (name, _), conversation in zip(group.named_responses, conversations, strict=True):
        if not conversation.startswith(prompt):
            detail = f"the rendered {name} conversation does not begin with the rendered prompt"
            raise UnusableRow(Reason.TEMPLATE_REWRITES_PROMPT, group.place, detail)
    return (prompt, *conversations)


def _token_group(tokenizer: ChatTokenizer, group: ResponseGroup, ids: Sequence[TokenIds]) -> PreferenceGroup:
    """The group as token ids, from the ids of its `_texts`."""
    prompt_ids, *conversations = ids
    if not prompt_ids:
        raise UnusableRow(Reason.EMPTY_PROMPT, group.place, "the prompt has no token")
    if tokenizer.bos_token_id is not None and prompt_ids[:2] == (tokenizer.bos_token_id,) * 2:
        detail = "the prompt begins with the beginning-of-sequence token twice"
        raise UnusableRow(Reason.DOUBLED_BOS, group.place, detail)
    names = [name for name, _ in group.named_responses]
    completions = [
        _completion_ids(prompt_ids, conversation_ids, name, group)
        for name, conversation_ids in zip(names, conversations, strict=True)
    ]
    num_chosen = len(group.chosen)
    chosen, rejected = tuple(completions[:num_chosen]), tuple(completions[num_chosen:])
    if (same := group.on_both_sides(chosen, rejected)) is not None:
        detail = f"{' and '.join(same)} are the same {len(completions[names.index(same[0])])} tokens"
        raise UnusableRow(Reason.IDENTICAL_RESPONSES, group.place, detail)
    return PreferenceGroup(prompt_ids, chosen, rejected, source=str(group.place))


def _completion_ids(prompt_ids: TokenIds, conversation_ids: TokenIds, name: str, group: ResponseGroup) -> TokenIds:
    seam = len(prompt_ids)
    if conversation_ids[:seam] != prompt_ids:
        both = zip(prompt_ids, conversation_ids, strict=False)
        parted = next((i for i, (a, b) in enumerate(both) if a != b), min(seam, len(conversation_ids)))
        remedy = _SEAM_REMEDY_OF_TEXT if isinstance(group.prompt, str) else _SEAM_REMEDY_OF_TURNS
        detail = f"with {name} the prompt tokens change from token {parted + 1} of {seam} on ({remedy})"
        raise UnusableRow(Reason.SEAM_MERGE, group.place, detail)
    if len(conversation_ids) == seam:
        raise UnusableRow(Reason.EMPTY_RESPONSE, group.place, f"{name} has no token")
    return conversation_ids[seam:]


def _plain_conversations(tokenizer: ChatTokenizer, group: ResponseGroup) -> list[str]:
    eos = tokenizer.eos_token
    if not eos:
        raise DataError(
            f"{group.place}: plain-text rows need a tokenizer with an end-of-sequence token; this has none: "
            "add eos_token to tokenizer_config.json"
        )
    responses = [str(response) for _, response in group.named_responses]
    return [f"{group.prompt}{text if text.endswith(eos) else text + eos}" for text in responses]


def _render(tokenizer: ChatTokenizer, turns: Turns, place: Place, *, add_generation_prompt: bool) -> str:
    if _default_template(tokenizer) is None:
        raise DataError(
            f"{place}: rows of turns need a tokenizer with a (default) chat template; this one has none: "
            "add chat_template to tokenizer_config.json, or use prompt, chosen and rejected strings"
        )
    messages = [{"role": turn.role, "content": turn.content} for turn in turns]
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=add_generation_prompt)
    except jinja2.TemplateError as error:
        roles = ", ".join(turn.role for turn in turns)
        raise UnusableRow(Reason.TEMPLATE_REFUSES, place, f"{error} (roles: {roles})") from error


def _default_template(tokenizer: ChatTokenizer) -> str | None:
    template = tokenizer.chat_template
    return template.get("default") if isinstance(template, Mapping) else template
