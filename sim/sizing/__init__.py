"""Will it fit, and where did the memory go: KV pools as engines size them."""
