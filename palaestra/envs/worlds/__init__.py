"""The built-in environments. Each is a registered part, which a recipe names."""
