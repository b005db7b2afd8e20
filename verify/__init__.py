"""The judge: cases, subjects, observation, comparison, tolerance, verdict."""
