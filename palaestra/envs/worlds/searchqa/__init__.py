"""Search QA: answer questions about a random graph of entities by searching passages. `world` has the environment."""
