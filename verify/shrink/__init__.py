"""Shrinking: the smallest case and model on which a subject still fails in the same way, and a folder that shows it."""
