"""Environments and adapters. Floor 3. Each is a part; import its module, or find it by name in the registry."""
