"""Prover: theorems of intuitionistic propositional logic, proved tactic by tactic. `world` has the environment."""
