"""`mlc bench`: mlc against its peers, each library in a process of its own, asked in turn."""
