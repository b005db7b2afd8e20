"""What is probably wrong with a subject that failed, and where: findings, not proofs (docs/diagnosis.md)."""
