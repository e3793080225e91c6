"""Graph passes, rewrites as data, and fusion into kernels."""
