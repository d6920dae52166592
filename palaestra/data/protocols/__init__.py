"""Protocols of what users can write: engines, contexts, policies, optimizers, learners and other parts with state.

A protocol has defaults for the members that an implementation may leave out. Inherit from it, `class Mine(Policy)`,
and write the members that differ. `complete` refuses an object that neither inherits them nor has all of them. The
protocols of environments are in `palaestra.data.abilities`. What a part declares before it is made or called is in
`palaestra.registry.DECLARED`.
"""
