"""Code: functions to write and small packages to repair, judged by hidden tests. `world.py` has the environment."""
