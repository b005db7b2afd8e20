"""Which model families of the installed transformers isolate packed sequences, and in which way of calling."""
