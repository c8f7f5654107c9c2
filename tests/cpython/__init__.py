"""CPython's own tests of what otelctx patches, with otelctx and without: they must fail in the same places."""
