"""Models under comparison: tiny, published configs, local checkpoints."""
