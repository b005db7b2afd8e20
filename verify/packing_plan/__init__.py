"""What packing would save: exact counts of tokens and attention pairs, and a simulation over lengths."""
