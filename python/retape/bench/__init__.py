"""Benches: one module per duty. `retape bench overhead` is `retape.bench.overhead`."""
