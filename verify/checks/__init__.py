"""Exact checks: what needs no tolerance, or none but rounding, on small cases and from the outside."""
