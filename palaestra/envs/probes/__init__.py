"""Small worlds that studies of several systems use to look at one thing."""
