"""Tools that query a SQLite database, in a process with limits."""

from palaestra.tools.sql.database import Database, sql_tools

__all__ = ["Database", "sql_tools"]
