"""The engines' ways to account for KV memory, one file each."""
