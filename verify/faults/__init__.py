"""Planted faults: values that replace one stage of the packed computation, to prove that the checks can fail."""
