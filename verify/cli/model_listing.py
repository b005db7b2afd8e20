"""Import of transformers that reads its 1,700 model files once.

To say what can be imported from it, transformers reads all files of its models, on import and once more for its package
``transformers.models``, from which every model comes: each time a tenth of all imports of a run.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

_MODELS = "transformers.models"


def list_models_once() -> None:
    """Import transformers and its package of models, which is given what was found first.

    Where this is another transformers, whose listing takes other arguments, or the package is there already, nothing is
    changed: what is imported later is listed again.
    """
    import transformers
    from transformers.utils import import_utils

    define = getattr(import_utils, "define_import_structure", None)
    folder = Path(transformers.__file__).parent / "models"
    if define is None or _MODELS in sys.modules:
        return
    try:
        found = define(folder, prefix="models")  # as on import, and remembered from there
    except TypeError:
        return
    within = {needs: _without_prefix(modules) for needs, modules in found.items()}

    def known(module_path: Any, prefix: str | None = None) -> Any:
        of_models = prefix is None and Path(module_path) == folder / "__init__.py"
        return within if of_models else define(module_path, prefix)

    import_utils.define_import_structure = known
    try:
        import transformers.models
    finally:
        import_utils.define_import_structure = define


def _without_prefix(modules: dict[str, set[str]]) -> dict[str, set[str]]:
    """What lies in the package of models, by its name there; transformers adds its other modules to what it found."""
    return {name.removeprefix("models."): found for name, found in modules.items() if name.startswith("models.")}
