"""Tiered storage (KIP-405): sealed segments go to an object store and are read back from there.

    uploader    the leader sends segments below the high watermark and the last stable offset
    manifest    the list of a partition's remote segments: an object of its own, never changed
    catalog    one entry of the metadata log makes a manifest count (`SetRemoteLog`)
    reader      ranged reads below the local start, through a bounded cache
    fetches     what is on its way from the store, each thing once; memory says how much at a time
    retention   retention.ms and retention.bytes over both tiers; what no manifest names is removed

Flow: segment -> object -> manifest -> metadata log. The metadata log refuses an entry of a leader epoch that
is over, and one that was made from another manifest than the one that counts. So a deposed leader can leave
objects behind that nobody needs, and nothing else.

Invariants:
- A replica's log starts locally at or before the end of its remote log: local copies go only when the
  metadata log has the manifest that names them.
- An object is deleted only by the leader, after the metadata log has answered that it still leads, and only
  if it was written in this leader epoch or an earlier one and no manifest names it.
- Whatever comes from the store is checked: manifests and indexes against a checksum that the metadata log or
  the manifest has, batches against their own.

Serving what is on the local disk is not its job (`storage.reading`), nor is compaction: compacted topics have
no remote log.
"""
