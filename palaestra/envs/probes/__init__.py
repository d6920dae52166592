"""Small environments for studies, each made to look at one question."""
