//! CSI 1.13 and kubelet plugin registration: generated types, clients and servers.
