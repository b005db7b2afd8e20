"""Patterns of differing values: pure functions from differences to a sentence, one module for each family."""
