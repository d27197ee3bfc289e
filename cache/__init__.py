"""The store: keys with named parts, checksummed records, and the tiers that hold them.

In the order a record travels::

    key         ordered, named parts under a kind and a schema; the digest
    record      the bytes of a record in every tier, checked on every read (codec: zstd, xxh3)
    store       the contract, and the store in memory
    layered     memory over the local store
    local       the local store: the contract over a shelf (leases: who builds a key)
    shelf       the generations of one directory: read, write, rotate, set aside
    generation  one LMDB file of fixed size
    aside       damaged files, and doubtful ones after a crash (salvage: the records in them)
    opening     from a directory to a store (filesystem: which directories are fit)
    forks       what a fork must wait for and a child must let go (locks)
    atomic      plain files, replaced whole or not at all
"""
