"""Rollout: episodes, their agents and roles, and the runners that play them."""
