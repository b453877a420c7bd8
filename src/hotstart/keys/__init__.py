"""What makes two compiles the same: canonical encoding, digests, keys."""
