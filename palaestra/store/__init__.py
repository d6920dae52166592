"""The store: the run folder, its logs and sampled episodes. Floor 2. Import its modules; this file loads none."""
