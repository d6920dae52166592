"""Travel planning: an agent plans a trip that fulfills a request. The environment is in `world`."""
