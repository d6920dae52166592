"""Prover: prove theorems of intuitionistic propositional logic by tactics. `world` has the environment."""
