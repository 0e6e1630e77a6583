# A node is at its attach limit, and a new pod needs another volume.

  set nodes 1
  set attach-limit 1

The driver allows one volume per node. kubelet stores the limit in CSINode, and the scheduler enforces it.

  pod one on a with first
  wait one running

Pod two needs a second volume. The scheduler leaves the pod pending instead of binding it to a node where the attach would
fail. Attacher and driver receive no request.

  volume second
  pod two on a with second
  wait two unschedulable "node(s) exceed max volume count"
  expect no ControllerPublishVolume for second

Pod one is deleted, and the scheduler binds pod two. If the attach of its volume precedes the detach of the other volume, the
driver rejects it, and the attacher retries after the detach.

  delete pod one
  wait two running
  wait first detached from a
