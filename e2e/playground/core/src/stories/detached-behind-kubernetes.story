# Incident: an administrator detaches a volume in the console of the array, although a pod uses it.

  set list-interval 2s

Pod db runs on node a with volume data.

  pod db on a with data
  wait db running

The volume is detached at the array. Kubernetes does not see it: the VolumeAttachment still says attached, and the pod's reads
and writes fail. The attacher compares the driver's ListVolumes with the VolumeAttachments at an interval, finds that data is
not published to node a, and publishes it again.

  array unpublishes data from a
  wait data published to a
  expect db running
