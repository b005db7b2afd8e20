"""The cases of a run that names none."""
