"""Code: functions to write and small packages to mend, judged by hidden tests. `world` has the environment."""
