"""Travel planning: look timetables up and plan a trip that keeps to a request. The environment is in `world`."""
