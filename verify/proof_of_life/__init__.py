"""Faults that are planted in every run of the gate, so that its verdict can cite what the same run was shown to catch."""
