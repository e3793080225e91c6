"""The pytest plugin: fuzzing against JAX, `@mlc.check`, golden IR snapshots, and their review."""
