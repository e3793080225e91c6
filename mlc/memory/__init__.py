"""Memory planning: lifetimes, one arena per running call, kernel order, and the verifier of plans."""
