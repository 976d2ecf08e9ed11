"""Where checkpoints lie: an object store in a folder or a bucket, its owner, and a cache on a local disk."""
