"""Users: who talks to an agent and wants something of it. Knows texts and wishes; knows no world and no tools."""
