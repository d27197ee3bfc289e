"""The store: keys with named parts, checksummed records, and the tiers that hold them."""
