"""Loop IR to LLVM IR text, and the targets that it is compiled for."""
