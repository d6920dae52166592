"""Tools: what agents may call. Knows calls, results and where code runs; knows nothing of episodes or policies."""
