"""Mutation testing of record, replay and recompute: one build, every mutant behind a switch."""
