"""From Python to graphs: tracing, pytrees, promotion, and the functions behind `mlc.numpy` and `mlc.nn`."""
