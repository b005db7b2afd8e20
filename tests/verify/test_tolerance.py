"""The policy file: every number with its reason, and one message that names file and key where it cannot be used."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import verify
from verify.models.dtypes import DTYPES
from verify.tolerance import PolicyError, load_policy

DEFAULT = (Path(verify.__file__).parent / "policy.toml").read_text(encoding="utf-8")


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def changed(old: str, new: str) -> str:
    assert old in DEFAULT
    return DEFAULT.replace(old, new, 1)


def test_the_default_policy_loads_from_the_package_and_as_a_file(tmp_path: Path) -> None:
    assert load_policy(None) == load_policy(write(tmp_path, DEFAULT))


def test_every_number_has_a_reason_beside_it() -> None:
    """In its own table or in the one above it."""

    def without_reason(table: dict[str, Any], covered: bool, name: str) -> list[str]:
        covered = covered or len(table.get("rationale", "")) >= 40
        found = [f"{name}.{k}" for k, v in table.items() if isinstance(v, int | float) and not covered]
        for key, value in table.items():
            if isinstance(value, dict):
                found += without_reason(value, covered, f"{name}.{key}")
        return found

    policy = tomllib.loads(DEFAULT)
    assert without_reason(policy, False, "policy") == ["policy.schema_version"]
    del policy["oracle"]["rationale"]
    assert "policy.oracle.factor" in without_reason(policy, False, "policy")


def test_a_policy_that_asks_more_is_taken(tmp_path: Path) -> None:
    path = write(tmp_path, changed("factor = 3.0", "factor = 1"))
    assert load_policy(path).oracle.factor == 1.0


def test_every_dtype_has_bounds_of_its_own() -> None:
    plausible = load_policy(None).plausible
    rms = [plausible.for_dtype(dtype).per_token_logps_rms for dtype in DTYPES]
    assert rms == sorted(rms)
    assert len(set(rms)) == len(DTYPES)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[oracle]", "[oracel]", r"key 'oracle' is missing; unknown key 'oracel'"),
        ("epsilons =", "epsilon =", r"key 'floor.epsilons' is missing; unknown key 'floor.epsilon'"),
        ("standard_errors = 3.0\n", "", r"key 'small_sample.standard_errors' is missing"),
        ("[plausible.float64]", "[plausible.float16]", r"key 'plausible.float64' is missing; unknown key .*float16"),
        ("schema_version = 1\n", "", r"key 'schema_version' is missing"),
        ("schema_version = 1", "schema_version = 2", r"schema_version = 2: Input should be 1"),
        ("factor = 3.0", "factor = 0.9", r"oracle.factor = 0.9: .* greater than or equal to 1"),
        ("factor = 3.0", "factor = inf", r"oracle.factor = inf: .* finite"),
        ("factor = 3.0", "factor = nan", r"oracle.factor = nan: .* finite"),
        ("factor = 3.0", 'factor = "2.0"', r"oracle.factor = '2.0': .* valid number"),
        ("factor = 3.0", "factor = true", r"oracle.factor = True: .* valid number"),
        ("epsilons = 1.0", "epsilons = -1.0", r"floor.epsilons = -1.0: .* greater than or equal to 0"),
        ("epsilons = 1.0", "epsilons = 1e9", r"floor.epsilons = 1000000000.0: .* less than or equal to 64"),
        ("max_sigmas = 4.0", "max_sigmas = 0", r"small_sample.max_sigmas = 0: .* greater than 0"),
        ("gradients_rms = 1e-3", "gradients_rms = inf", r"plausible.float64.gradients_rms = inf: .* finite"),
        ("[oracle]\n", "[[oracle]]\n", r"oracle = .*: Input should be a valid dictionary"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_its_file(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = write(tmp_path, changed(old, new))
    with pytest.raises(PolicyError, match=f"^policy {re.escape(str(path))}: {message}") as caught:
        load_policy(path)
    assert "\n" not in str(caught.value)


def test_a_number_without_a_reason_is_refused(tmp_path: Path) -> None:
    text = re.sub(r'rationale = """.*?"""', 'rationale = "because"', DEFAULT, count=1, flags=re.DOTALL)
    with pytest.raises(PolicyError, match=r"oracle\.rationale = 'because': .* at least 20 characters"):
        load_policy(write(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("factor 2.0", r"not TOML: Expected '=' .*line 1"),
        ("[oracle]\nfactor = 1.0\n[oracle]\n", r"not TOML: Cannot declare .*oracle.* twice .*line 3"),
        ("", r"key 'schema_version' is missing; .*key 'plausible' is missing"),
    ],
    ids=["not-toml", "twice", "empty"],
)
def test_a_file_that_is_no_policy_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        load_policy(write(tmp_path, text))


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.toml", tmp_path):
        with pytest.raises(PolicyError, match=f"^policy {re.escape(str(path))}: cannot be read: "):
            load_policy(path)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PolicyError, match="cannot be read"):
        load_policy(binary)


def test_a_policy_cannot_be_changed_once_loaded() -> None:
    policy = load_policy(None)
    with pytest.raises(ValidationError, match="frozen"):
        policy.oracle.factor = 100.0
