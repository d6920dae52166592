"""A service desk: a database, tools, rules and users with hidden wishes. The environment `desk` is in `world`."""
