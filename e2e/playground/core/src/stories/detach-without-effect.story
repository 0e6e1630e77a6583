# Incident: the driver responds OK to a detach that it does not do.

Pod db runs on node a with volume data.

  pod db on a with data
  wait db running

The driver's detach is asynchronous, and it responds OK before the array has done anything. For Kubernetes the volume is
detached from node a: the attacher has the driver's word, and removes its finalizer. The array still has the volume on node a,
so it refuses the attach to node b, and no component of Kubernetes will detach it from node a.

  driver: ControllerUnpublishVolume pretends OK
  delete pod db
  pod db-2 on b with data
  wait db-2 event FailedAttachVolume
  expect data published to a
  expect db-2 not running

No retry helps, because the VolumeAttachment for node a is gone. The driver must be repaired, and the volume detached at the
array by hand. The next retry of the attach to node b succeeds.

  driver: works again
  array unpublishes data from a
  wait db-2 running
