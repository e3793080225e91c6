"""The persistent compilation cache."""
