"""Modules beside users' files: the right one, or a refusal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from verify.local_modules import LocalModules
from verify.named_object import SelectionError, named_object

EAGER = "import helpers_\nclass S:\n    mode = helpers_.MODE\n"
LATER = "class S:\n    @property\n    def mode(self):\n        import helpers_\n        return helpers_.MODE\n"
REFUSED = "both hold a module 'helpers_', and one process can only have one of them: run them one at a time"


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    modules, path, finders = dict(sys.modules), list(sys.path), list(sys.meta_path)
    sys.meta_path[:] = [finder for finder in finders if not isinstance(finder, LocalModules)]
    yield
    sys.path[:], sys.meta_path[:] = path, finders
    for name in set(sys.modules) - set(modules):
        del sys.modules[name]


Folder = Callable[..., str]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    def write(name: str, source: str, *, helper: str = "helpers_.py") -> str:
        path = tmp_path / name / "subj.py"
        path.parent.mkdir()
        path.write_text(source, encoding="utf-8")
        beside = path.parent / helper
        beside.parent.mkdir(exist_ok=True)
        beside.write_text(f"MODE = {name!r}\n", encoding="utf-8")
        return f"{path}:S"

    return write


def mode(name: str) -> object:
    return named_object(name, role="subject", listed=lambda _: True)().mode


def mode_of_the_first_once_both_are_there(*names: str) -> object:
    first, _ = (named_object(name, role="subject", listed=lambda _: True)() for name in names)
    return first.mode


@pytest.mark.parametrize("helper", ["helpers_.py", "helpers_/__init__.py"])
def test_a_second_helper_of_the_same_name_is_refused(folder: Folder, helper: str) -> None:
    first, second = folder("va", EAGER, helper=helper), folder("vb", EAGER, helper=helper)
    assert mode(first) == "va"
    with pytest.raises(SelectionError, match=REFUSED):
        mode(second)


def test_also_where_a_function_imports_it_later(folder: Folder) -> None:
    for source in (LATER, EAGER):
        names = folder(f"va{len(source)}", LATER), folder(f"vb{len(source)}", source)
        with pytest.raises(ValueError, match=REFUSED):
            mode_of_the_first_once_both_are_there(*names)


def test_files_of_one_name_with_helpers_of_different_names_both_run(folder: Folder) -> None:
    first = folder("va", EAGER)
    second = folder("vb", EAGER.replace("helpers_", "others_"), helper="others_.py")
    assert (mode(first), mode(second), mode(first)) == ("va", "vb", "va")


def test_two_files_of_one_folder_share_its_modules(folder: Folder) -> None:
    first = folder("va", EAGER)
    assert (mode(first), mode(first)) == ("va", "va")


def test_what_lies_beside_a_file_comes_before_what_is_installed(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "helpers_.py").write_text("MODE = 'installed'\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(installed))
    assert mode(folder("va", LATER)) == "va"


def test_a_helper_already_imported_from_another_place_is_refused(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "helpers_.py").write_text("MODE = 'elsewhere'\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("helpers_")
    with pytest.raises(SelectionError, match="both hold a module 'helpers_'"):
        mode(folder("va", EAGER))


def test_names_of_this_project_stay_this_projects(folder: Folder) -> None:
    assert mode(folder("va", "import verify\nclass S:\n    mode = verify.__file__\n", helper="verify.py")) == (
        sys.modules["verify"].__file__
    )
