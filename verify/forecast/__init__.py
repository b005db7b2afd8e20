"""What a training step costs on a machine that is not here: FLOPs, peak memory and time, from shapes alone."""
