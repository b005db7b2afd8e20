"""Before a cluster is spent: whether the ranks that are there agree, and compute the right thing with their kernels."""
