"""MUA-RL (arXiv 2508.18669) trains agents that serve a user with tools and must ask for what they need to know. A
simulated user answers inside every rollout. GRPO uses one reward at the end: 1 if the final database is the intended
one and the agent's replies contain everything they had to contain. Turns of the user and results of tools have no loss.
Here the user is scripted and tells one fact when it is asked; with `user: chat` a chat model plays it, as in the paper.
The recipe starts from an expert's dialogues and not from synthetic ones. The folder has no code of its own: the
environment is `palaestra/envs/worlds/desk`, and `grpo` is in `palaestra/parts/estimators.py`.
"""
