# A node with a mounted volume is lost. The replacement pod cannot use the volume until an administrator adds the out-of-service taint to the node.

Pod db runs on node a. Its volume is ReadWriteOnce: it may be attached to one node at a time.

  pod db on a with data
  wait db running

Node a is lost. Its kubelet can no longer report that data is unmounted, so the attach/detach controller must assume that
node a still writes to it, and does not attach it to node b: two nodes that write to one filesystem corrupt it.

  lose node a
  pod db-2 on b with data
  wait db-2 event FailedAttachVolume "Volume is already"
  expect no ControllerUnpublishVolume for data

The administrator knows that node a is shut down, and adds the out-of-service taint: once pod db is deleted, the
attach/detach controller detaches data without waiting for the unmount.

  taint a out-of-service
  delete pod db by force
  wait db-2 running
  wait data detached from a
  expect data detached from a before attached to b
