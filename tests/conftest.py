"""How Hypothesis draws: the same examples in every run, so that a red run is the change's doing; new ones on request.

``tox -e search`` draws new ones. No test is timed: a busy machine is no failure.
"""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, print_blob=True)
settings.load_profile("repeatable")
