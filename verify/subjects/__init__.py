"""Adapters: the only modules of the judge that import an implementation."""
