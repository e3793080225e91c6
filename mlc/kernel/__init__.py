"""Fused kernels: stages of expressions, their schedules as data, text, verifier and interpreter."""
