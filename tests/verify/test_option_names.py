"""The names that options take without torch are those of the tables that run."""

from __future__ import annotations

import subprocess
import sys

from packed_impl.attention import BACKENDS
from verify.models.dtypes import DTYPES
from verify.option_names import BACKEND_NAMES, BUILT_IN_SUBJECT_NAMES, VARIATION_NAMES
from verify.precision import DTYPE_NAMES
from verify.subjects.pairwise import VARIATIONS
from verify.subjects.selection import BUILT_IN


def test_names_are_those_of_the_tables() -> None:
    assert tuple(DTYPES) == DTYPE_NAMES
    assert tuple(BACKENDS) == BACKEND_NAMES
    assert tuple(VARIATIONS) == VARIATION_NAMES
    assert set(BUILT_IN) == set(BUILT_IN_SUBJECT_NAMES)


def test_checking_options_imports_no_torch() -> None:
    code = "import sys, verify.cli.app, verify.cli.option_checks; print('torch' in sys.modules, 'peft' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
