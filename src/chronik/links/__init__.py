"""Connections between nodes: proven to be of one cluster, kept open, carrying frames both ways.

    handshake.py    who is at the other end: secret, node's own key or certificate
    link.py         one connection: received frames, signs of life
    outbox.py       what is sent on a connection
    seal.py         the tag of every frame where the nodes have a secret and no TLS
    connections.py  dials peers and keeps links open; accepts links
    certificates.py TLS between nodes: certificates bound to cluster and node, reloaded
    tls_port.py     a port whose connections shake hands by TLS first
    authority.py    makes an authority and certificates, for who has none
    frames.py       the bytes of replication frames

A link has a purpose, which says whose frames it carries: replication's, or the metadata quorum's.
Invariants: no frame is handed over before both sides have proven that they know the cluster's secret and are
the nodes they say; frames of one link are handed over as they were sent, each once, in that order.
Not its job: what a frame causes (replication, cluster).
"""
