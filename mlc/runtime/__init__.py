"""Linking, running and storing programs: ORC, the native entry, the arena pool, threads."""
