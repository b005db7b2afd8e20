"""What training steps cost: the same batch, packed and unpacked, measured so that the number can be audited."""
