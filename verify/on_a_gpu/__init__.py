"""The checks that need a GPU, prepared: one command runs them all within a time, and a CPU can rehearse it."""
