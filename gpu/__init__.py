"""The device half: the same manager with real tensors and paged-attention kernels. Not written yet."""
