"""PPO with generalized advantage estimation, per turn or per token. When a critic can be learned: one episode a
task is enough, and rewards on the way are used.
"""
