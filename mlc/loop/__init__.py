"""Loop IR: what a kernel does, statement by statement; text, verifier, interpreter, and the lowering of kernels."""
