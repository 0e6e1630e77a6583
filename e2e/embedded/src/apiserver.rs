//! An in-memory kube-apiserver for the kinds of the attach/detach path.
