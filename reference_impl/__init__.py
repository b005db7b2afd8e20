"""The oracle and the unpacked witness."""
