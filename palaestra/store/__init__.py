"""The store: the run folder, its logs and sampled episodes. Import its modules; this file loads none."""
