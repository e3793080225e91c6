"""What every other room reads: dtypes, dims, scalar expressions, errors, options, text, fingerprints."""
