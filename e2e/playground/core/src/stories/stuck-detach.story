# The array refuses to detach a volume that a pod on another node needs.

Pod db runs on node a with volume data.

  pod db on a with data
  wait db running

The pod moves to node b, but the array fails to detach data from node a. The attacher keeps its finalizer on the
VolumeAttachment, reports the driver's error in status.detachError, and retries with exponential backoff.

  driver: ControllerUnpublishVolume fails with INTERNAL "the port is locked"
  delete pod db
  pod db-2 on b with data
  wait data detach error on a "the port is locked"

Pod db-2 waits. Removing the finalizer manually would attach the volume to node b while the array still has it attached to
node a. The array must be repaired instead. After the failed detach the attach/detach controller is no longer certain that
data is attached to node a, so it may create a VolumeAttachment for node b already now; the array refuses that attach, or
the driver responds ABORTED while the detach is in progress. Both are errors to be retried, and no volume is on two nodes.

  expect db-2 not running
  expect data published to a
  expect data not published to b

The array is repaired. One of the attacher's next retries of the detach succeeds, and after it an attach to node b: each has
waited for its backoff, so this takes some seconds.

  driver: works again
  wait data detached from a
  wait db-2 running
  expect data detached from a before attached to b
