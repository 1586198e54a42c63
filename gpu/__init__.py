"""The device half: paged-attention kernels, what proves them right, and what they cost."""
