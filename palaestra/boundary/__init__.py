"""What enters from the code of users: tasks of environments, and what becomes part of a trajectory."""
