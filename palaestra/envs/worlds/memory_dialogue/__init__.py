"""Memory dialogue: keep a memory of a long talk, then answer questions from it. `world` has the environment."""
