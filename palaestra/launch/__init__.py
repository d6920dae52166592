"""Running many runs. Floor 9."""
