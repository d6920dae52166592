"""The run folder with its logs, checkpoints and sampled episodes. Import its modules; this file imports none."""
