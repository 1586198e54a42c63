"""What would notice a mistake in a kernel on a machine without a GPU."""
