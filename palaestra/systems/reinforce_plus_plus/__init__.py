"""REINFORCE++. One trajectory a task (a group of 1), where group methods have no signal."""
