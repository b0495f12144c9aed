"""The proofs; one folder per layer, and one per kind of proof."""
