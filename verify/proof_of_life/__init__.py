"""Faults planted in every run of the gate: its verdict can cite what the same run was shown to catch."""
